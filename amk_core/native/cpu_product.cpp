// Products of activations with a weight tile, quantised or not, and the ops that are little else.
#include <algorithm>
#include <bit>

#include "cpu_body.hpp"

namespace amk {

void Body::matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
  if (t.quant.integer)
    integer_matmul(n, x, xs, m, kp, y, ys);
  else if (t.quant.bits)
    packed_matmul(n, x, xs, m, kp, y, ys);
  else if (mc.tape_bf16)
    k.matmul_bf16(static_cast<const uint16_t*>(t.weight), n, x, xs, m, kp, y, ys);
  else
    k.matmul_f32(static_cast<const float*>(t.weight), n, x, xs, m, kp, y, ys);
}

PackedRows Body::packed(int64_t row, float* scale, float* offset) const {
  const QuantFormat& f = t.quant;
  const auto* data = static_cast<const uint8_t*>(t.weight) + row / kGroupRows * f.group_bytes(t.weight_k);
  return {data, f.bits, f.record_bytes(), f.code_bytes(), f.entry_bytes(), std::countr_zero(uint64_t(f.record_k())),
          f.group ? std::countr_zero(uint64_t(f.group)) : 62, f.groups(t.weight_k),
          f.group ? nullptr : data + f.records(t.weight_k) * f.record_bytes(), f.kind, f.bf16, scale, offset};
}

// Integers of 8 bits on both sides, one activation row at a time.
void Body::integer_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
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
void Body::packed_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
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
float* Body::normed(int h, int norm_w, int64_t m, int64_t hidden, float eps) {
  const int64_t kp = up(hidden, kLanes);
  float* x = take(m * kp);
  for (int64_t r = 0; r < m; ++r) k.rmsnorm(at(h) + r * cols(h), at(norm_w), hidden, kp, eps, mc.fast, x + r * kp);
  return x;
}

// dot products of all rows with the tile added to h, into out.
void Body::residual(int h, int out, int64_t row0, int64_t row1, int64_t m, const float* x, int64_t xs, int64_t kp) {
  const int64_t n = row1 - row0;
  float* y = take(m * n);
  matmul(n, x, xs, m, kp, y, n);
  for (int64_t r = 0; r < m; ++r) {
    float* to = at(out) + r * cols(out) + row0;
    if (at(out) != at(h)) std::copy_n(at(h) + r * cols(h) + row0, n, to);
    k.add(to, y + r * n, n);
  }
}

// o_proj and down_proj have the same parameters in the same places.
void Body::project() {
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

void Body::o_proj_combine() {
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

// Some heads' attention merged, and its dot products over their piece of K.
void Body::o_part() {
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
void Body::down_part() {
  namespace a = amk::down_part;
  const int64_t m = p(a::m), k0 = p(a::k0), kk = p(a::k1) - k0, kp = up(kk, kLanes), row0 = p(a::row0), n = p(a::row1) - row0;
  float *x = take(m * kp), *y = take(m * n);
  for (int64_t r = 0; r < m; ++r) k.prepare(at(a::x) + r * cols(a::x) + k0, kk, kp, mc.fast, x + r * kp);
  matmul(n, x, kp, m, kp, y, n);
  for (int64_t r = 0; r < m; ++r) std::copy_n(y + r * n, n, at(a::out) + (p(a::part) * m + r) * cols(a::out) + row0);
}

// o_sum and down_sum: the residual stream and the sums of all ranks, which are added in a tree over 16 places.
void Body::sum() const {
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

void Body::gate_up() {
  const int64_t m = p(gate_up::m), n = p(gate_up::row1) - p(gate_up::row0), kp = up(p(gate_up::hidden), kLanes);
  const float* x = normed(gate_up::h, gate_up::norm_w, m, p(gate_up::hidden), real(t.p[gate_up::eps]));
  float* y = take(m * 2 * n);
  matmul(2 * n, x, kp, m, kp, y, 2 * n);
  for (int64_t r = 0; r < m; ++r) k.gate(y + r * 2 * n, n, at(gate_up::act) + r * cols(gate_up::act) + p(gate_up::row0));
}

}  // namespace amk
