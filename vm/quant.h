// Quantised weights as the device VM reads them, with one definition for host and device: the value of a weight in the packed bytes
// of docs/quantisation.md (exact mode), and what products of 8-bit integers take (fast mode), by bit operations.
#pragma once
#include "numerics.h"

namespace amk {

// A format as one number: bits * 10000 + group * 10 + kind, plus 5 for scales in bf16, plus a million for activations of 8 bits.
// 0: not quantised.
template <int kCode>
struct QuantFormat {
  enum Kind : int { kSym, kZero, kMin };
  static constexpr int kBits = kCode / 10000 % 100, kGroup = kCode / 10 % 1000, kKind = kCode % 5;
  static constexpr bool kBf16 = kCode % 10 >= 5, kInteger = kCode >= 1000000;  // kInteger: activations of 8 bits
  static_assert(kBits == 8 || kBits == 4, "see amk_core/quant/format.py");
  // The packed bytes.
  static constexpr int kUnitK = kBits == 8 ? 64 : 128, kRecordK = kGroup > kUnitK ? kGroup : kUnitK;
  static constexpr int kEntryBytes = kKind == kSym ? 2 : 4, kCodeBytes = kRecordK / kUnitK * 512;
  static constexpr int kRecordBytes = kCodeBytes + (kGroup ? kRecordK / kGroup * 8 * kEntryBytes : 0);
};

AMK_HD float f32_of_f16(uint16_t h) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
#else
  const uint32_t sign = uint32_t(h >> 15) << 31, exponent = h >> 10 & 31, mantissa = h & 1023;
  if (exponent == 0) return float_of(sign | bits_of(float(mantissa) * 0x1p-24f));
  return float_of(sign | (exponent == 31 ? 255u : exponent + 112) << 23 | mantissa << 13);
#endif
}

template <class F>
AMK_HD float scale_of(uint16_t stored) {
  return F::kBf16 ? f32_of_bf16(stored) : f32_of_f16(stored);
}

// Where a value lies: the codes that its row has in the unit, and its scale.
struct QuantPlace {
  const uint8_t* codes;
  const uint16_t* entry;
};

// Row `row` and value `k` of a tile of rows of K values.
template <class F, int K>
AMK_HD QuantPlace quant_place(const uint8_t* tile, int row, int k) {
  constexpr int kBytes = (K + F::kRecordK - 1) / F::kRecordK * F::kRecordBytes, kWidth = F::kGroup ? F::kGroup : 1;
  const uint8_t* group = tile + int64_t(row / 8) * (kBytes + (F::kGroup ? 0 : 8 * F::kEntryBytes));
  const uint8_t* record = group + k / F::kRecordK * F::kRecordBytes;
  const uint8_t* entries = F::kGroup ? record + F::kCodeBytes + k % F::kRecordK / kWidth * 8 * F::kEntryBytes : group + kBytes;
  return {record + k % F::kRecordK / F::kUnitK * 512 + row % 8 * 64, reinterpret_cast<const uint16_t*>(entries + row % 8 * F::kEntryBytes)};
}

template <class F, int K>
AMK_HD float quant_value(const uint8_t* tile, int row, int k) {
  const QuantPlace at = quant_place<F, K>(tile, row, k);
  float code;
  if (F::kBits == 8) {
    code = float(int8_t(at.codes[k % F::kUnitK]));
  } else {  // nibbles 0 to 3 of eight values are the even ones
    const uint32_t word = reinterpret_cast<const uint32_t*>(at.codes)[k % F::kUnitK / 8];
    code = float(word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15);
  }
  const float scale = scale_of<F>(at.entry[0]);
  if (F::kBits == 8) return code * scale;
  if (F::kKind == F::kSym) return fma_f32(code, scale, -8.0f * scale);
  const float offset = scale_of<F>(at.entry[1]);
  return fma_f32(code, scale, F::kKind == F::kZero ? -offset * scale : offset);
}

// The two factors of that value apart, in formats of 8 bits.
template <class F, int K>
AMK_HD int32_t quant_code(const uint8_t* tile, int row, int k) {
  return int8_t(quant_place<F, K>(tile, row, k).codes[k % F::kUnitK]);
}
template <class F, int K>
AMK_HD float quant_scale(const uint8_t* tile, int row, int k) {
  return scale_of<F>(quant_place<F, K>(tile, row, k).entry[0]);
}

// -- mode `fast`: products of 8-bit integers.  Weights are codes as signed bytes; an activation is an integer of 21 bits and sign, over
// 2^e for the 128 activations that meet one record, in three signed bytes: q = 65536 high + 256 middle + low.

// Bytes 4i .. 4i + 3 of a and b: i = 0 to 7 in four nibbles of `order`, the first in the lowest byte.
AMK_HD uint32_t bytes_of(uint32_t a, uint32_t b, uint32_t order) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, order);
#else
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t n = order >> 4 * i & 7;
    out |= ((n < 4 ? a >> 8 * n : b >> 8 * (n - 4)) & 255u) << 8 * i;
  }
  return out;
#endif
}

// What 128 activations are multiplied by, from the largest of their absolute values as bits, and what a product is multiplied by in turn:
// 2^(147 - e) and 2^(e - 147) for values below 2^(e - 126).  NaN and infinity give NaN.
AMK_HD void integer_scale(uint32_t most, float& up, float& down) {
  uint32_t e = most >> 23;
  const bool finite = e < 255;
  e = e < 21 ? 21 : e;
  up = float_of((274 - e) << 23);
  down = finite ? float_of((e - 20) << 23) : float_of(0x7fc00000u);
}

// Four activations as three words of signed bytes.
AMK_HD void bytes_of_activations(float a, float b, float c, float d, float up, uint32_t& high, uint32_t& middle, uint32_t& low) {
  // 2^23 + 2^22 + 128 * 257 more: bytes 0 and 1 of the sum are those of q plus 128 each, and carry nothing; byte 2 is high + 64.
  constexpr float kBias = 8388608.0f + 4194304.0f + 32896.0f;
  const uint32_t p = bits_of(fma_f32(a, up, kBias)), q = bits_of(fma_f32(b, up, kBias));
  const uint32_t r = bits_of(fma_f32(c, up, kBias)), s = bits_of(fma_f32(d, up, kBias));
  const uint32_t pq = bytes_of(p, q, 0x5140), rs = bytes_of(r, s, 0x5140);
  low = bytes_of(pq, rs, 0x5410) ^ 0x80808080u;
  middle = bytes_of(pq, rs, 0x7632) ^ 0x80808080u;
  high = (bytes_of(bytes_of(p, q, 0x0062), bytes_of(r, s, 0x0062), 0x5410) + 0x40404040u) ^ 0x80808080u;
}

// Eight nibbles as bytes: values 0 to 3 stand in the low nibbles, 4 to 7 in the high ones.  Of `signed_bytes` nibbles are two's
// complement and the bytes 16 times their value.
AMK_HD void signed_bytes(uint32_t word, uint32_t& first, uint32_t& second) {
  first = word << 4 & 0xf0f0f0f0u, second = word & 0xf0f0f0f0u;
}
AMK_HD void plain_bytes(uint32_t word, uint32_t& first, uint32_t& second) {
  first = word & 0x0f0f0f0fu, second = word >> 4 & 0x0f0f0f0fu;
}
// Bytes below 128 less bytes below 128.
AMK_HD uint32_t difference(uint32_t bytes, uint32_t zero) { return ((bytes | 0x80808080u) - zero) ^ 0x80808080u; }

// -- formats with activations of 8 bits, in both modes: a row of activations is integers of 8 bits times one scale, see docs/numerics.md.

// The scale of a row, from the largest of its absolute values as bits; NaN where that is not finite.
AMK_HD float byte_scale(uint32_t most) {
  const float least = 0x1p-126f, wanted = float_of(most) / 127.0f, scale = wanted > least ? wanted : least;
  return most < 0x7f800000u ? scale : float_of(0x7fc00000u);
}

// What the quotients of a row by its scale take, rounded as divisions round them, without a division for each value.
struct ByteScale {
  float up, scale, inverse, rest;  // `up`: a power of two that keeps all below from underflow; 1 / scale in two parts
};
AMK_HD ByteScale bytes_over(uint32_t most) {
  const uint32_t e = most >> 23;
  ByteScale to;
  to.up = e < 64 ? 0x1p64f : (e > 190 ? 0x1p-64f : 1.0f);
  to.scale = byte_scale(most) * to.up;
  to.inverse = 1.0f / to.scale;
  to.rest = fma_f32(-to.inverse, to.scale, 1.0f) * to.inverse;
  return to;
}
// The bits of 1.5 * 2^23 plus the integer of a value: the lowest byte is the signed one.  `first` is off by less than a unit in the last
// place, so its remainder is exact, and a step with the correctly rounded inverse gives the rounded quotient (Markstein 1990).
AMK_HD uint32_t byte_of(const ByteScale& by, float x) {
  x = x * by.up;
  const float first = fma_f32(x, by.inverse, x * by.rest), remainder = fma_f32(-first, by.scale, x);
  return bits_of(fma_f32(remainder, by.inverse, first) + 12582912.0f);
}
AMK_HD uint32_t four_bytes_of(const ByteScale& by, float a, float b, float c, float d) {
  return bytes_of(bytes_of(byte_of(by, a), byte_of(by, b), 0x0040), bytes_of(byte_of(by, c), byte_of(by, d), 0x0040), 0x5410);
}

// A small integer as a float, from its sum with kIntegerBias.
constexpr int32_t kIntegerBias = 0x4b400000;  // the bits of 1.5 * 2^23
AMK_HD float float_of_biased(int32_t x) { return float_of(uint32_t(x)) - 12582912.0f; }

}  // namespace amk
