// One source for the inner loops, instantiated once per instruction set with a vector type V:
//   V::L lanes, V::Reg, zero, load(float*), load(bf16*), store, fma, add, reduce4: four vectors to their four lane trees, and
//   Values<Bits>(scale, offset).of(bytes, p): the p-th L values fma(code, scale, offset) of a row of quantised weights.
// The order of every sum is the numeric plan of docs/numerics.md; vector width and blocking only decide which of the 32 lanes
// are computed together.  Everything here has internal linkage.
#pragma once
#include <cstdint>

#include "abi.h"
#include "cpu_isa.hpp"
#include "numerics.h"
#include "quant.hpp"

namespace amk {
namespace {

template <class V>
struct Ops {
  using Reg = typename V::Reg;
  static constexpr int P = kLanes / V::L;  // vectors that hold the 32 lanes

  // Adds the parts of each of C accumulators: the steps of the tree that are wider than a vector.
  template <int C>
  [[gnu::always_inline]] static inline void fold(Reg (&part)[P][C]) {
#pragma GCC unroll 8
    for (int off = P / 2; off > 0; off /= 2)
#pragma GCC unroll 8
      for (int p = 0; p < off; ++p)
#pragma GCC unroll 32
        for (int c = 0; c < C; ++c) part[p][c] = V::add(part[p][c], part[p + off][c]);
  }

  // Lane sums of R weight rows with M activation rows over n elements; out[r * M + m].  Q of the P parts are computed in one
  // pass, as many as fit the registers.
  template <class W, int R, int M, int Q>
  [[gnu::always_inline]] static inline void panel(const W* w, int64_t ws, const float* x, int64_t xs, int64_t n,
                                                  int64_t ahead, float* out) {
    Reg part[P][R * M];
#pragma GCC unroll 8
    for (int p0 = 0; p0 < P; p0 += Q) {
      Reg acc[Q][R * M];
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q)
#pragma GCC unroll 32
        for (int c = 0; c < R * M; ++c) acc[q][c] = V::zero();
      for (int64_t i = 0; i < n; i += kLanes) {
        if (M == 1)
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const char* next = reinterpret_cast<const char*>(w + r * ws + i) + ahead;
            __builtin_prefetch(next);
            if (sizeof(W) == 4) __builtin_prefetch(next + 64);
          }
#pragma GCC unroll 8
        for (int q = 0; q < Q; ++q) {
          const int64_t at = i + (p0 + q) * V::L;
          Reg wv[R];
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) wv[r] = V::load(w + r * ws + at);
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) {
            const Reg xv = V::load(x + m * xs + at);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) acc[q][r * M + m] = V::fma(wv[r], xv, acc[q][r * M + m]);
          }
        }
      }
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q)
#pragma GCC unroll 32
        for (int c = 0; c < R * M; ++c) part[p0 + q][c] = acc[q][c];
    }
    fold<R * M>(part);
#pragma GCC unroll 32
    for (int c = 0; c < R * M; c += 4)
      V::reduce4(part[0][c], c + 1 < R * M ? part[0][c + 1] : V::zero(), c + 2 < R * M ? part[0][c + 2] : V::zero(),
                 c + 3 < R * M ? part[0][c + 3] : V::zero(), out + c);
  }

  // One block of R rows by M columns over all slices, slice sums added in ascending order.
  template <class W, int R, int M>
  static void block(const W* w, const float* x, int64_t xs, int64_t kp, int64_t ahead, float* y, int64_t ys) {
    constexpr int C = R * M;
    constexpr int Q = C * P <= V::kAccumulators ? P : (P >= 2 && C * 2 <= V::kAccumulators ? 2 : 1);
    float sum[(C + 3) / 4 * 4];
    for (int64_t k0 = 0; k0 < kp; k0 += kSlice) {
      const int64_t n = kp - k0 < kSlice ? kp - k0 : kSlice;
      panel<W, R, M, Q>(w + k0, kp, x + k0, xs, n, ahead, sum);
      for (int m = 0; m < M; ++m)
        for (int r = 0; r < R; ++r) {
          float* to = y + m * ys + r;
          *to = k0 == 0 ? sum[r * M + m] : *to + sum[r * M + m];
        }
    }
  }

  template <class W, int R>
  static void rows(const W* w, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
    int64_t c = 0;
    for (; c + 4 <= m; c += 4) block<W, R, 4>(w, x + c * xs, xs, kp, 0, y + c * ys, ys);
    switch (m - c) {
      case 3: return block<W, R, 3>(w, x + c * xs, xs, kp, 0, y + c * ys, ys);
      case 2: return block<W, R, 2>(w, x + c * xs, xs, kp, 0, y + c * ys, ys);
      case 1: return block<W, R, 1>(w, x + c * xs, xs, kp, 0, y + c * ys, ys);
      default: return;
    }
  }

  template <class W>
  static void matmul(const W* w, int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys) {
    int64_t j = 0;
    if (m == 1) {  // bound by memory: ask for the rows of the next group while this one is summed
      constexpr int R = V::kVectorRows;
      const int64_t ahead = R * kp * int64_t(sizeof(W));
      for (; j + R <= n; j += R) block<W, R, 1>(w + j * kp, x, xs, kp, ahead, y + j, ys);
      for (; j < n; ++j) block<W, 1, 1>(w + j * kp, x, xs, kp, kp * int64_t(sizeof(W)), y + j, ys);
      return;
    }
    for (; j + V::kRows <= n; j += V::kRows) rows<W, V::kRows>(w + j * kp, x, xs, m, kp, y + j, ys);
    for (; j + 2 <= n; j += 2) rows<W, 2>(w + j * kp, x, xs, m, kp, y + j, ys);
    for (; j < n; ++j) rows<W, 1>(w + j * kp, x, xs, m, kp, y + j, ys);
  }

  // A float16 that is finite; shifted into place and scaled by 2^112, subnormals too.
  static float f32_of_f16(uint32_t h) {
    const float magnitude = float_of((h & 0x7fffu) << 13) * 0x1p112f;
    return float_of(bits_of(magnitude) | (h & 0x8000u) << 16);
  }

  // Words: 16-bit words of an entry, the scale and, where there are two, the offset.
  template <int Words, bool Bf16>
  static void tables_of(const PackedRows& g) {
    const bool whole = g.row_scales != nullptr;
    const int per = whole ? 0 : g.record_shift - g.group_shift;  // log2 of the groups in a record
    const int64_t last = (int64_t{1} << per) - 1;
    const float middle = g.bits == 4 ? -8.0f : 0.0f;
    for (int64_t i = 0; i < g.groups; ++i) {
      const uint8_t* record = g.data + (i >> per) * g.record_bytes + g.code_bytes + (i & last) * 8 * g.entry_bytes;
      const auto* entry = reinterpret_cast<const uint16_t*>(whole ? g.row_scales : record);
      float *scale = g.scale + 8 * i, *offset = g.offset + 8 * i;
      for (int r = 0; r < 8; ++r) {
        const uint32_t a = entry[r * Words], b = entry[r * Words + Words - 1];
        const float s = Bf16 ? float_of(a << 16) : f32_of_f16(a), o = Bf16 ? float_of(b << 16) : f32_of_f16(b);
        scale[r] = s;
        offset[r] = Words == 1 ? middle * s : (g.kind == kZero ? -o * s : o);
      }
    }
  }

  static void packed_tables(const PackedRows& g) {
    if (g.kind == kSym)
      g.bf16 ? tables_of<1, true>(g) : tables_of<1, false>(g);
    else
      g.bf16 ? tables_of<2, true>(g) : tables_of<2, false>(g);
  }

  // Where the codes of 32 values from K = i on start in row 0; a row is 64 bytes of its unit.
  template <int Bits>
  static const uint8_t* packed_at(const PackedRows& g, int64_t i) {
    constexpr int64_t kUnit = 512 / Bits;
    const int64_t in_record = i & ((int64_t{1} << g.record_shift) - 1);
    return g.data + (i >> g.record_shift) * g.record_bytes + in_record / kUnit * 512 + in_record % kUnit * Bits / 8;
  }

  template <int Bits, int R>
  [[gnu::always_inline]] static inline void packed_slice(const PackedRows& g, int64_t row, const float* x, int64_t k0, int64_t n,
                                                         float* out) {
    Reg acc[P][R];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) acc[p][r] = V::zero();
    for (int64_t i = k0; i < k0 + n; i += kLanes) {
      const uint8_t* codes = packed_at<Bits>(g, i) + row * 64;
      const int64_t at = (i >> g.group_shift) * 8 + row;
      Reg xv[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) xv[p] = V::load(x + i + p * V::L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename V::template Values<Bits> values(g.scale[at + r], g.offset[at + r]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) acc[p][r] = V::fma(values.of(codes + r * 64, p), xv[p], acc[p][r]);
      }
    }
    fold<R>(acc);
#pragma GCC unroll 8
    for (int r = 0; r < R; r += 4)
      V::reduce4(acc[0][r], r + 1 < R ? acc[0][r + 1] : V::zero(), r + 2 < R ? acc[0][r + 2] : V::zero(),
                 r + 3 < R ? acc[0][r + 3] : V::zero(), out + r);
  }

  template <int Bits, int R>
  static void packed_rows(const PackedRows& g, int64_t row, const float* x, int64_t kp, float* y) {
    float sum[(R + 3) / 4 * 4];
    for (int64_t k0 = 0; k0 < kp; k0 += kSlice) {
      packed_slice<Bits, R>(g, row, x, k0, kp - k0 < kSlice ? kp - k0 : kSlice, sum);
      for (int r = 0; r < R; ++r) y[row + r] = k0 == 0 ? sum[r] : y[row + r] + sum[r];
    }
  }

  template <int Bits>
  static void packed_bits(const PackedRows& g, int64_t rows, const float* x, int64_t kp, float* y) {
    constexpr int R = V::kAccumulators / P >= 8 ? 8 : (V::kAccumulators / P >= 2 ? 2 : 1);
    int64_t row = 0;
    for (; row + R <= rows; row += R) packed_rows<Bits, R>(g, row, x, kp, y);
    for (; row < rows; ++row) packed_rows<Bits, 1>(g, row, x, kp, y);
  }

  static void packed_product(const PackedRows& g, int64_t rows, const float* x, int64_t kp, float* y) {
    g.bits == 8 ? packed_bits<8>(g, rows, x, kp, y) : packed_bits<4>(g, rows, x, kp, y);
  }

  template <int Bits>
  static void expand_bits(const PackedRows& g, int64_t rows, int64_t kp, float* w) {
    for (int64_t i = 0; i < kp; i += kLanes) {
      const uint8_t* codes = packed_at<Bits>(g, i);
      const int64_t at = (i >> g.group_shift) * 8;
      for (int64_t r = 0; r < rows; ++r) {
        const typename V::template Values<Bits> values(g.scale[at + r], g.offset[at + r]);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) V::store(w + r * kp + i + p * V::L, values.of(codes + r * 64, p));
      }
    }
  }

  static void packed_expand(const PackedRows& g, int64_t rows, int64_t kp, float* w) {
    g.bits == 8 ? expand_bits<8>(g, rows, kp, w) : expand_bits<4>(g, rows, kp, w);
  }

  static float integer_row(const float* x, int64_t kp, int16_t* q) {
    uint32_t most = 0;  // of the bits without the sign, which are in the order of the magnitudes, NaN above all
    for (int64_t i = 0; i < kp; ++i) {
      const uint32_t b = bits_of(x[i]) & 0x7fffffffu;
      most = b > most ? b : most;
    }
    if (most >= 0x7f800000u) {
      for (int64_t i = 0; i < kp; ++i) q[i] = 0;
      return float_of(0x7fc00000u);
    }
    const float least = 0x1p-126f, wanted = float_of(most) / 127.0f, scale = wanted > least ? wanted : least;
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: what is added and taken away again leaves an integer, ties to even
    for (int64_t i = 0; i < kp; ++i) q[i] = int16_t(int32_t((x[i] / scale + kRound) - kRound));
    return scale;
  }

  typedef int8_t Bytes16 [[gnu::vector_size(16)]];
  typedef int16_t Words16 [[gnu::vector_size(32)]];
  typedef int32_t Sums16 [[gnu::vector_size(64)]];

  // R rows: two products of codes fit a word of 16 bits, all of a row (kMostIntegerK) one of 32.
  template <int R>
  [[gnu::always_inline]] static inline void integer_rows(const PackedRows& g, int64_t row, const int16_t* q, int64_t kp,
                                                         float* total) {
    const int64_t width = g.group_shift < 62 ? int64_t{1} << g.group_shift : kp;
    for (int r = 0; r < R; ++r) total[r] = 0.0f;
    for (int64_t i = 0; i < kp; i += width) {
      Sums16 acc[R] = {};
      for (int64_t k = i; k < kp && k < i + width; k += kLanes) {
        const uint8_t* codes = packed_at<8>(g, k) + row * 64;
        Words16 q0, q1;
        __builtin_memcpy(&q0, q + k, sizeof q0);
        __builtin_memcpy(&q1, q + k + 16, sizeof q1);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          Bytes16 w0, w1;
          __builtin_memcpy(&w0, codes + r * 64, sizeof w0);
          __builtin_memcpy(&w1, codes + r * 64 + 16, sizeof w1);
          acc[r] += __builtin_convertvector(
              __builtin_convertvector(w0, Words16) * q0 + __builtin_convertvector(w1, Words16) * q1, Sums16);
        }
      }
      for (int r = 0; r < R; ++r) {
        int32_t sum = 0;
        for (int l = 0; l < 16; ++l) sum += acc[r][l];
        total[r] = fma_f32(float(sum), g.scale[(i >> g.group_shift) * 8 + row + r], total[r]);
      }
    }
  }

  static void integer_product(const PackedRows& g, int64_t rows, const int16_t* q, int64_t kp, float scale, float* y) {
    constexpr int R = 4;  // eight rows are always there: packed ones are padded
    float total[R];
    for (int64_t row = 0; row < rows; row += R) {
      integer_rows<R>(g, row, q, kp, total);
      for (int64_t r = row; r < rows && r < row + R; ++r) y[r] = total[r - row] * scale;
    }
  }

  static void rmsnorm(const float* h, const float* w, int64_t k, int64_t kp, float eps, bool round, float* y) {
    for (int64_t i = 0; i < k; ++i) y[i] = h[i];
    for (int64_t i = k; i < kp; ++i) y[i] = 0.0f;
    float ss;
    block<float, 1, 1>(y, y, kp, kp, 0, &ss, 1);
    const float inv = 1.0f / sqrt_f32(ss / float(k) + eps);
    for (int64_t i = 0; i < k; ++i) y[i] = w[i] * (y[i] * inv);
    if (round)
      for (int64_t i = 0; i < k; ++i) y[i] = round_bf16(y[i]);
  }

  static void prepare(const float* x, int64_t k, int64_t kp, bool round, float* y) {
    if (round)
      for (int64_t i = 0; i < k; ++i) y[i] = round_bf16(x[i]);
    else
      for (int64_t i = 0; i < k; ++i) y[i] = x[i];
    for (int64_t i = k; i < kp; ++i) y[i] = 0.0f;
  }

  static void expand_bf16(const uint16_t* x, int64_t k, int64_t kp, float* y) {
    for (int64_t i = 0; i < k; ++i) y[i] = f32_of_bf16(x[i]);
    for (int64_t i = k; i < kp; ++i) y[i] = 0.0f;
  }

  static void scores(const float* q, const float* k, int64_t ks, int64_t n, int64_t dp, float scale, float* s) {
    int64_t j = 0;
    constexpr int R = 4;
    constexpr int Q = P < 4 ? P : 2;
    float sum[R];
    for (; j + R <= n; j += R) {
      panel<float, R, 1, Q>(k + j * ks, ks, q, 0, dp, 0, sum);
      for (int r = 0; r < R; ++r) s[j + r] = sum[r] * scale;
    }
    for (; j < n; ++j) {
      panel<float, 1, 1, Q>(k + j * ks, ks, q, 0, dp, 0, sum);
      s[j] = sum[0] * scale;
    }
  }

  static void softmax_block(float* s, int64_t n, float* out) {
    constexpr int kWide = 16;  // the maximum does not depend on the order, so it is taken lane by lane
    float lanes[kWide];
    for (int l = 0; l < kWide; ++l) lanes[l] = s[0];
    int64_t done = 0;
    for (; done + kWide <= n; done += kWide)
      for (int l = 0; l < kWide; ++l) lanes[l] = s[done + l] > lanes[l] ? s[done + l] : lanes[l];
    float m = lanes[0];
    for (int l = 1; l < kWide; ++l) m = lanes[l] > m ? lanes[l] : m;
    for (; done < n; ++done) m = s[done] > m ? s[done] : m;
    m = m + 0.0f;  // a maximum of zeros is +0, whatever the signs
    const int64_t padded = (n + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = 0; j < n; ++j) s[j] = exp_f32(s[j] - m);
    for (int64_t j = n; j < padded; ++j) s[j] = 0.0f;
    Reg lane[P][1];
    for (int p = 0; p < P; ++p) lane[p][0] = V::zero();
    for (int64_t j = 0; j < padded; j += kLanes)
      for (int p = 0; p < P; ++p) lane[p][0] = V::add(lane[p][0], V::load(s + j + p * V::L));
    fold<1>(lane);
    float sum[4];
    V::reduce4(lane[0][0], V::zero(), V::zero(), V::zero(), sum);
    out[0] = m, out[1] = sum[0];
  }

  // R rows of probabilities by E vectors of the head.
  template <int R, int E>
  [[gnu::always_inline]] static inline void weigh(const float* p, int64_t ps, const float* v, int64_t vs, int64_t n, float* o,
                                                  int64_t os) {
    Reg acc[R][E];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int e = 0; e < E; ++e) acc[r][e] = V::zero();
    for (int64_t j = 0; j < n; ++j) {
      Reg vv[E];
#pragma GCC unroll 8
      for (int e = 0; e < E; ++e) vv[e] = V::load(v + j * vs + e * V::L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Reg pr = V::broadcast(p[r * ps + j]);
#pragma GCC unroll 8
        for (int e = 0; e < E; ++e) acc[r][e] = V::fma(pr, vv[e], acc[r][e]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int e = 0; e < E; ++e) V::store(o + r * os + e * V::L, acc[r][e]);
  }

  template <int R>
  static void weigh_rows(const float* p, int64_t ps, const float* v, int64_t vs, int64_t n, int64_t d, float* o, int64_t os) {
    int64_t e = 0;
    for (; e + 4 * V::L <= d; e += 4 * V::L) weigh<R, 4>(p, ps, v + e, vs, n, o + e, os);
    for (; e + V::L <= d; e += V::L) weigh<R, 1>(p, ps, v + e, vs, n, o + e, os);
    for (; e < d; ++e)
      for (int r = 0; r < R; ++r) {
        float acc = 0.0f;
        for (int64_t j = 0; j < n; ++j) acc = fma_f32(p[r * ps + j], v[j * vs + e], acc);
        o[r * os + e] = acc;
      }
  }

  static void weighted_sum(const float* p, int64_t ps, int64_t rows, const float* v, int64_t vs, int64_t n, int64_t d, float* o,
                           int64_t os) {
    constexpr int R = V::kHeadRows;
    int64_t r = 0;
    for (; r + R <= rows; r += R) weigh_rows<R>(p + r * ps, ps, v, vs, n, d, o + r * os, os);
    for (; r < rows; ++r) weigh_rows<1>(p + r * ps, ps, v, vs, n, d, o + r * os, os);
  }

  static void combine(const float* part, const int64_t* where, int64_t blocks, int64_t d, float* out) {
    float top = part[where[0]];
    for (int64_t b = 1; b < blocks; ++b) top = part[where[b]] > top ? part[where[b]] : top;
    float total = 0.0f;
    for (int64_t e = 0; e < d; ++e) out[e] = 0.0f;
    for (int64_t b = 0; b < blocks; ++b) {
      const float* from = part + where[b];
      const float a = exp_f32(from[0] - top);
      total = fma_f32(a, from[1], total);
      for (int64_t e = 0; e < d; ++e) out[e] = fma_f32(a, from[2 + e], out[e]);
    }
    for (int64_t e = 0; e < d; ++e) out[e] = out[e] / total;
  }

  static void gate(const float* gu, int64_t n, float* out) {
    for (int64_t j = 0; j < n; ++j) out[j] = silu_f32(gu[2 * j]) * gu[2 * j + 1];
  }

  static void add(float* h, const float* y, int64_t n) {
    for (int64_t j = 0; j < n; ++j) h[j] = h[j] + y[j];
  }

  static void exp_all(const float* x, int64_t n, float* y) {
    for (int64_t j = 0; j < n; ++j) y[j] = exp_f32(x[j]);
  }

  static constexpr Kernels table(const char* name) {
    return {name,   matmul<float>, matmul<uint16_t>, packed_tables, packed_product, packed_expand, integer_row, integer_product, rmsnorm, prepare, expand_bf16, scores, softmax_block, weighted_sum,
            combine, gate,          add,              exp_all};
  }
};

}  // namespace
}  // namespace amk
