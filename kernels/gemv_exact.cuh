// Matrix times activations in the order of docs/numerics.md: 32 lanes, slices of 1024 values, the tree over the lanes, slice sums
// ascending.  One warp computes two neighbouring rows for up to kTokens activation rows at a time; activations stand in shared
// memory, weights (float, row-major, K padded to the lanes; or the packed bytes of docs/quantisation.md) are read straight from the tape.
#pragma once
#include "combine.cuh"
#include "common.cuh"
#include "finish.cuh"
#include "weights.cuh"

namespace amk {

constexpr int kTokens = kRows < 4 ? kRows : 4;

template <int K>
__host__ __device__ constexpr int exact_tokens() {  // activation rows that fit the work area together
  constexpr int fit = (kWorkBytes - 1024) / (up(K, kLanes) * 4);
  return fit < kTokens ? fit : kTokens;
}

// Fills x[t][up(K, 32)] for rows r0 + t.  `square_sums` is scratch of one float a slice.
template <int K>
struct ExactPlain {
  const float* x;
  __device__ __forceinline__ void fill(const Context c, float* to, int r, float*) const {
    for (int i = c.thread; i < up(K, kLanes); i += kThreads) to[i] = i < K ? load_shared_f32(x + int64_t(r) * K + i) : 0.0f;
  }
};

template <int K>
struct ExactNorm {
  const float *h, *weight;
  float eps;
  __device__ __forceinline__ void fill(const Context c, float* to, int r, float* sums) const {
    constexpr int kp = up(K, kLanes), kSlices = (kp + kSlice - 1) / kSlice;
    for (int i = c.thread; i < kp; i += kThreads) to[i] = i < K ? load_shared_f32(h + int64_t(r) * K + i) : 0.0f;
    sync_tasks();
    for (int s = c.warp; s < kSlices; s += kWarps) {
      float acc = 0.0f;
      for (int i = s * kSlice + c.lane; i < kp && i < (s + 1) * kSlice; i += kLanes) acc = fma_f32(to[i], to[i], acc);
      acc = tree_sum(acc);
      if (c.lane == 0) sums[s] = acc;
    }
    sync_tasks();
    float ss = sums[0];
    for (int s = 1; s < kSlices; ++s) ss = ss + sums[s];
    const float inv = 1.0f / sqrt_f32(ss / float(K) + eps);
    for (int i = c.thread; i < K; i += kThreads) to[i] = weight[i] * (to[i] * inv);
    sync_tasks();
  }
};

struct ExactCombine {
  Partials partials;
  int pos_var;
  __device__ __forceinline__ void fill(const Context c, float* to, int r, float*) const {
    const bool on = c.active(pos_var, r);
    const int n = on ? c.position(pos_var, r) / kBlock + 1 : 0;
    for (int i = c.thread; i < up(kQSize, kLanes); i += kThreads)
      to[i] = on && i < kQSize ? merge_exact(partials, partials.row(r, i / kHeadDim), n, i % kHeadDim) : 0.0f;
  }
};

// Formats with activations of 8 bits: `tokens` rows of x become integers in their places, `most` the largest absolute values before that.
template <int K>
__device__ __forceinline__ void rows_to_integers(const Context c, float* x, int tokens, uint32_t* most) {
  constexpr int kp = up(K, kLanes);
  for (int t = c.warp; t < tokens; t += kWarps) {
    uint32_t mine = 0;
    for (int i = c.lane; i < kp; i += kLanes) {
      const uint32_t size = bits_of(x[t * kp + i]) & 0x7fffffffu;
      mine = size > mine ? size : mine;
    }
    mine = __reduce_max_sync(~0u, mine);
    if (c.lane == 0) most[t] = mine;
  }
  sync_tasks();
  for (int t = 0; t < tokens; ++t) {
    const ByteScale by = bytes_over(most[t]);
    for (int i = c.thread; i < kp; i += kThreads) x[t * kp + i] = float_of(uint32_t(int32_t(int8_t(byte_of(by, x[t * kp + i])))));
  }
  sync_tasks();
}

// Two rows of the tile times T rows of integers, without the scales of those: sums of groups are exact, groups ascending.
template <int K, class F, int T>
__device__ __forceinline__ void integer_dots(const uint8_t* tile, const int (&row)[2], const float* x, int lane, float (&y)[2][T]) {
  constexpr int kp = up(K, kLanes), kWidth = F::kGroup ? F::kGroup : kp;
#pragma unroll
  for (int i = 0; i < 2 * T; ++i) y[i / T][i % T] = 0.0f;
  for (int k0 = 0; k0 < kp; k0 += kWidth) {
    int32_t sum[2][T] = {};
    for (int k = k0 + lane; k < kp && k < k0 + kWidth; k += kLanes) {
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int32_t code = quant_code<F, K>(tile, row[a], k);
#pragma unroll
        for (int t = 0; t < T; ++t) sum[a][t] += code * int32_t(bits_of(x[t * kp + k]));
      }
    }
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      const float scale = quant_scale<F, K>(tile, row[a], k0);
#pragma unroll
      for (int t = 0; t < T; ++t) y[a][t] = fma_f32(float(__reduce_add_sync(~0u, sum[a][t])), scale, y[a][t]);
    }
  }
}

template <int K, class W = LayerWeights, class Source>
__device__ __forceinline__ void gemv_exact(const Context c, const Source& source, const Finish& finish) {
  constexpr int kp = up(K, kLanes), T = exact_tokens<K>();
  static_assert(T >= 1, "one activation row does not fit the work area");
  float* sums = reinterpret_cast<float*>(c.work());
  float* x = sums + 256;
  const float* weights = reinterpret_cast<const float*>(shared.task[c.turn].weight);
  const int rows = finish.n;
#if AMK_QUANT
  auto weight = [&](int row, const float* stored, int k) {
    if constexpr (W::kQuantised) return k < K ? quant_value<typename W::F, K>(reinterpret_cast<const uint8_t*>(weights), row, k) : 0.0f;
    return __ldcs(stored + k);
  };
#endif
  for (int r0 = 0; r0 < kRows; r0 += T) {
    const int tokens = kRows - r0 < T ? kRows - r0 : T;
    for (int t = 0; t < T; ++t) {
      if (t < tokens)
        source.fill(c, x + t * kp, r0 + t, sums);
      else
        for (int i = c.thread; i < kp; i += kThreads) x[t * kp + i] = 0.0f;
    }
    sync_tasks();
    [[maybe_unused]] uint32_t* most = reinterpret_cast<uint32_t*>(sums);
    if constexpr (W::kInteger) rows_to_integers<K>(c, x, tokens, most);
    for (int pair = c.warp; 2 * pair < rows; pair += kWarps) {
      const float* w0 = weights + int64_t(2 * pair) * kp;
      const float* w1 = 2 * pair + 1 < rows ? w0 + kp : w0;
      float y[2][T];
      if constexpr (W::kInteger) {
        const int row[2] = {2 * pair, 2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair};
        integer_dots<K, typename W::F>(reinterpret_cast<const uint8_t*>(weights), row, x, c.lane, y);
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const float scale = t < tokens ? byte_scale(most[t]) : 0.0f;
          y[0][t] = y[0][t] * scale, y[1][t] = y[1][t] * scale;
        }
      }
      for (int k0 = W::kInteger ? kp : 0; k0 < kp; k0 += kSlice) {
        const int n = kp - k0 < kSlice ? kp - k0 : kSlice;
        float acc[2][T];
#pragma unroll
        for (int t = 0; t < T; ++t) acc[0][t] = acc[1][t] = 0.0f;
#pragma unroll 8
        for (int i = c.lane; i < n; i += kLanes) {
#if AMK_QUANT
          const float a = weight(2 * pair, w0, k0 + i), b = weight(2 * pair + 1 < rows ? 2 * pair + 1 : 2 * pair, w1, k0 + i);
#else
          const float a = __ldcs(w0 + k0 + i), b = __ldcs(w1 + k0 + i);
#endif
#pragma unroll
          for (int t = 0; t < T; ++t) {
            const float v = x[t * kp + k0 + i];
            acc[0][t] = fma_f32(a, v, acc[0][t]);
            acc[1][t] = fma_f32(b, v, acc[1][t]);
          }
        }
#pragma unroll
        for (int t = 0; t < T; ++t) {
          const float s0 = tree_sum(acc[0][t]), s1 = tree_sum(acc[1][t]);
          y[0][t] = k0 == 0 ? s0 : y[0][t] + s0;
          y[1][t] = k0 == 0 ? s1 : y[1][t] + s1;
        }
      }
#pragma unroll
      for (int t = 0; t < T; ++t)
        if (c.lane == t && t < tokens) finish.apply(c, 2 * pair, r0 + t, y[0][t], y[1][t], finish.prefetch(c, 2 * pair, r0 + t));
    }
    sync_tasks();
  }
}

}  // namespace amk
