// How the weights of the fast matrix product lie in a slot of the ring, and what a lane takes of them.
//
// Stored (bf16): a unit is 8 rows x 32 values of K, 512 bytes.  Quantised: a unit is a record of 8 rows x 128 values, 512 bytes of
// 4-bit codes or twice 512 of 8-bit ones, behind them the scales [group][row of 8], and the offsets likewise.  Lane (g, t) owns, as
// of four stored units, values 32 s + 8 t .. + 8 of row g, for s = 0 to 3.
//
// Codes meet activations as signed bytes: an activation is three of them, three rows of a product that would be idle, so a group's sum
// is exact, and is multiplied by its scale in fp32.  In formats with activations of 8 bits it is one byte, and a product has 16 rows of them.
#pragma once
#include "common.cuh"
#include "quant.h"
#include "ring.cuh"

#ifndef AMK_LAYER_FORMAT  // QuantFormat's number of the layers' matrices and of the LM head; 0: bf16, in exact mode float
#define AMK_LAYER_FORMAT 0
#define AMK_HEAD_FORMAT 0
#endif

namespace amk {

__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(  // 16x8x16 tensor-core product, fp32 accumulation
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

struct StoredWeights {
  static constexpr bool kQuantised = false, kInteger = false;
  static constexpr int kUnits = 1, kLoads = 1, kBytes = kUnitBytes;  // units of 32 values in a record, 16-byte loads of a lane
  static constexpr int kSlot = kSlotUnits, kPiece = kPieceUnits;     // records of a slot, of a piece
  static constexpr int kWords = 4, kStageBytes = 64;                 // registers of a record; activations of a row that meet it
  using Record = uint4;
  static __device__ __forceinline__ Record none() { return make_uint4(0, 0, 0, 0); }
  static __device__ __forceinline__ Record load(const uint8_t* from, int) { return *reinterpret_cast<const uint4*>(from); }
};

#if AMK_QUANT
__device__ __forceinline__ void mma_s8(int32_t (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm volatile(  // 16x8x32 tensor-core product of signed bytes
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}
// The first product of a sum, which starts at `bias`.
__device__ __forceinline__ void mma_s8_from(int32_t bias, int32_t (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1), "r"(bias));
}

// What products of bytes and codes add up to: with one scale a row integers, with scales of groups floats.
template <bool kWhole>
struct ByteSum {
  using Type = float;
};
template <>
struct ByteSum<true> {
  using Type = int32_t;
};

template <int kCode>
struct QuantWeights {
  using F = QuantFormat<kCode>;
  static constexpr bool kQuantised = true, kInteger = F::kInteger;  // kInteger: activations are bytes, see integer_rows.cuh
  using Sum = typename ByteSum<kInteger && F::kGroup == 0>::Type;
  static __device__ __forceinline__ uint32_t word(int32_t sum) { return uint32_t(sum); }
  static __device__ __forceinline__ uint32_t word(float sum) { return bits_of(sum); }
  static constexpr int kUnits = 4, kLoads = F::kBits == 8 ? 2 : 1, kCodeBytes = 512 * kLoads;
  static constexpr int kGroup = F::kGroup ? F::kGroup : 128, kGroups = 128 / kGroup;  // the scale of a row is repeated
  static constexpr bool kOffsets = F::kKind != F::kSym;
  static constexpr float kCodeScale = F::kBits == 4 && !kOffsets ? 0.0625f : 1.0f;  // see signed_bytes
  static constexpr int kBytes = kCodeBytes + kGroups * 16 * (kOffsets ? 2 : 1);
  static constexpr int kSlot = kSlotUnits / kLoads, kPiece = kQuantPiece / kLoads, kWords = 4 * kLoads + kGroups * (kOffsets ? 2 : 1);
  static constexpr int kStageBytes = kInteger ? 256 : 400;  // activations of a row that meet one record: IntegerRows, or Limbs
  static constexpr bool kAsRows = AMK_PAIRS;  // weights are the rows of products, not the columns

  // What a lane holds of a record: codes of row g; scales, and minima, of rows 2t and 2t + 1, where weights are the rows of a product
  // of row g; the zero points of row g in all bytes.
  struct Record {
    uint4 codes[kLoads];
    uint32_t scale[kGroups], offset[kOffsets ? kGroups : 1];
  };
  static __device__ __forceinline__ Record none() {
    Record to;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) to.codes[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      to.scale[i] = 0;
      if (kOffsets) to.offset[i] = 0;
    }
    return to;
  }
  // `from`: the lane's 16 bytes of the first codes.
  static __device__ __forceinline__ Record load(const uint8_t* from, int lane) {
    Record to;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) to.codes[i] = *reinterpret_cast<const uint4*>(from + i * 512);
    const uint8_t* entries = from - lane * 16 + kCodeBytes;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      to.scale[i] = entry<kAsRows>(entries + i * 16, lane);
      const uint8_t* offset = entries + (kGroups + i) * 16;
      if (F::kKind == F::kZero) to.offset[i] = entry<true>(offset, lane) * 0x01010101u;
      if (F::kKind == F::kMin) to.offset[i] = entry<kAsRows>(offset, lane);
    }
    return to;
  }
  // Of eight rows: that of row g, or those of rows 2t and 2t + 1.
  template <bool kOne>
  static __device__ __forceinline__ uint32_t entry(const uint8_t* eight, int lane) {
    if constexpr (kOne) return *reinterpret_cast<const uint16_t*>(eight + lane / 4 * 2);
    return *reinterpret_cast<const uint32_t*>(eight + lane % 4 * 4);
  }

  // Values 32 s + 8 t .. + 8 of row g, as signed bytes.
  static __device__ __forceinline__ void decode(const Record& from, int s, uint32_t& first, uint32_t& second) {
    const uint4 c = from.codes[kLoads == 2 ? s / 2 : 0];
    if constexpr (F::kBits == 8) {
      first = s % 2 ? c.z : c.x, second = s % 2 ? c.w : c.y;
    } else {
      const uint32_t word = s == 0 ? c.x : (s == 1 ? c.y : (s == 2 ? c.z : c.w));
      if constexpr (F::kKind == F::kSym) {
        signed_bytes(word, first, second);
      } else {
        plain_bytes(word, first, second);
        if (F::kKind == F::kZero) first = difference(first, from.offset[s * 32 / kGroup]), second = difference(second, from.offset[s * 32 / kGroup]);
      }
    }
  }
  static __device__ __forceinline__ float2 both(uint32_t stored) {
    return make_float2(scale_of<F>(uint16_t(stored)), scale_of<F>(uint16_t(stored >> 16)));
  }

  // total[outputs 2t and 2t + 1] += factor * scale * sum of code * activation, group by group, for the activations of one limb of one
  // row, which is g: `x` as staged, values of even units in rows 0 to 7 of the product and of odd ones in rows 8 to 15, so that
  // of each product one half of the sums is of use.
  static __device__ __forceinline__ void add(float (&total)[2], const Record& w, const uint32_t (&b)[4][2], const uint4 (&x)[2], float factor) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      int32_t even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0}, sum[4] = {0, 0, 0, 0};
#pragma unroll
      for (int s = group * kGroup / 32; s < (group + 1) * kGroup / 32; ++s) {
        if (s % 2 == 0) mma_s8(even, x[s / 2], b[s][0], b[s][1]);
        if (s % 2 == 1) mma_s8(odd, x[s / 2], b[s][0], b[s][1]);
        if (F::kKind == F::kMin && (s % 2 == 0 || kGroups == 4)) mma_s8(sum, x[s / 2], 0x01010101u, 0x01010101u);
      }
      constexpr bool kOne = kGroups == 4;  // the group is one unit: even or odd
      const float2 scale = both(w.scale[group]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32_t dot = kOne ? (group % 2 ? odd[2 + i] : even[i]) : even[i] + odd[2 + i];
        total[i] = fma_f32(float_of_biased(dot + kIntegerBias), (i ? scale.y : scale.x) * factor, total[i]);
      }
      if constexpr (F::kKind == F::kMin) {  // a minimum counts once for each activation
        const float2 minimum = both(w.offset[group]);
        const int32_t all = kOne ? sum[group % 2 * 2] : sum[0] + sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) total[i] = fma_f32(float_of_biased(all + kIntegerBias), (i ? minimum.y : minimum.x) * factor, total[i]);
      }
    }
  }

  // The same of two records with weights as the rows of the product, those of the first record before those of the second, and limbs as
  // its columns: total[record][limb 2t or 2t + 1] of row g.  No sum is idle, and each has the bits that `add` gives it.
  static __device__ __forceinline__ void add_rows(float (&total)[2][2], const Record& w0, const Record& w1, const uint4 (&x)[2], float2 factor) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      int32_t dot[4], sum[4];
#pragma unroll
      for (int i = 0; i < kGroup / 32; ++i) {
        const int s = group * kGroup / 32 + i;
        uint4 a;
        decode(w0, s, a.x, a.z);
        decode(w1, s, a.y, a.w);
        const uint32_t b0 = s % 2 ? x[s / 2].z : x[s / 2].x, b1 = s % 2 ? x[s / 2].w : x[s / 2].y;
        if (i == 0) mma_s8_from(kIntegerBias, dot, a, b0, b1);
        if (i > 0) mma_s8(dot, a, b0, b1);
        if constexpr (F::kKind == F::kMin) {  // a minimum counts once for each activation
          const uint4 ones = make_uint4(0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u);
          if (i == 0) mma_s8_from(kIntegerBias, sum, ones, b0, b1);
          if (i > 0) mma_s8(sum, ones, b0, b1);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Record& w = r ? w1 : w0;
        const float scale = scale_of<F>(uint16_t(w.scale[group]));
        total[r][0] = fma_f32(float_of_biased(dot[2 * r]), scale * factor.x, total[r][0]);
        total[r][1] = fma_f32(float_of_biased(dot[2 * r + 1]), scale * factor.y, total[r][1]);
        if constexpr (F::kKind == F::kMin) {
          const float minimum = scale_of<F>(uint16_t(w.offset[group]));
          total[r][0] = fma_f32(float_of_biased(sum[2 * r]), minimum * factor.x, total[r][0]);
          total[r][1] = fma_f32(float_of_biased(sum[2 * r + 1]), minimum * factor.y, total[r][1]);
        }
      }
    }
  }

  // total[outputs 2t and 2t + 1 of rows g and g + 8 of the activations] += sum of code * byte, of groups times their scales, ascending.
  // `low`, `high`: what the lane has of the two rows, 16 bytes of two units each.
  static __device__ __forceinline__ void add_bytes(Sum (&total)[4], const Record& w, const uint4 (&low)[2], const uint4 (&high)[2]) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      int32_t dot[4];
#pragma unroll
      for (int i = 0; i < kGroup / 32; ++i) {
        const int s = group * kGroup / 32 + i;
        const uint4 a = low[s / 2], b = high[s / 2];
        const uint4 x = s % 2 ? make_uint4(a.z, b.z, a.w, b.w) : make_uint4(a.x, b.x, a.y, b.y);
        uint32_t first, second;
        decode(w, s, first, second);
        if constexpr (F::kGroup == 0) {
          mma_s8(total, x, first, second);
        } else {
          if (i == 0) mma_s8_from(kIntegerBias, dot, x, first, second);
          if (i > 0) mma_s8(dot, x, first, second);
        }
      }
      if constexpr (F::kGroup != 0) {
        const float2 scale = both(w.scale[group]);
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = fma_f32(float_of_biased(dot[i]), i % 2 ? scale.y : scale.x, total[i]);
      }
    }
  }
};

// The activations of one row that meet one record, in shared memory: [two units][high, middle, low][t][16 bytes], so that a lane's
// 16 bytes are the rows of an integer product (even units: words 0 and 2) or the columns of two (words 0 and 1 of the first), and behind
// them what a product is multiplied by.
struct Limbs {
  static constexpr int kHalfBytes = 192, kScaleAt = 384;
  // Attention and gate outputs are handed on as pairs of bf16 where they are tagged, as floats else: one value for both.
  static __device__ __forceinline__ float4 of_pairs(uint32_t a, uint32_t b) {
    return make_float4(float_of(a << 16), float_of(a & 0xffff0000u), float_of(b << 16), float_of(b & 0xffff0000u));
  }
  static __device__ __forceinline__ float4 of_floats(float4 v) { return of_pairs(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)); }

  // Bits of the largest of four values; of a warp's, by all lanes.
  static __device__ __forceinline__ uint32_t largest(float4 v) {
    auto size = [](float x) { return bits_of(x) & 0x7fffffffu; };
    const uint32_t a = size(v.x) > size(v.y) ? size(v.x) : size(v.y), b = size(v.z) > size(v.w) ? size(v.z) : size(v.w);
    return a > b ? a : b;
  }
  static __device__ __forceinline__ uint32_t most(float4 v) { return __reduce_max_sync(~0u, largest(v)); }
  // Values 4q .. 4q + 3 of unit s, for q = lane % 8 and s = lane / 8; kHalves: 2q, 2q + 1, 2q + 16 and 2q + 17.  kColumns: as the columns
  // of products.
  template <bool kHalves, bool kColumns = false>
  static __device__ __forceinline__ void put(uint8_t* to, int lane, float4 v, uint32_t most) {
    float up, down;
    integer_scale(most, up, down);
    uint32_t limb[3];
    bytes_of_activations(v.x, v.y, v.z, v.w, up, limb[0], limb[1], limb[2]);
    const int s = lane / 8, q = lane % 8;
    constexpr int kOdd = kColumns ? 8 : 4, kNext = 12 - kOdd;  // bytes to the odd unit; to the other four of a lane's eight values
    uint8_t* half = to + s / 2 * kHalfBytes + s % 2 * kOdd;
    auto place = [&](int quad) { return half + quad / 2 * 16 + quad % 2 * kNext; };
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if constexpr (kHalves) {
        *reinterpret_cast<uint16_t*>(place(q / 2) + i * 64 + q % 2 * 2) = uint16_t(limb[i]);
        *reinterpret_cast<uint16_t*>(place(q / 2 + 4) + i * 64 + q % 2 * 2) = uint16_t(limb[i] >> 16);
      } else {
        *reinterpret_cast<uint32_t*>(place(q) + i * 64) = limb[i];
      }
    }
    if (lane == 0) *reinterpret_cast<float*>(to + kScaleAt) = down;
  }
  // Lane (g, t) of a pair of rows: limb g % 4 of row g / 4; the fourth is idle, its factor is 0.
  static __device__ __forceinline__ const uint8_t* of(const uint8_t* record, int lane) {
    const int limb = lane / 4 % 4;
    return record + (limb < 2 ? limb : 2) * 64 + lane % 4 * 16;
  }
  static __device__ __forceinline__ float weight(int lane, float scale) { return weight_of(lane / 4 % 4, scale); }
  static __device__ __forceinline__ float weight_of(int limb, float scale) {
    return limb == 3 ? 0.0f : (limb == 0 ? 65536.0f : (limb == 1 ? 256.0f : 1.0f)) * scale;
  }
};
#endif

template <int kCode>
struct WeightsOf {
#if AMK_QUANT
  using Type = QuantWeights<kCode>;
#endif
};
template <>
struct WeightsOf<0> {
  using Type = StoredWeights;
};
using LayerWeights = WeightsOf<AMK_LAYER_FORMAT>::Type;
using HeadWeights = WeightsOf<AMK_HEAD_FORMAT>::Type;

}  // namespace amk
