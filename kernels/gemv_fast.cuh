// Matrix times activations with bf16 weights from the ring and tensor cores: y[r][j] = scale(r) * sum_k W[j][k] * bf16(x[r][k]).
//
// The tape holds a tile as [row group of 8][unit]; a unit is 8 rows x 32 values of K, 512 bytes, lane (g = lane / 4, t = lane % 4)
// owning the 8 values W[g][8t .. 8t+8) of it.  Unit u of K belongs to warp u % kWarps; a unit is two mma.m16n8k16 with the
// activations as the 16-row operand, so up to 16 activation rows cost the same weight bytes.  A slot of the ring holds whole row
// groups, or a piece of one; row groups of a long K take turns, piece by piece (ring.cuh).
//
// Order of the sum, the same for every tiling, queue, batch and chunk: per warp, ascending units, even and odd halves of a unit
// apart; then the two halves; then the warps in groups of four, and the groups by halves.  The number of warps belongs to the plan.
//
// One instance of the code serves all matrices of one K: the whole step has to stay in the instruction caches.
#pragma once
#include "activations.cuh"
#include "common.cuh"
#include "finish.cuh"
#include "ring.cuh"
#include "tagged.cuh"

namespace amk {

// The activations of a lane's fragment: 8 values each of rows g and g + 8 of a row tile, at the warp's j-th unit (by piece: of the piece).
template <int K, class W, bool kByPiece = false, class Source>
__device__ __forceinline__ void load_fragment(const Context c, const Source& source, const uint8_t* staged, int j, int tile,
                                              uint4& low, uint4& high) {
  const int g = c.lane >> 2, t = c.lane & 3, r0 = tile * 16 + g, r1 = r0 + 8;
  low = high = make_uint4(0, 0, 0, 0);
  if constexpr (Slices<K, W>::kStaged || kByPiece) {
    const uint8_t* unit = staged + j * (kRows * 64) + t * 16;
    if (r0 < kRows) low = *reinterpret_cast<const uint4*>(unit + r0 * 64);
    if (kRows > 8 && r1 < kRows) high = *reinterpret_cast<const uint4*>(unit + r1 * 64);
  } else if constexpr (!Source::kPolled) {
    const int k = (c.warp + kWarps * j) * 32 + t * 8;
    static_assert(!Source::kHalves || Slices<K, W>::kStaged, "merged partials are staged: use separate combine tasks for so many rows");
    auto eight = [&](int r) {
      const float4 a = times(source.load(c, r, k), source.weight(c, -1, k)), b = times(source.load(c, r, k + 4), source.weight(c, -1, k + 4));
      return make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
    };
    if (r0 < kRows) low = eight(r0);
    if (kRows > 8 && r1 < kRows) high = eight(r1);
  }
}

// The weights of one piece of a row group, or of several whole groups, in registers, and the way through the tile: the next ones are
// always on their way while the tensor cores work, and a slot is released as soon as its last piece has been read.
template <int K, class W>
struct WeightStream {
  using S = Slices<K, W>;
  typename W::Record w[S::kAhead][S::kPieceLoads];
  RingCursor cursor;
  const uint8_t* slot = nullptr;
  int in_slot = 0, left;  // row groups (one piece: pieces) of the slot already read; pieces of the tile not read yet

  __device__ __forceinline__ explicit WeightStream(int groups) : left(groups * S::kPieces) {}

  // `kFirst`: there is something, and no register holds anything of use; every one is written, or it would be live before.
  template <bool kFirst = false>
  __device__ __forceinline__ void next(const Context c, int piece) {
    if (!kFirst && left == 0) return;
#pragma unroll
    for (int a = 0; a < S::kAhead; ++a) {
      if (kFirst && a > 0)
#pragma unroll
        for (int i = 0; i < S::kPieceLoads; ++i) w[a][i] = W::none();
      if (a > 0 && left == 0) continue;
      if (in_slot == 0) slot = cursor.wait();
      const uint8_t* from = slot + in_slot * (S::kRecords * W::kBytes) + c.warp * W::kBytes + c.lane * 16;
#pragma unroll
      for (int i = 0; i < S::kPieceLoads; ++i) {
        const bool whole = S::kPieces == 1 ? S::kRecords % kWarps == 0 : S::kRecords % W::kSlot == 0;
        if (kFirst && !whole) w[a][i] = W::none();
        if (whole || piece * W::kSlot + c.warp + kWarps * i < S::kRecords) w[a][i] = W::load(from + i * (kWarps * W::kBytes), c.lane);
      }
      --left;
      if (++in_slot == S::kSlotGroups || left == 0) {
        cursor.release(c.warp, c.lane);
        in_slot = 0;
      }
    }
  }
};

// An output of row `r` from its kParts lanes: their sums together, times the factor of the norm, and `other`, the output beside it.
// All lanes of a warp take part.  True: it was a gate of a tagged task, which is stored already.  kAdded: `sum` is all of it.
template <int K, bool kAdded = false, class Source>
__device__ __forceinline__ bool joined(const Context c, const Source& source, const Finish& finish, int local, int r, bool there,
                                       float& sum, float& other) {
  float mean = 0.0f;
  if (Source::kNormed && there) {
    const float4 s = *reinterpret_cast<const float4*>(FastWork::squares() + r * kWarps + c.thread % kParts * 4);
    mean = (s.x + s.y) + (s.z + s.w);
  }
#pragma unroll
  for (int off = 1; off < kParts; off <<= 1) {
    if constexpr (!kAdded) sum = sum + __shfl_xor_sync(~0u, sum, off);
    if constexpr (Source::kNormed) mean = mean + __shfl_xor_sync(~0u, mean, off);
  }
  if constexpr (Source::kNormed) sum = sum * rsqrt_fast(mean * (1.0f / float(K)) + source.eps);
  other = __shfl_xor_sync(~0u, sum, kParts);
  if constexpr (kTagged) {
    if (finish.kind == Finish::kGate) {  // all threads alike
      const float mine = Finish::gate(sum, other), next = __shfl_down_sync(~0u, mine, 2 * kParts);
      if (there && c.thread % (4 * kParts) == 0) finish.store_gates(c, local, r, mine, next);
      return true;
    }
  }
  return false;
}

#if AMK_ROWS == 1  // else gemv_rows.cuh
template <int K, class W = LayerWeights, class Source>
__device__ __forceinline__ void gemv_fast(const Context c, const Source& source, const Finish& finish) {
  using S = Slices<K, W>;
  const int groups = (finish.n + 7) / 8, lane = c.lane, warp = c.warp;
  uint8_t* staged = FastWork::staged() + warp * (S::kWarpUnits * kRows * 64);

  // The first pair of outputs this thread will finish: its residual is on its way during the product.
  const int item0 = c.thread / kParts;
  const bool finisher = c.thread % (2 * kParts) == 0;  // the lane that finishes a pair of outputs
  float2 pre = make_float2(1.0f, 0.0f);

  WeightStream<K, W> stream(groups);
  float squares = 0.0f;
  if constexpr (Source::kPolled) {
    // Everything is asked for once, then the first weights come to registers, then whatever had not arrived is polled.
    constexpr int kAccesses = Source::kAccesses;
    const uint32_t tag = tag_of(c);
    uint4 v[S::kLoads * kAccesses], residual[1];
    auto k_of = [&](int i) { return (warp + kWarps * (4 * (i / kAccesses) + lane / 8)) * 32 + lane % 8 * 4; };
    auto needed = [&](int i) { return k_of(i) < K; };
    auto address = [&](int i) { return source.address(0, k_of(i), i % kAccesses); };
    auto residual_needed = [&](int) { return finish.kind == Finish::kResidual && finisher && item0 < finish.n; };
    auto residual_address = [&](int) { return finish.tagged_residual(item0, 0); };
    poll_start(v, tag, needed, address);
    poll_start(residual, tag, residual_needed, residual_address);
    stream.template next<true>(c, 0);
    if (Source::kNormed) Prologue::wait();  // the lane reads what it copied itself
    if (c.thread == 0) poke(ring.polling, 1);
    poll_rest(c, v, tag, address);
    if (c.thread == 0) poke(ring.polling, 0);
    poll_rest(c, residual, tag, residual_address);
    pre = floats_of(residual[0]);
    note_arrival(c);
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i) {
      const int j = 4 * i + lane / 8, u = warp + kWarps * j;
      uint2 x;
      if constexpr (Source::kNormed) {
        const float2 a = floats_of(v[i * kAccesses]), b = floats_of(v[i * kAccesses + 1]);
        squares = fma_f32(a.x, a.x, squares);
        squares = fma_f32(a.y, a.y, squares);
        squares = fma_f32(b.x, b.x, squares);
        squares = fma_f32(b.y, b.y, squares);
        const float4 y = times(make_float4(a.x, a.y, b.x, b.y), needed(i * kAccesses) ? source.weight(c, i, 0) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
        x = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
      } else {
        x = make_uint2(v[i].x, v[i].z);
      }
      if (u < S::kUnits) reinterpret_cast<uint2*>(staged + j * 64)[lane % 8] = x;
    }
  } else {
    float4 v[S::kLoads];
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i) {
      const int u = warp + kWarps * (4 * i + lane / 8);
      v[i] = source.load(c, 0, u < S::kUnits ? u * 32 + lane % 8 * (Source::kHalves ? 2 : 4) : K);
    }
    if (finish.kind == Finish::kResidual && finisher) {
      const int local = item0 / 8 * 8 + (item0 & 7);
      if (local < finish.n) pre = finish.prefetch(c, local, 0);
    }
    stream.template next<true>(c, 0);  // the first weights come to registers while the activations are on their way
    if (Source::kNormed) Prologue::wait();  // the lane reads what it copied itself
#pragma unroll
    for (int i = 0; i < S::kLoads; ++i) {
      const int j = 4 * i + lane / 8, u = warp + kWarps * j;
      if constexpr (Source::kNormed) {
        squares = fma_f32(v[i].x, v[i].x, squares);
        squares = fma_f32(v[i].y, v[i].y, squares);
        squares = fma_f32(v[i].z, v[i].z, squares);
        squares = fma_f32(v[i].w, v[i].w, squares);
      }
      if (S::kStaged && u < S::kUnits) {
        float4 x = v[i];
        if constexpr (Source::kNormed) x = times(x, source.weight(c, i, u * 32 + lane % 8 * 4));
        const uint32_t low = pack_bf16(x.x, x.y), high = pack_bf16(x.z, x.w);
        uint8_t* unit = staged + j * 64;
        if constexpr (Source::kHalves) {
          reinterpret_cast<uint32_t*>(unit)[lane % 8] = low, reinterpret_cast<uint32_t*>(unit)[lane % 8 + 8] = high;
        } else {
          reinterpret_cast<uint2*>(unit)[lane % 8] = make_uint2(low, high);
        }
      }
    }
  }
  __syncwarp();
  if (Source::kNormed && finish.kind == Finish::kRotate && finisher) pre = *Prologue::angle(item0);

  constexpr bool kHeld = S::kHeld;
  uint4 held_low[kHeld ? S::kWarpUnits : 1], held_high[kHeld ? S::kWarpUnits : 1];
  if constexpr (kHeld) {
#pragma unroll
    for (int j = 0; j < S::kWarpUnits; ++j) load_fragment<K, W>(c, source, staged, j, 0, held_low[j], held_high[j]);
  }

  int parity = 0;
#pragma unroll 1
  for (int g0 = 0; g0 < groups; g0 += S::kFlush) {
    const int g1 = g0 + S::kFlush < groups ? g0 + S::kFlush : groups;
    float acc[S::kTogether][2][4];
#pragma unroll 1
    for (int group = g0; group < g1; group += S::kTogether) {
#pragma unroll
      for (int m = 0; m < S::kTogether; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[m][i / 4][i % 4] = 0.0f;
#pragma unroll 1
      for (int piece = 0; piece < S::kTapePieces; ++piece) {
        constexpr int kTurn = S::kTurns ? 2 : 1;  // row groups that take turns
#pragma unroll
        for (int a = 0; a < kTurn; ++a) {
          if (a > 0 && group + a >= g1) break;
#pragma unroll 1
          for (int s = 0; s < S::kPieceSlots; ++s) {
            const int slot = piece * S::kPieceSlots + s;
            if (slot >= S::kPieces) break;
#pragma unroll
            for (int i = 0; i < S::kPieceLoads; ++i) {
              if (slot * W::kSlot + warp + kWarps * i >= S::kRecords) break;
#pragma unroll
              for (int m = 0; m < S::kAhead; ++m) {
                if (m > 0 && group + m >= g1) break;
                const uint4 w = stream.w[m][i];
                uint4 x, y;
                if constexpr (kHeld) {
                  x = held_low[i], y = held_high[i];
                } else {
                  load_fragment<K, W>(c, source, staged, slot * (W::kSlot / kWarps) + i, 0, x, y);
                }
                mma_bf16(acc[a + m][0], x.x, y.x, x.y, y.y, w.x, w.y);
                mma_bf16(acc[a + m][1], x.z, y.z, x.w, y.w, w.z, w.w);
              }
            }
            const bool inside = s + 1 < S::kPieceSlots && slot + 1 < S::kPieces;
            const int first = a + 1 < kTurn && group + a + 1 < g1 ? piece : (piece + 1 < S::kTapePieces ? piece + 1 : 0);
            stream.next(c, inside ? slot + 1 : first * S::kPieceSlots);
          }
        }
      }
      const int g = lane >> 2, t = lane & 3;  // a lane has row g of the activations, of which there is one, and outputs 2t and 2t + 1
#pragma unroll
      for (int a = 0; a < S::kTogether; ++a) {
        if (a > 0 && group + a >= g1) break;
        float* to = FastWork::red(parity) + ((group + a - g0 + g) * 8 + 2 * t) * kWarps + warp;
        if (g < 1) to[0] = acc[a][0][0] + acc[a][1][0], to[kWarps] = acc[a][0][1] + acc[a][1][1];
      }
    }
    if (Source::kNormed && g0 == 0) {
      squares = tree_sum(squares);
      if (lane == 0) FastWork::squares()[warp] = squares;
    }
    sync_tasks();
    // kParts lanes an output; a whole warp stays together for the shuffles.
    const int items = (g1 - g0) * 8;
#pragma unroll 1
    for (int q = item0; q < up(items, 32 / kParts); q += kItems) {
      const int part = c.thread % kParts, local = (g0 + q / 8) * 8 + (q & 7);
      const bool there = q < items && local < finish.n;
      float sum = 0.0f, other;
      if (q < items) {
        const float4 f = *reinterpret_cast<const float4*>(FastWork::red(parity) + q * kWarps + part * 4);
        sum = (f.x + f.y) + (f.z + f.w);
      }
      if (joined<K>(c, source, finish, local, 0, there, sum, other)) continue;
      if (there && finisher) finish.apply(c, local, 0, sum, other, g0 == 0 && q == item0 ? pre : finish.prefetch(c, local, 0));
    }
    parity ^= 1;
  }
  stream.cursor.keep(c.thread);
}
#endif

}  // namespace amk
