// lm_head's argmax over its own tile, and block-wide reductions that the sampler shares.  Lowest index among equal maxima.
#pragma once
#include "common.cuh"

namespace amk {

struct Best {
  float value;
  int32_t index;
};
__device__ __forceinline__ bool better(const Best& a, const Best& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The best of a warp; every lane gets it.
__device__ __forceinline__ Best warp_best(Best mine) {
#pragma unroll
  for (int off = 16; off > 0; off >>= 1) {
    const Best other{__shfl_xor_sync(~0u, mine.value, off), __shfl_xor_sync(~0u, mine.index, off)};
    if (better(other, mine)) mine = other;
  }
  return mine;
}

// The best of all task threads; every thread gets it.  `scratch`: kWarps entries of shared memory.
__device__ __noinline__ Best block_best(const Context c, Best mine, Best* scratch) {
  mine = warp_best(mine);
  sync_tasks();
  if (c.lane == 0) scratch[c.warp] = mine;
  sync_tasks();
  mine = scratch[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w)
    if (better(scratch[w], mine)) mine = scratch[w];
  return mine;
}

constexpr int32_t kNoIndex = 0x7fffffff;

// Runs behind the tile's logits (same CTA): leaves {maximum, index} of each row in amax.
__device__ __noinline__ void tile_argmax(const Context c, const float* logits) {
  const int row0 = c.p(lm_head::row0), n = c.p(lm_head::row1) - row0;
  auto put = [&](int r, Best best) {
    if (best.index == kNoIndex) best.index = row0;
    float* to = c.at(lm_head::amax) + r * c.p(kStrideWord) + 2 * c.p(lm_head::tile);
    to[0] = best.value, to[1] = __int_as_float(best.index);
  };
  if constexpr (kRows > 1 && !kExact) {  // a warp a row, without barriers
    constexpr int kAtOnce = 8;
    for (int r = c.warp; r < kRows; r += kWarps) {
      const float* from = logits + int64_t(r) * kVocab + row0;
      Best mine{kMinusInfinity, kNoIndex};
      for (int j0 = c.lane; j0 < n; j0 += 32 * kAtOnce) {
        float v[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) v[i] = j0 + 32 * i < n ? load_shared_f32(from + j0 + 32 * i) : kMinusInfinity;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const Best x{v[i], row0 + j0 + 32 * i};
          if (j0 + 32 * i < n && better(x, mine)) mine = x;
        }
      }
      mine = warp_best(mine);
      if (c.lane == 0) put(r, mine);
    }
    return;
  }
  Best* scratch = reinterpret_cast<Best*>(c.work());
  for (int r = 0; r < kRows; ++r) {
    Best mine{kMinusInfinity, kNoIndex};
    for (int j = c.thread; j < n; j += kThreads) {
      const Best x{load_shared_f32(logits + int64_t(r) * kVocab + row0 + j), row0 + j};
      if (better(x, mine)) mine = x;
    }
    mine = block_best(c, mine, scratch);
    if (c.thread == 0) put(r, mine);
  }
}

}  // namespace amk
