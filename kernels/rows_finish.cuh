// The last part of a product of several rows of marked values: the warps' sums together, the norm, and what becomes of an output.
//
// One after the other, rounds of outputs were a chain of loads, exchanges and a square root each, twice a pair of row groups with 16
// rows: 31 us of a step of 925.  The sums are those of `joined` in gemv_fast.cuh, in the same order.
#pragma once
#include "gemv_fast.cuh"

#if AMK_MARKED
namespace amk {

// Finishes the outputs of the row groups from `g0` on: `red` has their sums, a plane a warp, for (output, activation row) pairs.  A
// thread has outputs of one activation row alone, whose factor of the norm it works out once; its rounds go side by side.
template <int K, int kRounds, class Source>
__device__ __forceinline__ void finish_outputs(const Context c, const Source& source, const Finish& finish, const float* red, int g0, int items,
                                               float& factor, const float2 (&pre)[kRounds]) {
  constexpr int kItemRows = kTileRows * 8;  // pairs of a row group
  static_assert(kItems % kItemRows == 0, "the pairs of a thread are of one activation row");
  const int part = c.thread % kParts, item = c.thread / kParts, r = item / 8 % kTileRows;
  if (Source::kNormed && g0 == 0) {  // in the order of `joined`
    float mean = 0.0f;
    if (r < kRows) {
      const float4 s = *reinterpret_cast<const float4*>(FastWork::squares() + r * kWarps + part * 4);
      mean = (s.x + s.y) + (s.z + s.w);
    }
#pragma unroll
    for (int off = 1; off < kParts; off <<= 1) mean = mean + __shfl_xor_sync(~0u, mean, off);
    factor = rsqrt_fast(mean * (1.0f / float(K)) + source.eps);
  }
  float sum[kRounds], other[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const float* f = red + part * (4 * kRedPlane) + item + i * kItems;
    sum[i] = item + i * kItems < items ? (f[0] + f[kRedPlane]) + (f[2 * kRedPlane] + f[3 * kRedPlane]) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
#pragma unroll
    for (int off = 1; off < kParts; off <<= 1) sum[i] = sum[i] + __shfl_xor_sync(~0u, sum[i], off);
    if constexpr (Source::kNormed) sum[i] = sum[i] * factor;
    other[i] = __shfl_xor_sync(~0u, sum[i], kParts);
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int q = item + i * kItems, local = (g0 + q / kItemRows) * 8 + (q & 7);
    const bool there = q < items && local < finish.n && r < kRows;
    if (finish.kind == Finish::kGate) {  // all threads alike
      const float mine = Finish::gate(sum[i], other[i]), next = __shfl_down_sync(~0u, mine, 2 * kParts);
      if (there && c.thread % (4 * kParts) == 0) finish.store_gates(c, local, r, mine, next);
    } else if (there && c.thread % (2 * kParts) == 0) {
      finish.apply(c, local, r, sum[i], other[i], g0 == 0 || finish.kind == Finish::kRotate ? pre[i] : finish.prefetch(c, local, r));
    }
  }
}

}  // namespace amk
#endif
