// Quantised weights as the device VM reads them, with one definition for host and device: the value of a weight in the packed bytes
// of docs/quantisation.md (exact mode), and codes as pairs of bf16 from the records of the fast tape, by bit operations.
#pragma once
#include "numerics.h"

namespace amk {

// A format as one number: bits * 10000 + group * 10 + kind, plus 5 for scales in bf16.  0: not quantised.
template <int kCode>
struct QuantFormat {
  enum Kind : int { kSym, kZero, kMin };
  static constexpr int kBits = kCode / 10000, kGroup = kCode / 10 % 1000, kKind = kCode % 5;
  static constexpr bool kBf16 = kCode % 10 >= 5;
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

// Row `row` and value `k` of a tile of rows of K values.
template <class F, int K>
AMK_HD float quant_value(const uint8_t* tile, int row, int k) {
  constexpr int kRecords = (K + F::kRecordK - 1) / F::kRecordK;
  constexpr int kGroupBytes = kRecords * F::kRecordBytes + (F::kGroup ? 0 : 8 * F::kEntryBytes);
  const uint8_t* group = tile + int64_t(row / 8) * kGroupBytes;
  const uint8_t* record = group + k / F::kRecordK * F::kRecordBytes;
  const uint8_t* codes = record + k % F::kRecordK / F::kUnitK * 512 + row % 8 * 64;
  float code;
  if (F::kBits == 8) {
    code = float(int8_t(codes[k % F::kUnitK]));
  } else {  // nibbles 0 to 3 of eight values are the even ones
    const uint32_t word = reinterpret_cast<const uint32_t*>(codes)[k % F::kUnitK / 8];
    code = float(word >> (k % 2 * 16 + k % 8 / 2 * 4) & 15);
  }
  const uint8_t* entries = F::kGroup ? record + F::kCodeBytes + k % F::kRecordK / (F::kGroup ? F::kGroup : 1) * 8 * F::kEntryBytes
                                     : group + kRecords * F::kRecordBytes;
  const uint16_t* entry = reinterpret_cast<const uint16_t*>(entries + row % 8 * F::kEntryBytes);
  const float scale = scale_of<F>(entry[0]);
  if (F::kBits == 8) return code * scale;
  if (F::kKind == F::kSym) return fma_f32(code, scale, -8.0f * scale);
  const float offset = scale_of<F>(entry[1]);
  return fma_f32(code, scale, F::kKind == F::kZero ? -offset * scale : offset);
}

// -- the records of the fast tape (amk_core/vm/device_tape.py)

// Differences of two pairs of bf16; exact for small integers.
AMK_HD uint32_t minus_bf16x2(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
  return d;
#else
  const uint32_t low = bits_of(f32_of_bf16(uint16_t(a)) - f32_of_bf16(uint16_t(b))) >> 16;
  return low | (bits_of(f32_of_bf16(uint16_t(a >> 16)) - f32_of_bf16(uint16_t(b >> 16))) & 0xffff0000u);
#endif
}

// 128 + n for n below 128 is 0x4300 + n in bf16.
constexpr uint32_t k128 = 0x43004300u;

// Eight codes of a word, less `zero` (a pair of 128 + zero), as pairs of neighbours.
AMK_HD void pairs_of_nibbles(uint32_t word, uint32_t zero, uint32_t (&out)[4]) {
  out[0] = minus_bf16x2((word & 0x000f000fu) | k128, zero);
  out[1] = minus_bf16x2((word >> 4 & 0x000f000fu) | k128, zero);
  out[2] = minus_bf16x2((word >> 8 & 0x000f000fu) | k128, zero);
  out[3] = minus_bf16x2((word >> 12 & 0x000f000fu) | k128, zero);
}

// Four signed bytes of a word, in the order 0, 2, 1, 3: the low seven bits less 128 where the eighth is set.
AMK_HD void pairs_of_bytes(uint32_t word, uint32_t& first, uint32_t& second) {
  const uint32_t odd = word >> 8;
  first = minus_bf16x2((word & 0x007f007fu) | k128, (word & 0x00800080u) | k128);
  second = minus_bf16x2((odd & 0x007f007fu) | k128, (odd & 0x00800080u) | k128);
}

}  // namespace amk
