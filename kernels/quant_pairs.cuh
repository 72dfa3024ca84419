// Quantised weights from the ring, two row groups at a time, for one row of activations: what gemv_quant.cuh does between two reductions.
//
// A slot of the ring holds pairs of row groups whole, or a piece of each of a pair side by side, so that there is one wait and one
// release a slot, and every load of a step is issued at once, without branches: of a row group that is not there another one's bytes
// are read, and its sum is not taken.  Weights are the rows of integer products, both row groups in one product; in products of several
// rows they are the columns.  The sums are the same, bit for bit.
//
// Pairs longer than a slot take turns, kTurnPairs of them, piece by piece, so that a piece of the activations serves all of them.
#pragma once
#include "activations.cuh"
#include "ring.cuh"
#include "weights.cuh"

#if AMK_PAIRS
namespace amk {
static_assert(kRows == 1, "pairs of row groups meet one row of activations");

// Out of line, with its patience: the way of a slot that has landed stays short.
__device__ __noinline__ void await_slot(int slot, uint32_t parity) { barrier_wait(&ring.full[slot], parity); }

// kByPiece: of long rows the integers of one piece are staged at a time, else all.
template <int K, class W, bool kByPiece>
struct PairStream {
  using S = Slices<K, W>;
  static constexpr bool kLong = S::kRecords > W::kPiece;  // pieces of a pair, a slot each
  static constexpr int kPieces = (S::kRecords + W::kPiece - 1) / W::kPiece;
  static constexpr int kLoads = kLong ? W::kPiece / kWarps : S::kPerWarp;  // of a warp's records of a row group in a step
  static constexpr int kSlotPairs = kLong ? 1 : W::kSlot / (2 * S::kRecords);
  static constexpr int kAhead = kSlotPairs % 2 == 0 && kLoads * W::kWords <= 12 ? 2 : 1;  // pairs of a step
  static constexpr int kSteps = kSlotPairs / kAhead, kGroups = 2 * kAhead;                // steps of a slot, row groups of a step
  static constexpr int kTurn = 2 * kTurnPairs;                                            // row groups that take turns
  static constexpr bool kHeld = !kLong && S::kPerWarp <= 4;  // a lane's activations stay in registers
  static constexpr bool kWhole = S::kRecords % (kLong ? W::kPiece : kWarps) == 0;  // no load is for some warps only
  static_assert(S::kFlush % kGroups == 0 && S::kFlush % kTurn == 0, "neither steps nor turns reach over a reduction");
  static_assert(kTurnPairs == 2, "two pairs change places behind each product");

  struct Activations {
    uint4 x[2];
    float2 factor;  // of limbs 2t and 2t + 1
  };
  typename W::Record w[kAhead][2][kLoads];
  Activations held[kHeld ? kLoads : 1];
  RingCursor cursor;
  const uint8_t* slot = nullptr;
  int in_slot = 0;  // steps of the slot already read
  uint32_t full;    // address of the first slot's barrier

  static __device__ __forceinline__ bool there(const Context c, int piece, int i) {
    return kWhole || piece * W::kPiece + c.warp + kWarps * i < S::kRecords;
  }
  __device__ __forceinline__ PairStream() : full(shared_address(&ring.full[0])) {
    asm volatile("" : "+r"(full));  // in a register: what it is worked out from is slow
  }
  // The weights of the step that begins with this row group of `groups`, in registers.
  __device__ __forceinline__ void load(const Context c, int group, int piece, int groups) {
    if (kSteps == 1 || in_slot == 0) {
      if (!barrier_try_at(full + cursor.slot * 8, cursor.parity)) await_slot(cursor.slot, cursor.parity);
      slot = cursor.data();
    }
    const int left = S::kRecords - piece * W::kPiece;
    const int beside = (kLong && left > W::kPiece ? W::kPiece : left) * W::kBytes;
    const uint8_t* from[kAhead];
    int second[kAhead];
#pragma unroll
    for (int m = 0; m < kAhead; ++m) {
      const int pair = kSteps * kAhead == 1 ? 0 : (in_slot * kAhead + (group + 2 * m < groups ? m : 0)) * (2 * S::kRecords * W::kBytes);
      from[m] = slot + pair + c.warp * W::kBytes + c.lane * 16;
      second[m] = group + 2 * m + 1 < groups ? beside : 0;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
#pragma unroll
      for (int m = 0; m < kAhead; ++m) {
        const uint8_t* record = there(c, piece, i) ? from[m] + kWarps * i * W::kBytes : from[m] - c.warp * W::kBytes;
        w[m][0][i] = W::load(record, c.lane);
        w[m][1][i] = W::load(record + second[m], c.lane);
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

  // A warp's sums of two row groups: lane (g, t) has limbs 2t and 2t + 1 of row g of each.
  using Pair = float[2][2];
  static __device__ __forceinline__ void keep(const Context c, const Pair& total, int group, int g0, int g1, float* red) {
    const int g = c.lane >> 2, t = c.lane & 3;
#pragma unroll
    for (int a = 0; a < 2; ++a) {
      float sum = total[a][0] + total[a][1];  // (high + middle) + (low + nothing)
      sum = sum + __shfl_xor_sync(~0u, sum, 1);
      if (t == 0 && group + a < g1) red[(group - g0 + a) * 8 + g] = sum;
    }
  }

  // Row groups [g0, g1) of `groups`: this warp's sums to `red`, eight a row group.  `piece_of(piece, next, first)`: stages the activations of a
  // piece, the task's first one or another, and asks for those of the piece `next`, -1 for none.
  template <class PieceOf>
  __device__ __forceinline__ void multiply(const Context c, const uint8_t* staged, int g0, int g1, int groups, float* red, PieceOf piece_of) {
    if constexpr (kLong) {
#pragma unroll 1
      for (int group = g0; group < g1; group += kTurn) {
        const int end = group + kTurn < g1 ? group + kTurn : g1;
        Pair total[kTurnPairs];
#pragma unroll
        for (int i = 0; i < kTurnPairs * 4; ++i) total[i / 4][i / 2 % 2][i % 2] = 0.0f;
#pragma unroll 1
        for (int piece = 0; piece < kPieces; ++piece) {
          const bool last = piece + 1 == kPieces;
          if constexpr (kByPiece) piece_of(piece, !last ? piece + 1 : (end < groups ? 0 : -1), group == 0 && piece == 0);
#pragma unroll 1
          for (int pair = group; pair < end; pair += 2) {
#pragma unroll
            for (int i = 0; i < kLoads; ++i) {
              const Activations a = fetch(c, staged, kByPiece || there(c, piece, i), (kByPiece ? 0 : piece * kLoads) + i);
              W::add_rows(total[0], w[0][0][i], w[0][1][i], a.x, a.factor);
            }
            const bool turn = pair + 2 < end;
            if (turn || !last || end < groups) load(c, turn ? pair + 2 : (last ? end : group), turn ? piece : (last ? 0 : piece + 1), groups);
            if (end - group > 2) {  // the other pair's turn
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const float y = total[0][i / 2][i % 2];
                total[0][i / 2][i % 2] = total[1][i / 2][i % 2], total[1][i / 2][i % 2] = y;
              }
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kTurnPairs; ++m) keep(c, total[m], group + 2 * m, g0, g1, red);
      }
    } else {
#pragma unroll 1
      for (int group = g0; group < g1; group += kGroups) {
        Pair total[kAhead];
#pragma unroll
        for (int i = 0; i < kAhead * 4; ++i) total[i / 4][i / 2 % 2][i % 2] = 0.0f;
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const Activations a = kHeld ? held[kHeld ? i : 0] : fetch(c, staged, there(c, 0, i), i);
#pragma unroll
          for (int m = 0; m < kAhead; ++m) W::add_rows(total[m], w[m][0][i], w[m][1][i], a.x, a.factor);
        }
        if (group + kGroups < groups) load(c, group + kGroups, 0, groups);
#pragma unroll
        for (int m = 0; m < kAhead; ++m) keep(c, total[m], group + 2 * m, g0, g1, red);
      }
    }
  }
};

}  // namespace amk
#endif
