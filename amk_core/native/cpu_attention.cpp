// Attention of one kv head, in blocks or in the pieces of a rank, and the merge of its partials.
#include <algorithm>
#include <limits>

#include "cpu_body.hpp"
#include "numerics.h"

namespace amk {

// One block of keys or values as float rows; a view of the buffer where it already is, else a copy padded to `width`.
const float* Body::block_rows(int buffer, int64_t row, int64_t n, int64_t col, int64_t d, int64_t width, float* space,
                        int64_t* stride) const {
  const int64_t width_all = cols(buffer);
  if (bf16(buffer)) {
    for (int64_t j = 0; j < n; ++j)
      k.expand_bf16(at<uint16_t>(buffer) + (row + j) * width_all + col, d, width, space + j * width);
  } else if (d == width) {
    *stride = width_all;
    return at(buffer) + row * width_all + col;
  } else {
    for (int64_t j = 0; j < n; ++j) k.prepare(at(buffer) + (row + j) * width_all + col, d, width, false, space + j * width);
  }
  *stride = width;
  return space;
}

bool Body::attn() {
  const int64_t chunk = p(attn::chunk), ctx = p(attn::ctx), seq = p(attn::seq), kv_head = p(attn::kv_head);
  const int64_t group = p(attn::group), d = p(attn::head_dim), splits = p(attn::splits), blocks = p(attn::blocks);
  const int64_t block = p(attn::block), split = p(attn::split), dp = up(d, kLanes), bp = up(block, kLanes);
  const Rows rows(step, chunk, p(attn::batch), p(attn::pos_var), vars);
  const int64_t tokens = rows.tokens(seq), first = rows.position(seq, 0);
  const int64_t n_rows = tokens * group, part_cols = cols(attn::part);
  if (tokens == 0) {
    if (p(attn::out) >= 0)  // its readers wait for every row
      for (int64_t c = 0; c < chunk; ++c) std::fill_n(at(attn::out) + (seq * chunk + c) * cols(attn::out) + kv_head * group * d, group * d, 0.0f);
    return true;
  }
  float* q = take(chunk * group * dp);
  float* space = take(block * dp);
  float* s = take(chunk * group * bp);
  float* o = take(chunk * group * d);
  float* part = at(attn::part) + (seq * p(attn::n_kv) + kv_head) * chunk * group * part_cols;
  for (int64_t r = 0; r < n_rows; ++r)
    k.prepare(at(attn::q) + (seq * chunk + r / group) * cols(attn::q) + (kv_head * group + r % group) * d, d, dp, mc.fast,
              q + r * dp);
  const int64_t last = first + tokens - 1, n_blocks = last / block + 1;
  const bool near = p(attn::packed) && n_blocks <= near_blocks(int(d));  // split 0 does them all, and no partials are handed on
  if (near && split > 0) return true;
  float* local = take(kMostNearBlocks * group * (d + 2));
  auto partial = [&](int64_t r, int64_t b) { return near ? local + (r * kMostNearBlocks + b) * (d + 2) : part + r * part_cols + slot(b, splits, blocks, d); };
  auto fresh = [&](int64_t b) { return int64_t(p(attn::packed) && b == last / block); };  // rows of the block that come with q
  for (int64_t b = split; b * block <= last; b += near ? 1 : splits) {
    const int64_t start = b * block, n = std::min(block, last + 1 - start);
    const int64_t from = std::max<int64_t>(0, (start - first)) * group;  // rows before it end before this block
    const int64_t column = slot(b, splits, blocks, d);
    int64_t stride;
    const float* keys = block_rows(attn::k, seq * ctx + start, n - fresh(b), kv_head * d, d, dp, space, &stride);
    if (fresh(b)) newest(seq, p(attn::n_heads) + kv_head, d, dp, space + (n - 1) * dp);
    for (int64_t r = from; r < n_rows; ++r) {
      const int64_t seen = std::min(n, first + r / group + 1 - start);  // keys at or before the row's position
      k.scores(q + r * dp, keys, stride, seen, dp, real(t.p[attn::scale]), s + r * bp);
      k.softmax_block(s + r * bp, seen, partial(r, b));
    }
    const float* values = block_rows(attn::v, seq * ctx + start, n - fresh(b), kv_head * d, d, d, space, &stride);
    if (fresh(b)) newest(seq, p(attn::n_heads) + p(attn::n_kv) + kv_head, d, d, space + (n - 1) * d);
    for (int64_t r = from; r < n_rows;) {  // rows that see equally many keys share the loads of the values
      const int64_t seen = std::min(n, first + r / group + 1 - start);
      int64_t end = r + group;
      while (end < n_rows && std::min(n, first + end / group + 1 - start) == seen) end += group;
      k.weighted_sum(s + r * bp, bp, end - r, values, stride, seen, d, o + r * d, d);
      r = end;
    }
    const int64_t part_row = (seq * p(attn::n_kv) + kv_head) * chunk * group;
    for (int64_t r = from; r < n_rows; ++r) {
      std::copy(o + r * d, o + (r + 1) * d, partial(r, b) + 2);
      if (port && !near) port->publish(attn::part, part_row + r, column, column + d + 2);
    }
  }
  if (p(attn::out) < 0) return true;
  if (near) {
    const int64_t where[kMostNearBlocks] = {0, d + 2};
    float* out = at(attn::out) + seq * cols(attn::out) + kv_head * group * d;
    for (int64_t r = 0; r < n_rows; ++r) k.combine(partial(r, 0), where, n_blocks, d, out + r * d);
    return true;
  }
  // the task of split 0 merges the blocks of all splits
  const int64_t part_row = (seq * p(attn::n_kv) + kv_head) * chunk * group;
  for (int64_t b = 0; port && b < n_blocks; ++b)
    for (int64_t r = 0; b % splits != split && r < n_rows; ++r) {
      const int64_t column = slot(b, splits, blocks, d);
      if (!port->fetch(attn::part, part_row + r, column, column + d + 2)) return false;
    }
  int64_t* where = reinterpret_cast<int64_t*>(take(2 * splits * blocks));
  const int64_t stride = cols(attn::out);
  merge(attn::part, seq, kv_head, chunk, group, p(attn::n_kv), d, splits, blocks, block, rows, where,
        at(attn::out) + seq * chunk * stride + kv_head * group * d, stride);
  return true;
}

// A row of the newest keys or values, rounded as the cache rounds; `head` counts all heads of the packed row of a sequence.
void Body::newest(int64_t seq, int64_t head, int64_t d, int64_t width, float* to) const {
  const float* from = at(attn::q) + seq * cols(attn::q) + head * d;
  for (int64_t i = 0; i < d; ++i) to[i] = f32_of_bf16(bf16_of(from[i]));
  std::fill(to + d, to + width, 0.0f);
}

// Attention output of one sequence and kv head: group * d values of each row, at out + c * stride.
void Body::merge(int part_index, int64_t seq, int64_t kv_head, int64_t chunk, int64_t group, int64_t n_kv, int64_t d, int64_t splits,
           int64_t blocks, int64_t block, const Rows& rows, int64_t* where, float* out, int64_t stride) const {
  const int64_t part_cols = cols(part_index);
  const float* part = at(part_index) + (seq * n_kv + kv_head) * chunk * group * part_cols;
  for (int64_t c = 0; c < chunk; ++c) {
    if (!rows.active(seq, c)) {
      std::fill(out + c * stride, out + c * stride + group * d, 0.0f);
      continue;
    }
    const int64_t n = rows.position(seq, c) / block + 1;
    for (int64_t b = 0; b < n; ++b) where[b] = slot(b, splits, blocks, d);
    for (int64_t j = 0; j < group; ++j) k.combine(part + (c * group + j) * part_cols, where, n, d, out + c * stride + j * d);
  }
}

void Body::attn_combine() {
  namespace a = attn_combine;
  const Rows rows(step, p(a::chunk), p(a::batch), p(a::pos_var), vars);
  int64_t* where = reinterpret_cast<int64_t*>(take(2 * p(a::splits) * p(a::blocks)));
  const int64_t stride = cols(a::out), q0 = p(a::kv_head) * p(a::group) * p(a::head_dim);
  merge(a::part, p(a::seq), p(a::kv_head), p(a::chunk), p(a::group), p(a::n_kv), p(a::head_dim), p(a::splits), p(a::blocks),
        p(a::block), rows, where, at(a::out) + p(a::seq) * p(a::chunk) * stride + q0, stride);
}

// Attention of some heads over the positions j, j + pieces, ..; the newest key and value come with the queries.
void Body::rank_attn() {
  namespace a = amk::rank_attn;
  const int64_t d = p(a::head_dim), dp = up(d, kLanes), pieces = p(a::pieces), j = p(a::piece), kv_head = p(a::kv_head);
  const Rows rows(step, 1, 1, p(a::pos_var), vars);
  const bool active = rows.active(0, 0);
  const int64_t last = rows.position(0, 0), n = active && last >= j ? (last - j) / pieces + 1 : 0;
  float *q = take(dp), *space = take(n * dp), *s = take(up(n, kLanes)), *o = take(d);
  auto gather = [&](int cache, int64_t head, int64_t width) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = j + i * pieces;
      float* to = space + i * width;
      if (row == last) {
        const float* from = at(a::q) + head * d;
        for (int64_t e = 0; e < d; ++e) to[e] = bf16(cache) ? f32_of_bf16(bf16_of(from[e])) : from[e];
        std::fill(to + d, to + width, 0.0f);
      } else if (bf16(cache)) {
        k.expand_bf16(at<uint16_t>(cache) + row * cols(cache) + kv_head * d, d, width, to);
      } else {
        k.prepare(at(cache) + row * cols(cache) + kv_head * d, d, width, false, to);
      }
    }
  };
  for (int64_t head = p(a::head); head < p(a::head) + p(a::heads); ++head) {
    float* to = at(a::attn) + head * cols(a::attn) + j * (d + 2);
    if (n == 0) {  // a piece that nobody has reached weighs nothing; a row that is not active is zero
      std::fill(to, to + d + 2, 0.0f);
      to[0] = active ? std::numeric_limits<float>::lowest() : 0.0f, to[1] = active ? 0.0f : 1.0f;
      continue;
    }
    k.prepare(at(a::q) + head * d, d, dp, mc.fast, q);
    gather(a::k, p(a::n_heads) + kv_head, dp);
    k.scores(q, space, dp, n, dp, real(t.p[a::scale]), s);
    k.softmax_block(s, n, to);
    gather(a::v, p(a::n_heads) + p(a::n_kv) + kv_head, d);
    k.weighted_sum(s, up(n, kLanes), 1, space, d, n, d, o, d);
    std::copy(o, o + d, to + 2);
  }
}

}  // namespace amk
