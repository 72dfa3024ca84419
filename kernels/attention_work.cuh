// What the fast attention of short and of long heads shares: the work area in shared memory, loads of keys and values, halves of floats.
#pragma once
#include "common.cuh"

namespace amk {

struct AttentionWork {
  static constexpr int kRowsOf = kChunk * kGroup, kQueryRows = kRowsOf > 8 ? 16 : 8;  // rows of a tile
  static constexpr int kOutRows = kRowsOf < kQueryRows ? kRowsOf : kQueryRows;        // that exist
  static constexpr int kOctets = kQueryRows / 8;
  static constexpr int kQueryStride = kHeadDim + 8, kOutStride = kHeadDim + 4;
  uint16_t* query[2];  // [kQueryRows][kQueryStride], value and rest; of long heads side by side
  uint16_t* newest;    // [2][kHeadDim], tagged: key and value of this step
  float2* stats;       // [kQueryRows][kWarps], {maximum, sum} of a warp's positions
  float* out;          // [kWarps][kOutRows][kOutStride], products of a warp's positions
  __device__ __forceinline__ explicit AttentionWork(uint8_t* work) {
    query[0] = reinterpret_cast<uint16_t*>(work), query[1] = query[0] + kQueryRows * kQueryStride;
    newest = query[1] + kQueryRows * kQueryStride;
    stats = reinterpret_cast<float2*>(newest + 2 * kHeadDim), out = reinterpret_cast<float*>(stats + kQueryRows * kWarps);
  }
  // Of long heads: pairs of values and of rests in turns, rows 16 bytes of banks apart.
  __device__ __forceinline__ uint16_t* queries(int r) const { return query[0] + r * (2 * kHeadDim + 8); }
  __host__ __device__ static constexpr int bytes() {
    return (2 * kQueryRows * kQueryStride + 2 * kHeadDim) * 2 + kQueryRows * kWarps * 8 + kWarps * kOutRows * kOutStride * 4;
  }
};
static_assert(kExact || AttentionWork::bytes() <= kWorkBytes, "the work area is too small for attention");
static_assert(kExact || kHeadDim % 32 == 0, "fast attention takes head dimensions that are multiples of 32");

__device__ __forceinline__ uint2 split_bf16(float a, float b) {  // {values, rests} of two floats
  const uint32_t value = pack_bf16(a, b);
  return make_uint2(value, pack_bf16(a - float_of(value << 16), b - float_of(value & 0xffff0000u)));
}

// Keys and values are mutable: L2 loads, never the read-only path.
__device__ __forceinline__ uint4 load_shared_u32x4(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

// Lane (g, t) holds row g, columns 2t and 2t + 1 of an 8 x 8 tile of bf16; after it, rows 2t and 2t + 1 of column g.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));  // between the lanes of a warp
  return y;
}
__device__ __forceinline__ uint32_t word_of(const uint4& v, int j) { return j == 0 ? v.x : (j == 1 ? v.y : (j == 2 ? v.z : v.w)); }

// Scores of a warp's positions, rows g and g + 8, to probabilities under the warp's own maximum, which it leaves with their sum.
template <int kOctets, int kTiles>
__device__ __forceinline__ void probabilities(const AttentionWork& work, const float (&s)[kOctets][kTiles * 2], uint2 (&p)[kOctets][kTiles],
                                              int warp, int g, int t) {
#pragma unroll
  for (int h = 0; h < kOctets; ++h) {
    float top = s[h][0];
#pragma unroll
    for (int k = 1; k < 2 * kTiles; ++k) top = fmaxf(top, s[h][k]);
#pragma unroll
    for (int off = 1; off < 4; off <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, off));
    const float zero = top == kMinusInfinity ? 0.0f : top;  // a row that sees none of these positions
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      const float a = exp_fast(s[h][2 * u] - zero), b = exp_fast(s[h][2 * u + 1] - zero);
      sum = sum + a;
      sum = sum + b;
      p[h][u] = split_bf16(a, b);
    }
#pragma unroll
    for (int off = 1; off < 4; off <<= 1) sum = sum + __shfl_xor_sync(~0u, sum, off);
    if (t == 0) work.stats[(g + 8 * h) * kWarps + warp] = make_float2(top, sum);
  }
}

}  // namespace amk
