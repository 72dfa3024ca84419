// How the weights of the fast matrix product lie in a slot of the ring, and what a lane takes of them.
//
// Stored (bf16): a unit is 8 rows x 32 values of K, 512 bytes.  Quantised: a unit is a record of 8 rows x 128 values, 512 bytes of
// 4-bit codes or twice 512 of 8-bit ones, behind them the scales [group][row of 8], and the offsets likewise: minima, or 128 + zero
// point as bf16.  Lane (g, t) owns, as of four stored units, values 32 s + 8 t .. + 8 of row g, for s = 0 to 3.
//
// Codes are exact in bf16, so tensor cores sum code * activation; a group's sum is multiplied by its scale in fp32.
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
  static constexpr bool kQuantised = false;
  static constexpr int kUnits = 1, kLoads = 1, kBytes = kUnitBytes;  // units of 32 values in a record, 16-byte loads of a lane
  static constexpr int kSlot = kSlotUnits, kPiece = kPieceUnits, kWords = 4;  // records of a slot, of a piece; registers of a record
  using Record = uint4;
  static __device__ __forceinline__ void clear(Record& to) { to = make_uint4(0, 0, 0, 0); }
  static __device__ __forceinline__ void load(Record& to, const uint8_t* from, int) { to = *reinterpret_cast<const uint4*>(from); }
};

#if AMK_QUANT
template <int kCode>
struct QuantWeights {
  using F = QuantFormat<kCode>;
  static constexpr bool kQuantised = true;
  static constexpr int kUnits = 4, kLoads = F::kBits == 8 ? 2 : 1, kCodeBytes = 512 * kLoads;
  static constexpr int kGroup = F::kGroup ? F::kGroup : 128, kGroups = 128 / kGroup, kGroupUnits = kGroup / 32;  // a row's scale is repeated
  static constexpr bool kOffsets = F::kKind != F::kSym;
  static constexpr int kBytes = kCodeBytes + kGroups * 16 * (kOffsets ? 2 : 1);
  static constexpr int kSlot = kSlotUnits / kLoads, kPiece = kQuantPiece / kLoads, kWords = 4 * kLoads + kGroups * (kOffsets ? 2 : 1);

  // What a lane holds of a record: codes of row g; scales, and minima, of rows 2t and 2t + 1; zero points of row g, twice.
  struct Record {
    uint4 codes[kLoads];
    uint32_t scale[kGroups], offset[kOffsets ? kGroups : 1];
  };
  static __device__ __forceinline__ void clear(Record& to) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) to.codes[i] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      to.scale[i] = 0;
      if (kOffsets) to.offset[i] = 0;
    }
  }
  // `from`: the lane's 16 bytes of the first codes.
  static __device__ __forceinline__ void load(Record& to, const uint8_t* from, int lane) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) to.codes[i] = *reinterpret_cast<const uint4*>(from + i * 512);
    const uint8_t* entries = from - lane * 16 + kCodeBytes;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      to.scale[i] = *reinterpret_cast<const uint32_t*>(entries + i * 16 + lane % 4 * 4);
      const uint8_t* offset = entries + (kGroups + i) * 16;
      if (F::kKind == F::kZero) to.offset[i] = *reinterpret_cast<const uint16_t*>(offset + lane / 4 * 2) * 0x10001u;
      if (F::kKind == F::kMin) to.offset[i] = *reinterpret_cast<const uint32_t*>(offset + lane % 4 * 4);
    }
  }

  // Eight values of unit s of the record, row g, as pairs.
  static __device__ __forceinline__ void decode(const Record& from, int s, uint32_t (&out)[4]) {
    const uint4 c = from.codes[kLoads == 2 ? s / 2 : 0];
    if constexpr (F::kBits == 8) {
      pairs_of_bytes(s % 2 ? c.z : c.x, out[0], out[1]);
      pairs_of_bytes(s % 2 ? c.w : c.y, out[2], out[3]);
    } else {
      pairs_of_nibbles(s == 0 ? c.x : (s == 1 ? c.y : (s == 2 ? c.z : c.w)),
                       F::kKind == F::kSym ? k128 + 0x00080008u : (F::kKind == F::kZero ? from.offset[s / kGroupUnits] : k128), out);
    }
  }
  static __device__ __forceinline__ float2 both(uint32_t stored) {
    return make_float2(scale_of<F>(uint16_t(stored)), scale_of<F>(uint16_t(stored >> 16)));
  }

  // total[row of the activations][output] += scale * sum of code * activation, group by group.  `fragment(s, low, high)` gives the
  // activations of unit s.
  template <class Fragment>
  static __device__ __forceinline__ void add(float (&total)[4], const Record& w, Fragment fragment) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      float even[4] = {0.0f, 0.0f, 0.0f, 0.0f}, odd[4] = {0.0f, 0.0f, 0.0f, 0.0f}, plain[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int s = group * kGroupUnits; s < (group + 1) * kGroupUnits; ++s) {
        uint4 x, y;
        uint32_t b[4];
        fragment(s, x, y);
        decode(w, s, b);
        mma_bf16(even, x.x, y.x, x.y, y.y, b[0], b[1]);
        mma_bf16(odd, x.z, y.z, x.w, y.w, b[2], b[3]);
        if constexpr (F::kKind == F::kMin) {  // a minimum counts once for each activation
          mma_bf16(plain, x.x, y.x, x.y, y.y, 0x3f803f80u, 0x3f803f80u);
          mma_bf16(plain, x.z, y.z, x.w, y.w, 0x3f803f80u, 0x3f803f80u);
        }
      }
      const float2 scale = both(w.scale[group]);
#pragma unroll
      for (int i = 0; i < 4; ++i) total[i] = fma_f32(i % 2 ? scale.y : scale.x, even[i] + odd[i], total[i]);
      if constexpr (F::kKind == F::kMin) {
        const float2 minimum = both(w.offset[group]);
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = fma_f32(i % 2 ? minimum.y : minimum.x, plain[i], total[i]);
      }
    }
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
