// The matrix product of gemv_fast.cuh for several activation rows: the same sums in the same order, row by row, from the same tape.
//
// Each warp stages its own units of all rows as bf16, or, of a long K, those of one piece at a time: two row groups of the tile take
// turns on the tape, so that a piece of the activations is fetched once for both.
#pragma once
#include "gemv_fast.cuh"
#include "rows_finish.cuh"

#if AMK_ROWS > 1
namespace amk {

#if AMK_MARKED
// The place of the lane's n-th fragment of a long row, one that registers do not hold: spilled ones would take turns through L2, since
// shared memory leaves L1 less than the spills of a CTA.
__device__ __forceinline__ uint4* beside(const Context c, int n) {
  return reinterpret_cast<uint4*>(FastWork::staged()) + (n - kLongHeld) * kThreads + c.thread;
}
#endif
template <int K, class W = LayerWeights, class Source>
__device__ __forceinline__ void gemv_fast(const Context c, const Source& source, const Finish& finish) {
  using S = Slices<K, W>;
  constexpr bool kDirect = AMK_MARKED != 0;  // marked activations go to the lanes that multiply them, past shared memory
  // The sum of squares takes a row at once.
  constexpr bool kByPiece = kDirect ? S::kTapePieces > 1 && !S::kLong : S::kByPiece && !Source::kNormed;
  constexpr int kStageLoads = kByPiece ? S::kPieceUnits / kWarps / 4 : S::kLoads;
  static_assert(!Source::kPolled || S::kStaged || kByPiece, "tagged activations are staged");
  static_assert(!kDirect || (kRowTiles == 1 && !(kByPiece && Source::kNormed)), "a normalised row of marked values is one piece, or two");
  const int groups = (finish.n + 7) / 8, lane = c.lane, warp = c.warp;
  uint8_t* staged = FastWork::staged() + warp * ((kByPiece ? S::kPieceUnits / kWarps : S::kWarpUnits) * kRows * 64);

  // The first pairs of outputs this thread will finish: what is added to them is on its way during the product.
  constexpr int kItemRows = kTileRows * 8;  // (activation row, output row) pairs of a row group
  constexpr int kPre = kRowTiles > 1 || S::kFlush * kItemRows <= kItems ? 1 : S::kFlush * kItemRows / kItems;
  const int item0 = c.thread / kParts;
  const bool finisher = c.thread % (2 * kParts) == 0;  // the lane that finishes a pair of outputs
  auto local_of = [&](int i) { return (item0 + i * kItems) / kItemRows * 8 + (item0 & 7); };
  auto row_of = [&](int i) { return (item0 + i * kItems) / 8 % kTileRows; };
  auto pair_exists = [&](int i) { return finisher && local_of(i) < finish.n && row_of(i) < kRows; };
  float2 pre[kPre];
#pragma unroll
  for (int i = 0; i < kPre; ++i) pre[i] = make_float2(1.0f, 0.0f);

  WeightStream<K, W> stream(groups);
  // Weights come to registers while what is before them is at work; where many rows need the registers, when they are due.
  constexpr bool kEager = kTileRows <= 2 && !(kDirect && S::kLong);

  // While the first activations are on their way: what will be added to the first outputs, and the first weights to registers.
  auto open = [&] {
#if AMK_MARKED
    uint64_t residual[kPre];
    auto wanted = [&](int i) { return finish.kind == Finish::kResidual && pair_exists(i); };
    auto where = [&](int i) { return finish.marked_residual(c, local_of(i), row_of(i)); };
    marked_words_start(residual, wanted, where);
    if constexpr (kEager) stream.template next<true>(c, 0);
    if (Source::kNormed) {
      Prologue::wait();
      __syncwarp();  // other lanes copied what this one reads
    }
    marked_words_rest(c, residual, where);
#pragma unroll
    for (int i = 0; i < kPre; ++i) pre[i] = floats_of(residual[i]);
#else
    if constexpr (Source::kPolled) {
      uint4 residual[kPre];
      auto wanted = [&](int i) { return finish.kind == Finish::kResidual && pair_exists(i); };
      auto where = [&](int i) { return finish.tagged_residual(local_of(i), row_of(i)); };
      poll_start(residual, tag_of(c), wanted, where);
      if constexpr (kEager) stream.template next<true>(c, 0);
      if (Source::kNormed) Prologue::wait();  // the lane reads what it copied itself
      poll_rest(c, residual, tag_of(c), where);
#pragma unroll
      for (int i = 0; i < kPre; ++i) pre[i] = floats_of(residual[i]);
    } else {
      if (finish.kind == Finish::kResidual) {
#pragma unroll
        for (int i = 0; i < kPre; ++i)
          if (pair_exists(i)) pre[i] = finish.prefetch(c, local_of(i), row_of(i));
      }
      if constexpr (kEager) stream.template next<true>(c, 0);
      if (Source::kNormed) Prologue::wait();
    }
#endif
  };
#if AMK_MARKED
  // Fragments of the warp's units of a piece, those of rows 8 to 16 behind those of rows 0 to 8.
  constexpr int kDirectUnits = kByPiece ? S::kPieceUnits / kWarps : S::kWarpUnits, kSides = kRows > 8 ? 2 : 1;
  uint4 direct[kSides * kDirectUnits];
#endif
  // Stages the activations of all rows from the warp's load `load0` on, several rows under way at a time.
  auto stage = [&](int load0, bool first) {
    constexpr int kLoads = kStageLoads;
    auto unit_of = [&](int i) { return 4 * (load0 + i) + lane / 8; };  // of this warp
    auto place = [&](int i, int r) { return staged + ((kByPiece ? 4 * i + lane / 8 : unit_of(i)) * kRows + r) * 64; };
    auto put_squares = [&](int r, float squares) {
      squares = tree_sum(squares);
      if (lane == 0) FastWork::squares()[r * kWarps + warp] = squares;
    };
#if AMK_MARKED
    constexpr int kAccesses = Source::kAccesses, kAll = kSides * kDirectUnits;
    constexpr int kWindow = S::kLong && Source::kNormed ? kLongWindow : AMK_MARKED_WINDOW;
    constexpr int kSome = kWindow / kAccesses < kAll ? kWindow / kAccesses : kAll;  // fragments under way
    const int g = lane >> 2, t = lane & 3;
    const uint32_t* mine = source.address(g, (warp + kWarps * 4 * load0) * 32 + t * 8);
    float squares[4][2];  // of what four lanes of a staged load would have: units j % 4, halves of a lane's eight values
#pragma unroll
    for (int n0 = 0; n0 < kAll; n0 += kSome) {
      uint4 v[kSome * kAccesses];
      auto unit_of = [&](int i) { return warp + kWarps * (4 * load0 + (n0 + i / kAccesses) % kDirectUnits); };
      auto row_at = [&](int i) { return g + (n0 + i / kAccesses) / kDirectUnits * 8; };
      auto needed = [&](int i) { return n0 + i / kAccesses < kAll && unit_of(i) < S::kUnits && row_at(i) < kRows; };
      auto address = [&](int i) {  // a constant from `mine`
        const int n = n0 + i / kAccesses;
        return mine + (n % kDirectUnits * kWarps * Source::kUnitWords + n / kDirectUnits * 8 * 16 + i % kAccesses * Source::kPartWords);
      };
      // The assembler would put the squares off until they are added, and keep their values in local memory: it is made to need them now.
      if constexpr (Source::kNormed && S::kLong)
        if (n0 % kDirectUnits > 0) {
          float least = 0.0f;
#pragma unroll
          for (int i = 0; i < 8; ++i) least = fminf(least, squares[i / 2][i % 2]);
          if (least < 0.0f) poke(ring.polling, 0);  // never
        }
      marked_start<!Source::kNormed>(v, needed, address);
      if (first && n0 == 0) open();
      if (c.thread == 0) poke(ring.polling, 1);
      marked_rest<!Source::kNormed>(c, v, address);
      if (c.thread == 0) poke(ring.polling, 0);
      if (first && n0 == 0) note_arrival(c);
#pragma unroll
      for (int i = 0; i < kSome && n0 + i < kAll; ++i) {
        if constexpr (Source::kNormed) {
          const int j = (n0 + i) % kDirectUnits, r = g + (n0 + i) / kDirectUnits * 8;
          uint32_t half[2][2];
#pragma unroll
          for (int part = 0; part < 2; ++part) {
            const uint4 from = v[i * 2 + part];
            const float4 x = make_float4(float_of(from.x), float_of(from.y), float_of(from.z), float_of(from.w));
            float sum = j < 4 ? 0.0f : squares[j % 4][part];
            sum = fma_f32(x.x, x.x, sum), sum = fma_f32(x.y, x.y, sum), sum = fma_f32(x.z, x.z, sum), sum = fma_f32(x.w, x.w, sum);
            squares[j % 4][part] = sum;
            const bool there = warp + kWarps * j < S::kUnits;  // no weights were fetched beyond K
            const float4 y = times(x, there ? source.weight(c, j, part) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
            half[part][0] = pack_bf16(y.x, y.y), half[part][1] = pack_bf16(y.z, y.w);
          }
          (n0 + i < S::kDirectMost ? direct[n0 + i] : *beside(c, n0 + i)) =
              make_uint4(half[0][0], half[0][1], half[1][0], half[1][1]);
          if (j == kDirectUnits - 1) {  // tree_sum over the lanes of a staged load, most of whose values this lane has
            float sum[2];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
              auto of = [&](int unit) { return unit < kDirectUnits ? squares[unit][part] : 0.0f; };
              sum[part] = (of(0) + of(2)) + (of(1) + of(3));
              sum[part] = sum[part] + __shfl_xor_sync(~0u, sum[part], 2);
              sum[part] = sum[part] + __shfl_xor_sync(~0u, sum[part], 1);
            }
            if (t == 0 && r < kRows) FastWork::squares()[r * kWarps + warp] = sum[0] + sum[1];
          }
        } else {
          (n0 + i < S::kDirectMost ? direct[n0 + i] : *beside(c, n0 + i)) = v[i];
        }
      }
    }
#else
    if constexpr (Source::kPolled) {
      constexpr int kAccesses = Source::kAccesses, kEach = kLoads * kAccesses, kMost = 16 / kEach;
      constexpr int kSome = kMost < 1 ? 1 : (kMost < kRows ? kMost : kRows);  // rows under way
      const uint32_t tag = tag_of(c);
#pragma unroll 1
      for (int r0 = 0; r0 < kRows; r0 += kSome) {
        uint4 v[kSome * kEach];
        auto k_of = [&](int i) { return (warp + kWarps * unit_of(i % kEach / kAccesses)) * 32 + lane % 8 * 4; };
        auto needed = [&](int i) { return k_of(i) < K && (kRows % kSome == 0 || r0 + i / kEach < kRows); };
        auto address = [&](int i) { return source.address(r0 + i / kEach, k_of(i), i % kAccesses); };
        poll_start(v, tag, needed, address);
        if (first && r0 == 0) open();
        if (c.thread == 0) poke(ring.polling, 1);
        poll_rest(c, v, tag, address);
        if (c.thread == 0) poke(ring.polling, 0);
        if (first && r0 == 0) note_arrival(c);
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          float squares = 0.0f;
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            const uint4* from = v + r * kEach + i * kAccesses;
            const int k = (warp + kWarps * unit_of(i)) * 32 + lane % 8 * 4;
            const bool there = k / 32 < S::kUnits;
            uint2 x;
            if constexpr (Source::kNormed) {
              const float2 a = floats_of(from[0]), b = floats_of(from[1]);
              squares = fma_f32(a.x, a.x, squares);
              squares = fma_f32(a.y, a.y, squares);
              squares = fma_f32(b.x, b.x, squares);
              squares = fma_f32(b.y, b.y, squares);
              const float4 y = times(make_float4(a.x, a.y, b.x, b.y), k < K ? source.weight(c, i, 0) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
              x = make_uint2(pack_bf16(y.x, y.y), pack_bf16(y.z, y.w));
            } else {
              x = make_uint2(from[0].x, from[0].z);
            }
            if (there && (kRows % kSome == 0 || r0 + r < kRows)) reinterpret_cast<uint2*>(place(i, r0 + r))[lane % 8] = x;
          }
          if (Source::kNormed && (kRows % kSome == 0 || r0 + r < kRows)) put_squares(r0 + r, squares);
        }
      }
    } else {
      constexpr int kMost = Source::kHalves ? 1 : (kChunk > 16 ? 16 : 8) / kLoads;
      constexpr int kSome = kMost < 1 ? 1 : (kMost < kRows ? kMost : kRows);
#pragma unroll 1
      for (int r0 = 0; r0 < kRows; r0 += kSome) {
        float4 v[kSome][kLoads];
#pragma unroll
        for (int r = 0; r < kSome; ++r)
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            const int u = warp + kWarps * unit_of(i);
            const bool there = u < S::kUnits && (kRows % kSome == 0 || r0 + r < kRows);
            v[r][i] = source.load(c, r0 + r, there ? u * 32 + lane % 8 * (Source::kHalves ? 2 : 4) : K);
          }
        if (first && r0 == 0) open();
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          if (kRows % kSome != 0 && r0 + r >= kRows) break;
          float squares = 0.0f;
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            const int u = warp + kWarps * unit_of(i);
            float4 x = v[r][i];
            if constexpr (Source::kNormed) {
              squares = fma_f32(x.x, x.x, squares);
              squares = fma_f32(x.y, x.y, squares);
              squares = fma_f32(x.z, x.z, squares);
              squares = fma_f32(x.w, x.w, squares);
            }
            if ((S::kStaged || kByPiece) && u < S::kUnits) {
              if constexpr (Source::kNormed) x = times(x, source.weight(c, i, u * 32 + lane % 8 * 4));
              const uint32_t low = pack_bf16(x.x, x.y), high = pack_bf16(x.z, x.w);
              uint8_t* unit = place(i, r0 + r);
              if constexpr (Source::kHalves) {
                reinterpret_cast<uint32_t*>(unit)[lane % 8] = low, reinterpret_cast<uint32_t*>(unit)[lane % 8 + 8] = high;
              } else {
                reinterpret_cast<uint2*>(unit)[lane % 8] = make_uint2(low, high);
              }
            }
          }
          if (Source::kNormed) put_squares(r0 + r, squares);
        }
      }
    }
    __syncwarp();
#endif
  };

  stage(0, true);
  if (finish.kind == Finish::kRotate && finisher) {
    if (Source::kNormed) pre[0] = *Prologue::angle(item0);
#pragma unroll
    for (int i = 1; i < kPre; ++i)
      if (pair_exists(i)) pre[i] = finish.prefetch(c, local_of(i), row_of(i));
  }

  constexpr bool kHeld = S::kHeld && !kDirect;
  uint4 held_low[kHeld ? S::kWarpUnits : 1], held_high[kHeld ? S::kWarpUnits : 1];
  if constexpr (kHeld) {
#pragma unroll
    for (int j = 0; j < S::kWarpUnits; ++j) load_fragment<K, W, kByPiece>(c, source, staged, j, 0, held_low[j], held_high[j]);
  }

  int parity = 0, staged_piece = 0;
#if AMK_MARKED
  float factor = 1.0f;  // of the norm, of the row whose outputs the thread finishes
#endif
#pragma unroll 1
  for (int g0 = 0; g0 < groups; g0 += S::kFlush) {
    const int g1 = g0 + S::kFlush < groups ? g0 + S::kFlush : groups;
    if (kRowTiles == 1 && g0 > 0 && finish.kind == Finish::kRotate) {
#pragma unroll
      for (int i = 0; i < kPre; ++i)
        if (finisher && g0 * 8 + local_of(i) < finish.n && row_of(i) < kRows) pre[i] = finish.prefetch(c, g0 * 8 + local_of(i), row_of(i));
    }
    float acc[S::kTogether * kRowTiles][2][4];
#pragma unroll 1
    for (int group = g0; group < g1; group += S::kTogether) {
#pragma unroll
      for (int m = 0; m < S::kTogether * kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 8; ++i) acc[m][i / 4][i % 4] = 0.0f;
#pragma unroll kDirect && S::kLong ? S::kTapePieces : 1  // fragments in registers have constant numbers
      for (int piece = 0; piece < S::kTapePieces; ++piece) {
        if constexpr (kByPiece) {
          if (piece != staged_piece) {
            if constexpr (!kDirect) __syncwarp();  // all lanes have read the piece before
            stage(piece * kStageLoads, false);
            staged_piece = piece;
          }
        }
        constexpr int kTurn = S::kTurns ? 2 : 1;  // row groups that take turns
#pragma unroll
        for (int a = 0; a < kTurn; ++a) {
          if (a > 0 && group + a >= g1) break;
#if AMK_MARKED
#pragma unroll  // fragments in registers have constant numbers
#else
#pragma unroll 1
#endif
          for (int s = 0; s < S::kPieceSlots; ++s) {
            const int slot = piece * S::kPieceSlots + s;
            if (slot >= S::kPieces) break;
            if constexpr (!kEager) stream.template next<true>(c, slot);
#pragma unroll
            for (int i = 0; i < S::kPieceLoads; ++i) {
              if (slot * W::kSlot + warp + kWarps * i >= S::kRecords) break;
#pragma unroll
              for (int m = 0; m < S::kAhead * kRowTiles; ++m) {
                if (S::kAhead > 1 && m > 0 && group + m >= g1) break;
                const uint4 w = stream.w[S::kAhead > 1 ? m : 0][i];
                uint4 x, y;
                if constexpr (kHeld) {
                  x = held_low[i], y = held_high[i];
                } else {
#if AMK_MARKED
                  const int j = (kByPiece ? s : slot) * (W::kSlot / kWarps) + i;
                  x = j < S::kDirectMost ? direct[j] : *beside(c, j), y = make_uint4(0, 0, 0, 0);
                  if (kSides > 1)
                    y = kDirectUnits + j < S::kDirectMost ? direct[kDirectUnits + j] : *beside(c, kDirectUnits + j);
#else
                  const int j = (kByPiece ? s : slot) * (W::kSlot / kWarps) + i;
                  load_fragment<K, W, kByPiece>(c, source, staged, j, S::kAhead > 1 ? 0 : m, x, y);
#endif
                }
                float(&sum)[2][4] = acc[a * kRowTiles + m];
                mma_bf16(sum[0], x.x, y.x, x.y, y.y, w.x, w.y);
                mma_bf16(sum[1], x.z, y.z, x.w, y.w, w.z, w.w);
              }
            }
            if constexpr (!kEager) continue;
            const bool inside = s + 1 < S::kPieceSlots && slot + 1 < S::kPieces;
            const int first = a + 1 < kTurn && group + a + 1 < g1 ? piece : (piece + 1 < S::kTapePieces ? piece + 1 : 0);
            stream.next(c, inside ? slot + 1 : first * S::kPieceSlots);
          }
        }
      }
      if constexpr (kRowTiles == 1) {  // lane (g, t): rows g and g + 8 of the activations, outputs 2t and 2t + 1
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int a = 0; a < S::kTogether; ++a) {
          if (a > 0 && group + a >= g1) break;
          float2* to = reinterpret_cast<float2*>(FastWork::red(parity) + warp * kRedPlane + ((group + a - g0) * kTileRows + g) * 8 + 2 * t);
          if (g < kTileRows) to[0] = make_float2(acc[a][0][0] + acc[a][1][0], acc[a][0][1] + acc[a][1][1]);
          if (kTileRows > 8) to[32] = make_float2(acc[a][0][2] + acc[a][1][2], acc[a][0][3] + acc[a][1][3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if constexpr (kRowTiles > 1) {
        const int g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int a = 0; a < S::kTogether; ++a) {
          const float(&sum)[2][4] = acc[a * kRowTiles + m];
          float2* to = reinterpret_cast<float2*>(FastWork::red(parity) + warp * kRedPlane + (a * kTileRows + g) * 8 + 2 * t);
          to[0] = make_float2(sum[0][0] + sum[1][0], sum[0][1] + sum[1][1]);
          to[32] = make_float2(sum[0][2] + sum[1][2], sum[0][3] + sum[1][3]);
        }
      }
      sync_tasks();
      const int items = (g1 - g0) * kItemRows;
#if AMK_MARKED
      finish_outputs<K>(c, source, finish, FastWork::red(parity), g0, items, factor, pre);
#else
      // kParts lanes an output; a whole warp stays together for the shuffles.
#pragma unroll 1
      for (int q = item0; q < up(items, 32 / kParts); q += kItems) {
        const int part = c.thread % kParts, local = (g0 + q / kItemRows) * 8 + (q & 7), r = m * 16 + q / 8 % kTileRows;
        const bool there = q < items && local < finish.n && r < kRows;
        float sum = 0.0f, other;
        if (q < items) {
          const float* f = FastWork::red(parity) + part * (4 * kRedPlane) + q;
          sum = (f[0] + f[kRedPlane]) + (f[2 * kRedPlane] + f[3 * kRedPlane]);
        }
        if (joined<K>(c, source, finish, local, r, there, sum, other)) continue;
        const float2 now = pre[0];
#pragma unroll
        for (int i = 0; i + 1 < kPre; ++i) pre[i] = pre[i + 1];
        if (there && finisher) {
          const bool here = kRowTiles == 1 ? g0 == 0 || finish.kind == Finish::kRotate : m == 0 && g0 == 0 && q == item0;
          finish.apply(c, local, r, sum, other, here ? now : finish.prefetch(c, local, r));
        }
      }
#endif
      parity ^= 1;
    }
  }
  stream.cursor.keep(c.thread);
}

}  // namespace amk
#endif
