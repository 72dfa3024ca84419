// Elementary functions with one definition for host and device: IEEE add, mul, fma, div, sqrt and integer operations only, so
// equal inputs give equal bits everywhere.  On the device: -fmad=false -ftz=false -prec-div=true -prec-sqrt=true.  See
// docs/numerics.md.
// Everything is `static`: translation units of different instruction sets must not share one copy.
#pragma once
#include "abi.h"

#if defined(__CUDACC__)
#define AMK_HD static __host__ __device__ __forceinline__
#else
#define AMK_HD static inline __attribute__((always_inline, unused))
#endif

namespace amk {

// While there are no more blocks of positions than these, the task of split 0 does them alone where values are tagged (packed), and no
// partials are handed on: two of the short blocks of long heads take less time than the hand-off.  The bits of the CPU VM do not depend
// on it; on a card the positions are then one block.
AMK_HD constexpr int near_blocks(int head_dim) { return head_dim > 64 ? 2 : 1; }
constexpr int kMostNearBlocks = 2;

AMK_HD float fma_f32(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

AMK_HD float sqrt_f32(float x) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(x);
#else
  return __builtin_sqrtf(x);
#endif
}

AMK_HD uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(uint32_t, x);
#endif
}

AMK_HD float float_of(uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(b);
#else
  return __builtin_bit_cast(float, b);
#endif
}

// e^x: n = round(x / ln 2), r = x - n ln 2 in two steps, e^r = 1 + (r + r^2 P(r)) with P near-minimax of degree 4, scaled by 2^n
// as two factors so that results below the normal range are rounded once.  At most 1.08 ulp on [-87.3, 0] (every
// float of at least 2^-31 in magnitude was tried); 0 below -104, infinity above 88.73; NaN stays NaN.
AMK_HD float exp_f32(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  float c = x < -104.0f ? -104.0f : x;
  c = c > 89.0f ? 89.0f : c;
  const float t = fma_f32(c, 0x1.715476p+0f, magic);
  const float n = t - magic;
  float r = fma_f32(n, -0x1.62e4p-1f, c);
  r = fma_f32(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6d113cp-10f;
  p = fma_f32(p, r, 0x1.120ba2p-7f);
  p = fma_f32(p, r, 0x1.55551ap-5f);
  p = fma_f32(p, r, 0x1.5554dcp-3f);
  p = fma_f32(p, r, 0.5f);
  p = fma_f32(r * r, p, r);
  p = p + 1.0f;
  const int32_t k = (int32_t)(bits_of(t) - 0x4b400000u);
  const int32_t half = k >> 1;
  const float s1 = float_of((uint32_t)(half + 127) << 23);
  const float s2 = float_of((uint32_t)(k - half + 127) << 23);
  return (p * s1) * s2;
}

// Natural logarithm of a positive, normal number: x = 2^e m with m in [sqrt(1/2), sqrt(2)), s = (m-1)/(m+1) in the form f/(2+f),
// log m = 2s + 2s z P(z), z = s^2.  At most 1.94 ulp; anything that is not positive and normal is outside its domain.
AMK_HD float log_f32(float x) {
  const uint32_t b = bits_of(x) - 0x3f3504f3u;  // exponent and mantissa relative to sqrt(1/2)
  const int32_t e = (int32_t)b >> 23;
  const float m = float_of((b & 0x007fffffu) + 0x3f3504f3u);
  const float f = m - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s;
  float p = 0x1.ddd172p-4f;
  p = fma_f32(p, z, 0x1.245c38p-3f);
  p = fma_f32(p, z, 0x1.9999ecp-3f);
  p = fma_f32(p, z, 0x1.555556p-2f);
  const float s2 = s + s;
  const float n = (float)e;
  const float low = fma_f32(s2 * z, p, n * 0x1.7f7d1cp-20f);
  return fma_f32(n, 0x1.62e4p-1f, s2 + low);
}

AMK_HD float silu_f32(float g) { return g / (1.0f + exp_f32(-g)); }

// Round to nearest, ties to even; NaN becomes a quiet NaN of the same sign.
AMK_HD uint16_t bf16_of(float x) {
  const uint32_t b = bits_of(x);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
  const uint32_t nan = (b >> 16) | 0x40u;
  return (uint16_t)((b & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

AMK_HD float f32_of_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }
AMK_HD float round_bf16(float x) { return f32_of_bf16(bf16_of(x)); }

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
AMK_HD void philox_4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// The open unit interval in 2^23 equal cells, each represented by its middle: never 0, never 1, exact in float.
AMK_HD float unit_open(uint32_t random) { return ((float)(random >> 9) + 0.5f) * 0x1p-23f; }

// Standard Gumbel noise: adding it to log-probabilities and taking the maximum draws from the distribution.
AMK_HD float gumbel_f32(uint32_t random) { return -log_f32(-log_f32(unit_open(random))); }

}  // namespace amk
