// The ops of the tables: what is looked up, turned and appended; the order of all of them.
#include "cpu_ops.hpp"

#include <algorithm>
#include <bit>

#include "cpu_body.hpp"
#include "numerics.h"

namespace amk {

bool Body::embed() {
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

void Body::append(int buffer, int64_t row, int64_t col, const float* from, int64_t n) const {
  const int64_t to = row * cols(buffer) + col;
  if (bf16(buffer))
    for (int64_t i = 0; i < n; ++i) at<uint16_t>(buffer)[to + i] = bf16_of(from[i]);
  else
    for (int64_t i = 0; i < n; ++i) at(buffer)[to + i] = from[i];
}

// Pairs of queries and keys, rows row0 to row1 of all of them, turned by their angles; the values of row0 are the first of `y`.
void Body::rotate(float* y, int64_t row0, int64_t row1, int64_t d, const float* cosine, const float* sine) {
  for (int64_t row = row0; row < row1; row += 2) {
    const int64_t i = row % d / 2;  // sections start on multiples of d
    const float a = y[row - row0], b = y[row - row0 + 1];
    const float a_cos = a * cosine[i], b_sin = b * sine[i], b_cos = b * cosine[i], a_sin = a * sine[i];
    y[row - row0] = a_cos - b_sin;
    y[row - row0 + 1] = b_cos + a_sin;
  }
}

void Body::qkv() {
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

// A rank's queries, keys and values into its own memory, keys and values into the cache too.
void Body::rank_qkv() {
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

void Body::lm_head() {
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

bool Body::run() {
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
