#include "cpu_ops.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "numerics.h"

namespace amk {
namespace {

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
float real(int32_t word) { return std::bit_cast<float>(word); }

// The rows of a launch: row r is token r % chunk of sequence r / chunk.
struct Rows {
  int64_t step, chunk, batch;
  const int64_t* p0;
  const int64_t* n;

  Rows(int64_t step, int64_t chunk, int64_t batch, int64_t pos_var, std::span<const int64_t> variables)
      : step(step), chunk(chunk), batch(batch), p0(variables.data() + pos_var), n(p0 + batch) {}
  bool active(int64_t seq, int64_t c) const { return step * chunk + c < n[seq]; }
  int64_t position(int64_t seq, int64_t c) const { return p0[seq] + step * chunk + c; }
  // Active tokens of a sequence in this step: a prefix of its chunk.
  int64_t tokens(int64_t seq) const { return std::clamp<int64_t>(n[seq] - step * chunk, 0, chunk); }
};

struct Body {
  const Machine& mc;
  const Task& t;
  int64_t step;
  std::span<const int64_t> vars;
  float* scratch;
  Fault* fault;
  TagPort* port;
  const Kernels& k = *mc.kernels;

  int64_t p(int i) const { return t.p[i]; }
  template <class T = float>
  T* at(int i) const {
    return reinterpret_cast<T*>(t.at[i]);
  }
  int64_t cols(int i) const { return mc.cols(t.p[i]) * (t.tagged.empty() ? 1 : t.tagged[size_t(i)].width); }
  bool bf16(int i) const { return mc.tables->buffers[size_t(t.p[i])].bits == 16; }
  float* take(int64_t floats) {
    float* out = scratch;
    scratch += up(floats, 16);
    return out;
  }

  void matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
    if (t.quant.integer)
      integer_matmul(n, x, xs, m, kp, y, ys);
    else if (t.quant.bits)
      packed_matmul(n, x, xs, m, kp, y, ys);
    else if (mc.tape_bf16)
      k.matmul_bf16(static_cast<const uint16_t*>(t.weight), n, x, xs, m, kp, y, ys);
    else
      k.matmul_f32(static_cast<const float*>(t.weight), n, x, xs, m, kp, y, ys);
  }

  PackedRows packed(int64_t row, float* scale, float* offset) const {
    const QuantFormat& f = t.quant;
    const auto* data = static_cast<const uint8_t*>(t.weight) + row / kGroupRows * f.group_bytes(t.weight_k);
    return {data, f.bits, f.record_bytes(), f.code_bytes(), f.entry_bytes(), std::countr_zero(uint64_t(f.record_k())),
            f.group ? std::countr_zero(uint64_t(f.group)) : 62, f.groups(t.weight_k),
            f.group ? nullptr : data + f.records(t.weight_k) * f.record_bytes(), f.kind, f.bf16, scale, offset};
  }

  // Integers of 8 bits on both sides, one activation row at a time.
  void integer_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
    const int64_t groups = t.quant.groups(t.weight_k);
    float *scale = take(kGroupRows * groups), *offset = take(kGroupRows * groups);
    int16_t* q = reinterpret_cast<int16_t*>(take(kp / 2));
    for (int64_t r = 0; r < m; ++r) {
      const float step = k.integer_row(x + r * xs, kp, q);
      for (int64_t j = 0; j < n; j += kGroupRows) {
        const PackedRows g = packed(j, scale, offset);
        k.packed_tables(g);
        k.integer_product(g, std::min(kGroupRows, n - j), q, kp, step, y + r * ys + j);
      }
    }
  }

  // Eight rows at a time; for several activation rows they are expanded once.  The bits are those of the expanded weights either way.
  void packed_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
    const int64_t groups = t.quant.groups(t.weight_k);
    float *scale = take(kGroupRows * groups), *offset = take(kGroupRows * groups), *expanded = take(kGroupRows * kp);
    for (int64_t j = 0; j < n; j += kGroupRows) {
      const PackedRows g = packed(j, scale, offset);
      const int64_t rows = std::min(kGroupRows, n - j);
      k.packed_tables(g);
      if (m == 1) {
        k.packed_product(g, rows, x, kp, y + j);
      } else {
        k.packed_expand(g, rows, kp, expanded);
        k.matmul_f32(expanded, rows, x, xs, m, kp, y + j, ys);
      }
    }
  }

  // Normalised rows of h in scratch, [m][kp].
  float* normed(int h, int norm_w, int64_t m, int64_t hidden, float eps) {
    const int64_t kp = up(hidden, kLanes);
    float* x = take(m * kp);
    for (int64_t r = 0; r < m; ++r) k.rmsnorm(at(h) + r * cols(h), at(norm_w), hidden, kp, eps, mc.fast, x + r * kp);
    return x;
  }

  // dot products of all rows with the tile added to h, into out.
  void residual(int h, int out, int64_t row0, int64_t row1, int64_t m, const float* x, int64_t xs, int64_t kp) {
    const int64_t n = row1 - row0;
    float* y = take(m * n);
    matmul(n, x, xs, m, kp, y, n);
    for (int64_t r = 0; r < m; ++r) {
      float* to = at(out) + r * cols(out) + row0;
      if (at(out) != at(h)) std::copy_n(at(h) + r * cols(h) + row0, n, to);
      k.add(to, y + r * n, n);
    }
  }

  // The partial of block b of one head and row: split b % splits, slot b / splits.
  static int64_t slot(int64_t b, int64_t splits, int64_t blocks, int64_t d) {
    return ((b % splits) * blocks + b / splits) * (d + 2);
  }

  bool embed() {
    const int64_t m = p(embed::m), chunk = p(embed::chunk), vocab = p(embed::vocab);
    const int64_t c0 = p(embed::col0), c1 = p(embed::col1);
    const float scale = real(t.p[embed::scale]);
    for (int64_t r = 0; r < m; ++r) {
      const int64_t seq = r / chunk, column = p(embed::feed) == 0 ? 0 : step * chunk + r % chunk;
      const int64_t id = at<int32_t>(embed::token)[seq * cols(embed::token) + column];
      float* to = at(embed::out) + r * cols(embed::out);
      if (id == kNoToken) {  // a row without a token, behind the end of a prompt
        std::fill(to + c0, to + c1, 0.0f);
        continue;
      }
      if (id < 0 || id >= vocab) {
        fault->kind = kTokenRange, fault->row = int32_t(r), fault->has = id, fault->needs = vocab;
        return false;
      }
      const int64_t row = id * cols(embed::table);
      if (bf16(embed::table))
        for (int64_t c = c0; c < c1; ++c) to[c] = f32_of_bf16(at<uint16_t>(embed::table)[row + c]);
      else
        for (int64_t c = c0; c < c1; ++c) to[c] = at(embed::table)[row + c];
      if (scale != 1.0f)
        for (int64_t c = c0; c < c1; ++c) to[c] = to[c] * scale;
    }
    return true;
  }

  void append(int buffer, int64_t row, int64_t col, const float* from, int64_t n) const {
    const int64_t to = row * cols(buffer) + col;
    if (bf16(buffer))
      for (int64_t i = 0; i < n; ++i) at<uint16_t>(buffer)[to + i] = bf16_of(from[i]);
    else
      for (int64_t i = 0; i < n; ++i) at(buffer)[to + i] = from[i];
  }

  // Pairs of queries and keys, rows row0 to row1 of all of them, turned by their angles; the values of row0 are the first of `y`.
  static void rotate(float* y, int64_t row0, int64_t row1, int64_t d, const float* cosine, const float* sine) {
    for (int64_t row = row0; row < row1; row += 2) {
      const int64_t i = row % d / 2;  // sections start on multiples of d
      const float a = y[row - row0], b = y[row - row0 + 1];
      const float a_cos = a * cosine[i], b_sin = b * sine[i], b_cos = b * cosine[i], a_sin = a * sine[i];
      y[row - row0] = a_cos - b_sin;
      y[row - row0 + 1] = b_cos + a_sin;
    }
  }

  void qkv() {
    const int64_t m = p(qkv::m), chunk = p(qkv::chunk), batch = p(qkv::batch), ctx = p(qkv::ctx), d = p(qkv::head_dim);
    const int64_t row0 = p(qkv::row0), row1 = p(qkv::row1), hidden = p(qkv::hidden), n = row1 - row0;
    const int64_t q_end = p(qkv::n_heads) * d, k_end = q_end + p(qkv::n_kv) * d;
    const Rows rows(step, chunk, batch, p(qkv::pos_var), vars);
    const float* x = normed(qkv::h, qkv::norm_w, m, hidden, real(t.p[qkv::eps]));
    float* y = take(m * n);
    matmul(n, x, up(hidden, kLanes), m, up(hidden, kLanes), y, n);
    // packed: the new keys and values stand behind the queries too
    const int64_t q1 = p(qkv::packed) ? row1 : std::min(row1, q_end), k0 = std::max(row0, q_end), k1 = std::min(row1, k_end), v0 = std::max(row0, k_end);
    for (int64_t r = 0; r < m; ++r) {
      const int64_t seq = r / chunk, c = r % chunk;
      float* out = y + r * n;
      if (!rows.active(seq, c)) {
        if (row0 < q1) std::fill(at(qkv::q) + r * cols(qkv::q) + row0, at(qkv::q) + r * cols(qkv::q) + q1, 0.0f);
        continue;
      }
      const int64_t position = rows.position(seq, c);
      const float* cosine = at(qkv::cos) + position * cols(qkv::cos);
      const float* sine = at(qkv::sin) + position * cols(qkv::sin);
      rotate(out, row0, k1, d, cosine, sine);
      if (row0 < q1) std::copy(out, out + (q1 - row0), at(qkv::q) + r * cols(qkv::q) + row0);
      if (k0 < k1) append(qkv::k, seq * ctx + position, k0 - q_end, out + (k0 - row0), k1 - k0);
      if (v0 < row1) append(qkv::v, seq * ctx + position, v0 - k_end, out + (v0 - row0), row1 - v0);
    }
  }

  // One block of keys or values as float rows; a view of the buffer where it already is, else a copy padded to `width`.
  const float* block_rows(int buffer, int64_t row, int64_t n, int64_t col, int64_t d, int64_t width, float* space,
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

  bool attn() {
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
  void newest(int64_t seq, int64_t head, int64_t d, int64_t width, float* to) const {
    const float* from = at(attn::q) + seq * cols(attn::q) + head * d;
    for (int64_t i = 0; i < d; ++i) to[i] = f32_of_bf16(bf16_of(from[i]));
    std::fill(to + d, to + width, 0.0f);
  }

  // Attention output of one sequence and kv head: group * d values of each row, at out + c * stride.
  void merge(int part_index, int64_t seq, int64_t kv_head, int64_t chunk, int64_t group, int64_t n_kv, int64_t d, int64_t splits,
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

  void attn_combine() {
    namespace a = attn_combine;
    const Rows rows(step, p(a::chunk), p(a::batch), p(a::pos_var), vars);
    int64_t* where = reinterpret_cast<int64_t*>(take(2 * p(a::splits) * p(a::blocks)));
    const int64_t stride = cols(a::out), q0 = p(a::kv_head) * p(a::group) * p(a::head_dim);
    merge(a::part, p(a::seq), p(a::kv_head), p(a::chunk), p(a::group), p(a::n_kv), p(a::head_dim), p(a::splits), p(a::blocks),
          p(a::block), rows, where, at(a::out) + p(a::seq) * p(a::chunk) * stride + q0, stride);
  }

  // o_proj and down_proj have the same parameters in the same places.
  void project() {
    namespace a = o_proj;
    const int64_t m = p(a::m), kk = p(a::k), kp = up(kk, kLanes);
    const float* x = at(a::x);
    int64_t xs = cols(a::x);
    if (mc.fast || kk != kp) {
      float* copy = take(m * kp);
      for (int64_t r = 0; r < m; ++r) k.prepare(x + r * xs, kk, kp, mc.fast, copy + r * kp);
      x = copy, xs = kp;
    }
    residual(a::h, a::out, p(a::row0), p(a::row1), m, x, xs, kp);
  }

  void o_proj_combine() {
    namespace a = o_proj_combine;
    const int64_t m = p(a::m), kk = p(a::k), kp = up(kk, kLanes), chunk = p(a::chunk), group = p(a::group), d = p(a::head_dim);
    const Rows rows(step, chunk, p(a::batch), p(a::pos_var), vars);
    int64_t* where = reinterpret_cast<int64_t*>(take(2 * p(a::splits) * p(a::blocks)));
    float* x = take(m * kp);
    for (int64_t seq = 0; seq < p(a::batch); ++seq)
      for (int64_t head = 0; head < p(a::n_kv); ++head)
        merge(a::part, seq, head, chunk, group, p(a::n_kv), d, p(a::splits), p(a::blocks), p(a::block), rows, where,
              x + seq * chunk * kp + head * group * d, kp);
    if (mc.fast || kk != kp)
      for (int64_t r = 0; r < m; ++r) k.prepare(x + r * kp, kk, kp, mc.fast, x + r * kp);
    residual(a::h, a::h, p(a::row0), p(a::row1), m, x, kp, kp);
  }

  // A rank's queries, keys and values into its own memory, keys and values into the cache too.
  void rank_qkv() {
    namespace a = amk::rank_qkv;
    const int64_t d = p(a::head_dim), row0 = p(a::row0), row1 = p(a::row1), hidden = p(a::hidden), n = row1 - row0;
    const int64_t q_end = p(a::n_heads) * d, k_end = q_end + p(a::n_kv) * d;
    const Rows rows(step, 1, 1, p(a::pos_var), vars);
    const float* x = normed(a::h, a::norm_w, 1, hidden, real(t.p[a::eps]));
    float *y = take(n), *out = at(a::q) + row0;
    matmul(n, x, up(hidden, kLanes), 1, up(hidden, kLanes), y, n);
    if (!rows.active(0, 0)) {
      std::fill(out, out + n, 0.0f);
      return;
    }
    const int64_t position = rows.position(0, 0);
    const float *cosine = at(a::cos) + position * cols(a::cos), *sine = at(a::sin) + position * cols(a::sin);
    rotate(y, row0, std::min(row1, k_end), d, cosine, sine);
    std::copy(y, y + n, out);
    const int64_t k0 = std::max(row0, q_end), k1 = std::min(row1, k_end), v0 = std::max(row0, k_end);
    if (k0 < k1) append(a::k, position, k0 - q_end, y + (k0 - row0), k1 - k0);
    if (v0 < row1) append(a::v, position, v0 - k_end, y + (v0 - row0), row1 - v0);
  }

  // Attention of some heads over the positions j, j + pieces, ..; the newest key and value come with the queries.
  void rank_attn() {
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

  // Some heads' attention merged, and its dot products over their piece of K.
  void o_part() {
    namespace a = amk::o_part;
    const int64_t d = p(a::head_dim), pieces = p(a::pieces), kk = p(a::k1) - p(a::k0), kp = up(kk, kLanes), row0 = p(a::row0), n = p(a::row1) - row0;
    int64_t* where = reinterpret_cast<int64_t*>(take(2 * pieces));
    float *x = take(kp), *y = take(n);
    for (int64_t j = 0; j < pieces; ++j) where[j] = j * (d + 2);
    for (int64_t i = 0; i < kk / d; ++i) k.combine(at(a::attn) + (p(a::k0) / d + i) * cols(a::attn), where, pieces, d, x + i * d);
    k.prepare(x, kk, kp, mc.fast, x);
    matmul(n, x, kp, 1, kp, y, n);
    std::copy_n(y, n, at(a::out) + p(a::part) * cols(a::out) + row0);
  }

  // Dot products over a piece of K, in the rows of one rank.
  void down_part() {
    namespace a = amk::down_part;
    const int64_t m = p(a::m), k0 = p(a::k0), kk = p(a::k1) - k0, kp = up(kk, kLanes), row0 = p(a::row0), n = p(a::row1) - row0;
    float *x = take(m * kp), *y = take(m * n);
    for (int64_t r = 0; r < m; ++r) k.prepare(at(a::x) + r * cols(a::x) + k0, kk, kp, mc.fast, x + r * kp);
    matmul(n, x, kp, m, kp, y, n);
    for (int64_t r = 0; r < m; ++r) std::copy_n(y + r * n, n, at(a::out) + (p(a::part) * m + r) * cols(a::out) + row0);
  }

  // o_sum and down_sum: the residual stream and the sums of all ranks, which are added in a tree over 16 places.
  void sum() const {
    namespace a = o_sum;
    const int64_t m = p(a::m), n = p(a::n);
    for (int64_t r = 0; r < m; ++r)
      for (int64_t c = p(a::col0); c < p(a::col1); ++c) {
        float lane[kMaxParts] = {};
        for (int64_t j = 0; j < n; ++j) lane[j] = at(a::parts)[(j * m + r) * cols(a::parts) + c];
        for (int off = kMaxParts / 2; off; off /= 2)
          for (int j = 0; j < off; ++j) lane[j] = lane[j] + lane[j + off];
        at(a::out)[r * cols(a::out) + c] = at(a::h)[r * cols(a::h) + c] + lane[0];
      }
  }

  void gate_up() {
    const int64_t m = p(gate_up::m), n = p(gate_up::row1) - p(gate_up::row0), kp = up(p(gate_up::hidden), kLanes);
    const float* x = normed(gate_up::h, gate_up::norm_w, m, p(gate_up::hidden), real(t.p[gate_up::eps]));
    float* y = take(m * 2 * n);
    matmul(2 * n, x, kp, m, kp, y, 2 * n);
    for (int64_t r = 0; r < m; ++r) k.gate(y + r * 2 * n, n, at(gate_up::act) + r * cols(gate_up::act) + p(gate_up::row0));
  }

  void lm_head() {
    const int64_t m = p(lm_head::m), row0 = p(lm_head::row0), n = p(lm_head::row1) - row0, kp = up(p(lm_head::hidden), kLanes);
    const float* x = normed(lm_head::h, lm_head::norm_w, m, p(lm_head::hidden), real(t.p[lm_head::eps]));
    const int64_t ys = cols(lm_head::logits);
    float* y = at(lm_head::logits) + (p(lm_head::ring) == 1 ? step * m : 0) * ys + row0;
    matmul(n, x, kp, m, kp, y, ys);
    if (p(lm_head::amax) < 0) return;
    for (int64_t r = 0; r < m; ++r) {
      float* to = at(lm_head::amax) + r * cols(lm_head::amax) + 2 * p(lm_head::tile);
      const int64_t best = arg_max(y + r * ys, n);
      to[0] = y[r * ys + best];
      to[1] = std::bit_cast<float>(int32_t(row0 + best));
    }
  }

  // Lowest index among equal maxima.
  static int64_t arg_max(const float* x, int64_t n) {
    int64_t best = 0;
    for (int64_t j = 1; j < n; ++j)
      if (x[j] > x[best]) best = j;
    return best;
  }

  int32_t greedy(int64_t seq) const {
    if (p(sample::amax) < 0) return int32_t(arg_max(at(sample::logits) + seq * cols(sample::logits), p(sample::vocab)));
    const float* tiles = at(sample::amax) + seq * cols(sample::amax);
    float top = tiles[0];
    int32_t best = std::bit_cast<int32_t>(tiles[1]);
    for (int64_t j = 1; j < p(sample::tiles); ++j) {
      const int32_t index = std::bit_cast<int32_t>(tiles[2 * j + 1]);
      if (tiles[2 * j] > top || (tiles[2 * j] == top && index < best)) top = tiles[2 * j], best = index;
    }
    return best;
  }

  int32_t draw(int64_t seq, int64_t position, const int32_t* word) const {
    const float temperature = real(word[control::temperature]), top_p = real(word[control::top_p]);
    const float* logits = at(sample::logits) + seq * cols(sample::logits);
    const int64_t vocab = p(sample::vocab), top_k = word[control::top_k];
    const int64_t keep = std::min({vocab, int64_t(kMaxCandidates), top_k > 0 ? top_k : int64_t(kMaxCandidates)});
    // Descending logits, then ascending index, as one integer: order-preserving bits above the complement of the index.
    std::vector<uint64_t> order(static_cast<size_t>(vocab));
    for (int64_t j = 0; j < vocab; ++j) {
      const uint32_t b = bits_of(logits[j] + 0.0f);
      const uint32_t key = logits[j] != logits[j] ? 0 : (b >> 31 ? ~b : b | 0x80000000u);
      order[size_t(j)] = uint64_t(key) << 32 | (0xffffffffu - uint32_t(j));
    }
    std::nth_element(order.begin(), order.begin() + (keep - 1), order.end(), std::greater<>());
    std::sort(order.begin(), order.begin() + keep, std::greater<>());
    auto index = [&](int64_t c) { return int64_t(0xffffffffu - uint32_t(order[size_t(c)])); };

    const float top = logits[index(0)];
    float total = 0.0f;
    std::vector<float> weight(static_cast<size_t>(keep));
    for (int64_t c = 0; c < keep; ++c) {
      weight[size_t(c)] = exp_f32((logits[index(c)] - top) / temperature);
      total = total + weight[size_t(c)];
    }
    int64_t kept = keep;
    if (top_p < 1.0f) {
      float sum = 0.0f;
      for (int64_t c = 0; c < keep; ++c) {
        sum = sum + weight[size_t(c)];
        if (sum >= top_p * total) {
          kept = c + 1;
          break;
        }
      }
    }
    // The noise of a token depends on (seed, position, token) only, so a draw does not change with what else was kept or run.
    const uint32_t key[2] = {uint32_t(word[control::seed_lo]), uint32_t(word[control::seed_hi])};
    int64_t best = index(0);
    float best_value = -std::numeric_limits<float>::infinity();
    for (int64_t c = 0; c < kept; ++c) {
      const uint32_t counter[4] = {uint32_t(position), uint32_t(index(c)), kSampleStream, 0};
      uint32_t random[4];
      philox_4x32(counter, key, random);
      const float value = (logits[index(c)] - top) / temperature + gumbel_f32(random[0]);
      if (value > best_value) best_value = value, best = index(c);
    }
    return int32_t(best);
  }

  void sample() {
    const int64_t m = p(sample::m), n_stop = p(sample::n_stop_ids);
    const Rows rows(step, 1, m, p(sample::pos_var), vars);
    bool all_done = true;
    for (int64_t seq = 0; seq < m; ++seq) {
      int32_t* done = at<int32_t>(sample::done) + seq * cols(sample::done);
      int32_t* token = at<int32_t>(sample::token) + seq * cols(sample::token);
      int32_t* out = at<int32_t>(sample::out) + step * cols(sample::out) + seq;
      if (!rows.active(seq, 0)) {
        *token = kNoToken, *out = kNoToken, *done = *done;
        continue;
      }
      const int32_t* word = at<int32_t>(sample::control) + seq * cols(sample::control);
      const int32_t id = real(word[control::temperature]) > 0.0f ? draw(seq, rows.position(seq, 0), word) : greedy(seq);
      const int32_t* stops = n_stop > 0 ? at<int32_t>(sample::stop_ids) + seq * cols(sample::stop_ids) : nullptr;
      const bool stop = *done != 0 || std::find(stops, stops + n_stop, id) != stops + n_stop;
      *token = id, *out = id, *done = stop;
      all_done = all_done && stop;
    }
    at<int32_t>(sample::stop)[step * cols(sample::stop)] = all_done;
  }

  bool run() {
    switch (t.op) {
      case kEmbed: return embed();
      case kQkv: return qkv(), true;
      case kAttn: return attn();
      case kAttnCombine: return attn_combine(), true;
      case kOProj:
      case kDownProj: return project(), true;
      case kOProjCombine: return o_proj_combine(), true;
      case kGateUp: return gate_up(), true;
      case kLmHead: return lm_head(), true;
      case kSample: return sample(), true;
      case kRankQkv: return rank_qkv(), true;
      case kRankAttn: return rank_attn(), true;
      case kOPart: return o_part(), true;
      case kDownPart: return down_part(), true;
      case kOSum:
      case kDownSum: return sum(), true;
      default: return true;  // refused at load
    }
  }
};

}  // namespace

bool run_body(const Machine& machine, const Task& task, int64_t step, std::span<const int64_t> variables, float* scratch,
              Fault* fault, TagPort* port) {
  if (port && !port->fetch_certain()) return false;
  if (!Body{machine, task, step, variables, scratch, fault, port}.run()) return false;
  if (port) port->publish_certain();
  return true;
}

int buffer_params(int32_t op) {
  static constexpr int kCount[kOpCount] = {0, 3, 8, 5, 2, 4, 3, 4, 4, 5, 8, 3, 3, 3, 3, 8, 4};
  return kCount[op];
}

int weight_param(int32_t op) {
  static constexpr int kIndex[kOpCount] = {-1, -1, qkv::w, -1, -1, o_proj::w, o_proj_combine::w, gate_up::w, down_proj::w,
                                           lm_head::w, -1, o_part::w, down_part::w, -1, -1, rank_qkv::w, -1};
  return kIndex[op];
}

}  // namespace amk
