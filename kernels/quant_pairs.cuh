// Quantised weights from the ring, two row groups at a time, for one row of activations: what gemv_quant.cuh does between two reductions.
//
// A slot of the ring holds pairs of row groups whole, or a piece of each of a pair side by side, so that there is one wait and one
// release a slot, and every load of a step is issued at once, without branches: of a row group that is not there another one's bytes
// are read, and its sum is not taken.  Weights are the rows of integer products, both row groups in one product; in products of several
// rows they are the columns.  The sums are the same, bit for bit.
#pragma once
#include "activations.cuh"
#include "ring.cuh"
#include "weights.cuh"

#if AMK_PAIRS
namespace amk {
static_assert(kRows == 1, "pairs of row groups meet one row of activations");

// Out of line, with its patience: the way of a slot that has landed stays short.
__device__ __noinline__ void await_slot(int slot, uint32_t parity) { barrier_wait(&ring.full[slot], parity); }

template <int K, class W>
struct PairStream {
  using S = Slices<K, W>;
  static constexpr bool kLong = S::kRecords > W::kPiece;  // pieces of a pair, a slot each
  static constexpr int kPieces = (S::kRecords + W::kPiece - 1) / W::kPiece;
  static constexpr int kLoads = kLong ? W::kPiece / kWarps : S::kPerWarp;  // of a warp's records of a row group in a step
  static constexpr int kSlotPairs = kLong ? 1 : W::kSlot / (2 * S::kRecords);
  static constexpr int kAhead = kSlotPairs % 2 == 0 && kLoads * W::kWords <= 12 ? 2 : 1;  // pairs of a step
  static constexpr int kSteps = kSlotPairs / kAhead, kGroups = 2 * kAhead;                // steps of a slot, row groups of a step
  static constexpr bool kHeld = !kLong && S::kPerWarp <= 4;  // a lane's activations stay in registers
  static constexpr bool kWhole = S::kRecords % (kLong ? W::kPiece : kWarps) == 0;  // no load is for some warps only
  static_assert(S::kFlush % kGroups == 0, "a step does not reach over a reduction");

  struct Activations {
    uint4 x[2];
    float2 factor;  // of limbs 2t and 2t + 1
  };
  typename W::Record w[kAhead][2][kLoads];
  Activations held[kHeld ? kLoads : 1];
  RingCursor cursor;
  const uint8_t* slot = nullptr;
  int in_slot = 0;  // steps of the slot already read

  static __device__ __forceinline__ bool there(const Context c, int piece, int i) {
    return kWhole || piece * W::kPiece + c.warp + kWarps * i < S::kRecords;
  }
  // The weights of the step that begins with this row group of `groups`, in registers.
  __device__ __forceinline__ void load(const Context c, int group, int piece, int groups) {
    if (kSteps == 1 || in_slot == 0) {
      if (!barrier_try(&ring.full[cursor.slot], cursor.parity)) await_slot(cursor.slot, cursor.parity);
      slot = cursor.data();
    }
    const int left = S::kRecords - piece * W::kPiece;
    const int second = (kLong && left > W::kPiece ? W::kPiece : left) * W::kBytes;
#pragma unroll
    for (int m = 0; m < kAhead; ++m) {
      const int pair = kSteps * kAhead == 1 ? 0 : (in_slot * kAhead + (group + 2 * m < groups ? m : 0)) * (2 * S::kRecords * W::kBytes);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const uint8_t* from = slot + pair + (there(c, piece, i) ? (c.warp + kWarps * i) * W::kBytes : 0) + c.lane * 16;
        w[m][0][i] = W::load(from, c.lane);
        w[m][1][i] = W::load(from + (group + 2 * m + 1 < groups ? second : 0), c.lane);
      }
    }
    if (kSteps == 1 || ++in_slot == kSteps || group + kGroups >= groups) {
      cursor.release(c.warp, c.lane);
      in_slot = 0;
    }
  }

  static __device__ __forceinline__ Activations fetch(const Context c, const uint8_t* staged, bool exists, int j) {
    const uint8_t* record = staged + (exists ? j : 0) * W::kStageBytes;
    const uint8_t* from = Limbs::of(record, c.lane);
    const float down = exists ? *reinterpret_cast<const float*>(record + Limbs::kScaleAt) : 0.0f;
    const float2 weight = make_float2(Limbs::weight_of(c.lane % 2 * 2, W::kCodeScale), Limbs::weight_of(c.lane % 2 * 2 + 1, W::kCodeScale));
    return Activations{{*reinterpret_cast<const uint4*>(from), *reinterpret_cast<const uint4*>(from + Limbs::kHalfBytes)},
                       make_float2(down * weight.x, down * weight.y)};
  }
  __device__ __forceinline__ void hold(const Context c, const uint8_t* staged) {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) held[i] = fetch(c, staged, there(c, 0, i), i);
    }
  }

  // Row groups [g0, g1) of `groups`: this warp's sums to `red`, eight a row group.
  __device__ __forceinline__ void multiply(const Context c, const uint8_t* staged, int g0, int g1, int groups, float* red) {
#pragma unroll 1
    for (int group = g0; group < g1; group += kGroups) {
      float total[kAhead][2][2];
#pragma unroll
      for (int i = 0; i < kAhead * 4; ++i) total[i / 4][i / 2 % 2][i % 2] = 0.0f;
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const Activations a = kHeld ? held[kHeld ? i : 0] : fetch(c, staged, there(c, piece, i), piece * kLoads + i);
#pragma unroll
          for (int m = 0; m < kAhead; ++m) W::add_rows(total[m], w[m][0][i], w[m][1][i], a.x, a.factor);
        }
        const bool last = piece + 1 == kPieces;
        if (!last || group + kGroups < groups) load(c, last ? group + kGroups : group, last ? 0 : piece + 1, groups);
      }
      const int g = c.lane >> 2, t = c.lane & 3;
#pragma unroll
      for (int a = 0; a < kGroups; ++a) {
        const float* y = total[a / 2][a % 2];
        float* to = red + (group - g0 + a) * 8;
        float sum = y[0] + y[1];  // lane (g, t) has limbs 2t and 2t + 1 of row g: (high + middle) + (low + nothing)
        sum = sum + __shfl_xor_sync(~0u, sum, 1);
        if (t == 0 && group + a < g1) to[g] = sum;
      }
    }
  }
};

}  // namespace amk
#endif
