// Matrix times activations with quantised weights from the ring and integer tensor cores: y[r][j] = scale(r) * sum of W[j][k] * x[r][k].
//
// The way of gemv_fast.cuh with records for units: record u of K belongs to warp u % kWarps, row groups of a long K take turns, sums of
// warps are added in the same order.  Each warp stages the activations of its own records as integers of three bytes (Limbs); a product
// takes two rows of activations at a time, each as three rows of bytes.  Sums over a group of weights are exact integers; groups of a
// warp are added ascending in fp32, each limb apart; then the limbs, then the warps.  So bits depend on K and the format alone.
//
// Formats with activations of 8 bits (W::kInteger) take up to 16 rows at a time, each as one row of bytes (integer_rows.cuh), and
// multiply by the row's scale at the end.  Of one scale a row the warps' sums are integers, and the bits those of the CPU VM.
#pragma once
#include "gemv_fast.cuh"
#include "integer_rows.cuh"
#include "quant_pairs.cuh"
#include "quant_row.cuh"

#if AMK_QUANT
namespace amk {

template <int K, class W, class Source>
__device__ __forceinline__ void gemv_quant(const Context c, const Source& source, const Finish& finish) {
  using S = Slices<K, W>;
#if AMK_PAIRS
  constexpr bool kByPiece = S::kTurns && !Source::kNormed && !Source::kHalves;
  static_assert(kByPiece ? S::kPieceBytes <= AMK_STAGE_BYTES : S::kStaged, "the host leaves room for the activations");
#else
  constexpr bool kByPiece = !S::kStaged;
  static_assert(S::kStaged || (S::kByPiece && !Source::kNormed), "activations of quantised weights are staged; the host leaves room");
#endif
  static_assert(kRowTiles == 1, "quantised weights take at most 16 rows a step");
  static_assert(!AMK_PAIRS || !W::kInteger, "pairs of row groups meet activations of 21 bits");
  constexpr int kStageRecords = kByPiece ? W::kPiece / kWarps : S::kPerWarp;
  const int groups = (finish.n + 7) / 8, lane = c.lane, warp = c.warp;
  uint8_t* staged = FastWork::staged() + warp * (kStageRecords * kRows * W::kStageBytes);
  auto place = [&](int j, int r) { return staged + (j * kRows + r) * W::kStageBytes; };  // the warp's j-th staged record, row r

  // The first pairs of outputs this thread will finish: what is added to them is on its way during the product.
  constexpr int kItemRows = kTileRows * 8;  // (activation row, output row) pairs of a row group
  constexpr int kPre = S::kFlush * kItemRows <= kItems ? 1 : S::kFlush * kItemRows / kItems;
  const int item0 = c.thread / kParts;
  const bool finisher = c.thread % (2 * kParts) == 0;  // the lane that finishes a pair of outputs
  auto local_of = [&](int i) { return (item0 + i * kItems) / kItemRows * 8 + (item0 & 7); };
  auto row_of = [&](int i) { return (item0 + i * kItems) / 8 % kTileRows; };
  auto pair_exists = [&](int i) { return finisher && local_of(i) < finish.n && row_of(i) < kRows; };
  float2 pre[kPre];
#pragma unroll
  for (int i = 0; i < kPre; ++i) pre[i] = make_float2(1.0f, 0.0f);

#if AMK_PAIRS
  PairStream<K, W, kByPiece> stream;
  PairRow<K, W, Source, kByPiece> row(c, source, staged);
  auto first_weights = [&] { stream.load(c, 0, 0, groups); };
#else
  WeightStream<K, W> stream(groups);
  auto first_weights = [&] { stream.template next<true>(c, 0); };
#endif
  // Weights come to registers while what is before them is at work, the first ones while activations are on their way; where many rows
  // need the registers, when they are due.
  constexpr bool kEarly = kTileRows <= 2, kEager = kEarly || (W::kInteger && !kByPiece);

  // While the first activations are on their way: what will be added to the first outputs, and the first weights to registers.
  auto open = [&] {
    if constexpr (Source::kPolled) {
      uint4 residual[kPre];
      auto wanted = [&](int i) { return finish.kind == Finish::kResidual && pair_exists(i); };
      auto where = [&](int i) { return finish.tagged_residual(local_of(i), row_of(i)); };
      poll_start(residual, tag_of(c), wanted, where);
      if constexpr (kEarly) first_weights();
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
      if constexpr (kEarly) first_weights();
      if (Source::kNormed) Prologue::wait();
    }
  };
#if AMK_PAIRS
  row.ask(c, source, 0);
  open();
  row.arrive(c, source, 0, true);
  if constexpr (!kByPiece) {
    row.stage(c, source, 0, -1);
    stream.hold(c, staged);
  }
  auto piece_of = [&](int piece, int next, bool first) {
    if (!first) row.arrive(c, source, piece, false);
    row.stage(c, source, piece, next);
  };
#else
  // Stages the activations of all rows from the warp's record `record0` on, several rows under way at a time.
  auto stage = [&](int record0, bool first) {
    constexpr int kLoads = kStageRecords;
    auto record_of = [&](int i) { return warp + kWarps * (record0 + i); };
    auto k_of = [&](int i) { return record_of(i) * 128 + lane * 4; };
    // The largest values of all records first, then their integers in one go: exchanges of a warp keep what is around them apart.  Of
    // records beyond K there are zeros, for which there is room.
    auto put = [&](int r, const float4 (&x)[kLoads]) {
      uint32_t most[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) most[i] = Limbs::most(x[i]);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) Limbs::put<Source::kHalves, W::kAsRows>(place(i, r), lane, x[i], most[i]);
    };
    auto put_squares = [&](int r, float squares) {
      squares = tree_sum(squares);
      if (lane == 0) FastWork::squares()[r * kWarps + warp] = squares;
    };
    if constexpr (Source::kPolled) {
      constexpr int kAccesses = Source::kAccesses, kEach = kLoads * kAccesses, kMost = 16 / kEach;
      constexpr int kSome = kMost < 1 ? 1 : (kMost < kRows ? kMost : kRows);  // rows under way
      const uint32_t tag = tag_of(c);
#pragma unroll 1
      for (int r0 = 0; r0 < kRows; r0 += kSome) {
        uint4 v[kSome * kEach];
        auto needed = [&](int i) { return k_of(i % kEach / kAccesses) < K && (kRows % kSome == 0 || r0 + i / kEach < kRows); };
        auto address = [&](int i) { return source.address(r0 + i / kEach, k_of(i % kEach / kAccesses), i % kAccesses); };
        poll_start(v, tag, needed, address);
        if (first && r0 == 0) open();
        if (c.thread == 0) poke(ring.polling, 1);
        poll_rest(c, v, tag, address);
        if (c.thread == 0) poke(ring.polling, 0);
        if (first && r0 == 0) note_arrival(c);
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          if (kRows % kSome != 0 && r0 + r >= kRows) break;
          float squares = 0.0f;
          float4 each[kLoads];
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            const uint4* from = v + r * kEach + i * kAccesses;
            float4& x = each[i];
            if constexpr (Source::kNormed) {
              const float2 a = floats_of(from[0]), b = floats_of(from[1]);
              squares = fma_f32(a.x, a.x, squares);
              squares = fma_f32(a.y, a.y, squares);
              squares = fma_f32(b.x, b.x, squares);
              squares = fma_f32(b.y, b.y, squares);
              x = times(make_float4(a.x, a.y, b.x, b.y), k_of(i) < K ? source.weight(c, i, 0) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
            } else {
              x = Limbs::of_pairs(from[0].x, from[0].z);
            }
          }
          put(r0 + r, each);
          if (Source::kNormed) put_squares(r0 + r, squares);
        }
      }
    } else {
      constexpr int kMost = Source::kHalves ? 1 : 8 / kLoads;
      constexpr int kSome = kMost < 1 ? 1 : (kMost < kRows ? kMost : kRows);
#pragma unroll 1
      for (int r0 = 0; r0 < kRows; r0 += kSome) {
        float4 v[kSome][kLoads];
#pragma unroll
        for (int r = 0; r < kSome; ++r)
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            const bool there = record_of(i) < S::kRecords && (kRows % kSome == 0 || r0 + r < kRows);
            const int k = Source::kHalves ? record_of(i) * 128 + lane / 8 * 32 + lane % 8 * 2 : k_of(i);
            v[r][i] = source.load(c, r0 + r, there ? k : K);
          }
        if (first && r0 == 0) open();
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          if (kRows % kSome != 0 && r0 + r >= kRows) break;
          float squares = 0.0f;
          float4 each[kLoads];
#pragma unroll
          for (int i = 0; i < kLoads; ++i) {
            float4& x = each[i];
            x = v[r][i];
            if constexpr (Source::kNormed) {
              squares = fma_f32(x.x, x.x, squares);
              squares = fma_f32(x.y, x.y, squares);
              squares = fma_f32(x.z, x.z, squares);
              squares = fma_f32(x.w, x.w, squares);
              x = times(x, source.weight(c, i, k_of(i)));
            } else {
              x = Limbs::of_floats(x);
            }
          }
          put(r0 + r, each);
          if (Source::kNormed) put_squares(r0 + r, squares);
        }
      }
    }
    __syncwarp();
  };

  [[maybe_unused]] IntegerRows<K, W, Source> bytes(c);
  if constexpr (W::kInteger) {
    bytes.start(c, source, open);
    if constexpr (kEager && !kEarly) first_weights();
  } else {
    stage(0, true);
  }
#endif
  if (finish.kind == Finish::kRotate && finisher) {
    if (Source::kNormed) pre[0] = *Prologue::angle(item0);
#pragma unroll
    for (int i = 1; i < kPre; ++i)
      if (pair_exists(i)) pre[i] = finish.prefetch(c, local_of(i), row_of(i));
  }

#if !AMK_PAIRS
  // A lane's bytes of a pair of rows that meet a record, and what its products are multiplied by.
  struct Activations {
    uint4 x[2];
    float factor;
  };
  auto fetch = [&](int j, int pair) {
    const int r = 2 * pair + lane / 16;
    const uint8_t* record = place(j, kRows % 2 == 0 || r < kRows ? r : kRows - 1);
    const uint8_t* from = Limbs::of(record, lane);
    return Activations{{*reinterpret_cast<const uint4*>(from), *reinterpret_cast<const uint4*>(from + Limbs::kHalfBytes)},
                       *reinterpret_cast<const float*>(record + Limbs::kScaleAt) * Limbs::weight(lane, W::kCodeScale)};
  };
  constexpr bool kHeld = S::kHeld && !W::kInteger, kHeldBytes = S::kHeld && W::kInteger;
  Activations held[kHeld ? S::kPerWarp : 1];
  [[maybe_unused]] typename IntegerRows<K, W, Source>::Fragment held_bytes[kHeldBytes ? S::kPerWarp : 1];
  if constexpr (kHeldBytes) {
#pragma unroll
    for (int j = 0; j < S::kPerWarp; ++j) held_bytes[j] = bytes.fragment(c, j);
  }
  if constexpr (kHeld) {
#pragma unroll
    for (int j = 0; j < S::kPerWarp; ++j)
      if (S::kRecords % kWarps == 0 || warp + kWarps * j < S::kRecords) held[j] = fetch(j, 0);
      else held[j] = Activations{{make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}, 0.0f};
  }
  constexpr bool kWhole = S::kPieces == 1 ? S::kRecords % kWarps == 0 : S::kRecords % W::kSlot == 0;  // no load is for some warps only
  int staged_piece = 0;
#endif

  int parity = 0;
#pragma unroll 1
  for (int g0 = 0; g0 < groups; g0 += S::kFlush) {
    const int g1 = g0 + S::kFlush < groups ? g0 + S::kFlush : groups;
    if (g0 > 0 && finish.kind == Finish::kRotate) {
#pragma unroll
      for (int i = 0; i < kPre; ++i)
        if (finisher && g0 * 8 + local_of(i) < finish.n && row_of(i) < kRows) pre[i] = finish.prefetch(c, g0 * 8 + local_of(i), row_of(i));
    }
#if AMK_PAIRS
    stream.multiply(c, staged, g0, g1, groups, FastWork::red(parity) + warp * kRedPlane, piece_of);
#else
#pragma unroll 1
    for (int group = g0; group < g1; group += S::kTogether) {
      float total[S::kTogether][kRowPairs][2];
#pragma unroll
      for (int a = 0; a < S::kTogether; ++a)
#pragma unroll
        for (int p = 0; p < kRowPairs; ++p) total[a][p][0] = total[a][p][1] = 0.0f;
      [[maybe_unused]] typename W::Sum sums[S::kTogether][4] = {};
      [[maybe_unused]] uint32_t row_scale[S::kTogether] = {};
#pragma unroll 1
      for (int piece = 0; piece < S::kTapePieces; ++piece) {
        if constexpr (kByPiece) {
          if (piece != staged_piece) {
            __syncwarp();  // all lanes have read the piece before
            if constexpr (W::kInteger) {
              bytes.stage(c, source, piece * kStageRecords);
            } else {
              stage(piece * kStageRecords, false);
            }
            staged_piece = piece;
          }
        }
        constexpr int kTurn = S::kTurns ? 2 : 1;  // row groups that take turns
#pragma unroll
        for (int a = 0; a < kTurn; ++a) {
          if (a > 0 && group + a >= g1) break;
#pragma unroll 1
          for (int s = 0; s < S::kPieceSlots; ++s) {
            const int slot = piece * S::kPieceSlots + s;
            if (slot >= S::kPieces) break;
            if constexpr (!kEager) stream.template next<true>(c, slot);
#pragma unroll
            for (int i = 0; i < S::kPieceLoads; ++i) {
              // Without branches, so that products overlap: what does not exist is multiplied by 0, or its sum is not taken.
              const bool there = kWhole || slot * W::kSlot + warp + kWarps * i < S::kRecords;
              if constexpr (W::kInteger) {
                if (!there) break;
                const auto act = kHeldBytes ? held_bytes[kHeldBytes ? i : 0] : bytes.fragment(c, (kByPiece ? s : slot) * (W::kSlot / kWarps) + i);
#pragma unroll
                for (int m = 0; m < S::kAhead; ++m) {
                  W::add_bytes(sums[a + m], stream.w[m][i], act.low, act.high);
                  row_scale[a + m] = stream.w[m][i].scale[0];
                }
                continue;
              }
#pragma unroll
              for (int m = 0; m < S::kAhead; ++m) {
                uint32_t b[4][2];
#pragma unroll
                for (int u = 0; u < 4; ++u) W::decode(stream.w[m][i], u, b[u][0], b[u][1]);
#pragma unroll
                for (int p = 0; p < kRowPairs; ++p) {
                  if constexpr (kHeld) {
                    W::add(total[m][p], stream.w[m][i], b, held[i].x, held[i].factor);
                  } else {
                    const Activations act = fetch(there ? (kByPiece ? s : slot) * (W::kSlot / kWarps) + i : 0, p);
                    W::add(total[a + m][p], stream.w[m][i], b, act.x, there ? act.factor : 0.0f);
                  }
                }
              }
            }
            if constexpr (!kEager) continue;
            const bool inside = s + 1 < S::kPieceSlots && slot + 1 < S::kPieces;
            const int first = a + 1 < kTurn && group + a + 1 < g1 ? piece : (piece + 1 < S::kTapePieces ? piece + 1 : 0);
            stream.next(c, inside ? slot + 1 : first * S::kPieceSlots);
          }
        }
      }
      // Lanes (4r + limb, t) have outputs 2t and 2t + 1 of row r of the pair: (high + middle) + (low + nothing).
      const int g = lane >> 2, t = lane & 3;
#pragma unroll
      for (int a = 0; a < S::kTogether; ++a) {
        if (a > 0 && group + a >= g1) break;
        if constexpr (W::kInteger) {  // lanes (g, t) have outputs 2t and 2t + 1 of rows g and g + 8
          auto put = [&](int r, typename W::Sum low, typename W::Sum high) {
            *reinterpret_cast<uint2*>(FastWork::red(parity) + warp * kRedPlane + ((group + a - g0) * kTileRows + r) * 8 + 2 * t) = make_uint2(W::word(low), W::word(high));
          };
          if (g < kTileRows) put(g, sums[a][0], sums[a][1]);
          if (kTileRows > 8) put(g + 8, sums[a][2], sums[a][3]);
          if (W::F::kGroup == 0 && warp == 0 && g == 0)  // it has a record of every row
            *reinterpret_cast<float2*>(FastWork::weight_scales(parity) + (group + a - g0) * 8 + 2 * t) = W::both(row_scale[a]);
          continue;
        }
#pragma unroll
        for (int p = 0; p < kRowPairs; ++p) {
          float2 y = make_float2(total[a][p][0], total[a][p][1]);
#pragma unroll
          for (int off = 4; off < 16; off <<= 1) {
            y.x = y.x + __shfl_xor_sync(~0u, y.x, off);
            y.y = y.y + __shfl_xor_sync(~0u, y.y, off);
          }
          const int r = 2 * p + g / 4;
          if (g % 4 == 0 && r < kTileRows)
            *reinterpret_cast<float2*>(FastWork::red(parity) + warp * kRedPlane + ((group + a - g0) * kTileRows + r) * 8 + 2 * t) = y;
        }
      }
    }
#endif
    sync_tasks();
    // kParts lanes an output; a whole warp stays together for the shuffles.
    const int items = (g1 - g0) * kItemRows;
#pragma unroll 1
    for (int q = item0; q < up(items, 32 / kParts); q += kItems) {
      const int part = c.thread % kParts, local = (g0 + q / kItemRows) * 8 + (q & 7), r = q / 8 % kTileRows;
      const bool there = q < items && local < finish.n && r < kRows;
      typename W::Sum part_sum = 0;
      float sum, other;
      if (q < items) {
        const auto* f = reinterpret_cast<const typename W::Sum*>(FastWork::red(parity)) + part * (4 * kRedPlane) + q;
        part_sum = (f[0] + f[kRedPlane]) + (f[2 * kRedPlane] + f[3 * kRedPlane]);
      }
      if constexpr (W::kInteger) {
#pragma unroll
        for (int off = 1; off < kParts; off <<= 1) part_sum = part_sum + __shfl_xor_sync(~0u, part_sum, off);
        sum = float(part_sum);
        if (W::F::kGroup == 0) sum = fma_f32(sum, FastWork::weight_scales(parity)[q < items ? q / kItemRows * 8 + (q & 7) : 0], 0.0f);
        sum = sum * FastWork::row_scales()[r < kRows ? r : 0];
      } else {
        sum = part_sum;
      }
      if (joined<K, W::kInteger>(c, source, finish, local, r, there, sum, other)) continue;
      const float2 now = pre[0];
#pragma unroll
      for (int i = 0; i + 1 < kPre; ++i) pre[i] = pre[i + 1];
      if (there && finisher) {
        const bool here = g0 == 0 || finish.kind == Finish::kRotate;
        finish.apply(c, local, r, sum, other, here ? now : finish.prefetch(c, local, r));
      }
    }
    parity ^= 1;
  }
  stream.cursor.keep(c.thread);
}

}  // namespace amk
#endif
