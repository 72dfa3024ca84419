// Activations of formats with -a8: rows of signed bytes over one scale each, as docs/numerics.md says.
//
// A scale takes the largest value of its whole row, so warps exchange the maxima of their own records at one barrier before anything
// becomes bytes.  Until then values wait as pairs of bf16, in registers or where their bytes will be; those of a row that is staged piece
// by piece are fetched twice: they stay where they are until this task has signalled.  A normalised row is rounded to bf16 without the
// factor of its norm, which multiplies the result.
#pragma once
#include "activations.cuh"

#if AMK_QUANT
namespace amk {

template <int K, class W, class Source>
struct IntegerRows {
  using S = Slices<K, W>;
  static constexpr bool kByPiece = !S::kStaged;
  static constexpr int kRecords = kByPiece ? W::kPiece / kWarps : S::kPerWarp;  // of a warp that are staged at a time
  static constexpr bool kKept = !kByPiece && kRows * kRecords <= 16;            // values wait in registers
  struct Fragment {  // of rows g and g + 8, which meet one record
    uint4 low[2], high[2];
  };
  uint2 kept[kKept ? kRows : 1][kRecords];
  // Of the warp: [record][row][256 bytes], a lane's two pairs of bf16; then lane (g, t)'s [half][t][16 bytes], halves of odd rows exchanged.
  uint8_t* staged;

  __device__ __forceinline__ explicit IntegerRows(const Context c) : staged(FastWork::staged() + c.warp * (kRecords * kRows * W::kStageBytes)) {}

  static __device__ __forceinline__ int record_of(const Context c, int i) { return c.warp + kWarps * i; }
  __device__ __forceinline__ uint8_t* place(int i, int r) const { return staged + (i * kRows + r) * W::kStageBytes; }

  // The lane's values of the warp's records from `record0` on, of all rows, some rows under way at a time: use(row, values).
  template <class Open, class Use>
  static __device__ __forceinline__ void visit(const Context c, const Source& source, int record0, bool opens, Open open, Use use) {
    auto k_of = [&](int i) { return record_of(c, record0 + i) * 128 + c.lane * 4; };
    constexpr int kAccesses = Source::kPolled && Source::kNormed ? 2 : 1, kEach = kRecords * kAccesses;
    constexpr int kMost = Source::kPolled ? 16 / kEach : (Source::kHalves ? 1 : 8 / kRecords);
    constexpr int kSome = kMost < 1 ? 1 : (kMost < kRows ? kMost : kRows), kTurns = kKept ? kRows : 1;
#pragma unroll kTurns
    for (int r0 = 0; r0 < kRows; r0 += kSome) {
      auto there = [&](int r) { return kRows % kSome == 0 || r0 + r < kRows; };
      if constexpr (Source::kPolled) {
        const uint32_t tag = tag_of(c);
        uint4 v[kSome * kEach];
        auto needed = [&](int i) { return k_of(i % kEach / kAccesses) < K && there(i / kEach); };
        auto address = [&](int i) { return source.address(r0 + i / kEach, k_of(i % kEach / kAccesses), i % kAccesses); };
        poll_start(v, tag, needed, address);
        if (opens && r0 == 0) open();
        if (c.thread == 0) poke(ring.polling, 1);
        poll_rest(c, v, tag, address);
        if (c.thread == 0) poke(ring.polling, 0);
        if (opens && r0 == 0) note_arrival(c);
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          if (!there(r)) break;
          float4 x[kRecords];
#pragma unroll
          for (int i = 0; i < kRecords; ++i) {
            const uint4* from = v + r * kEach + i * kAccesses;
            if constexpr (Source::kNormed) {
              const float2 a = floats_of(from[0]), b = floats_of(from[1]);
              x[i] = make_float4(a.x, a.y, b.x, b.y);
            } else {
              x[i] = Limbs::of_pairs(from[0].x, from[0].z);
            }
          }
          use(r0 + r, x);
        }
      } else {
        float4 v[kSome][kRecords];
#pragma unroll
        for (int r = 0; r < kSome; ++r)
#pragma unroll
          for (int i = 0; i < kRecords; ++i) {
            const int record = record_of(c, record0 + i), k = Source::kHalves ? record * 128 + c.lane / 8 * 32 + c.lane % 8 * 2 : k_of(i);
            v[r][i] = source.load(c, r0 + r, record < S::kRecords && there(r) ? k : K);
          }
        if (opens && r0 == 0) open();
#pragma unroll
        for (int r = 0; r < kSome; ++r) {
          if (!there(r)) break;
          use(r0 + r, v[r]);
        }
      }
    }
  }

  // Values of the warp's i-th record, times the weights of the norm, as pairs of bf16.
  static __device__ __forceinline__ uint2 rounded(const Context c, const Source& source, int i, float4 x) {
    if constexpr (Source::kNormed) {
      const int k = record_of(c, i) * 128 + c.lane * 4;
      x = times(x, !Source::kPolled || k < K ? source.weight(c, i, k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
    return make_uint2(pack_bf16(x.x, x.y), pack_bf16(x.z, x.w));
  }

  // Fetches all rows, finds their scales, and stages the first bytes.  `open` runs while the first values are on their way.
  template <class Open>
  __device__ __forceinline__ void start(const Context c, const Source& source, Open open) {
    constexpr int kPieces = kByPiece ? S::kTapePieces : 1;
    static_assert(!(Source::kNormed && kByPiece), "the weights of a normalised row are those of one piece");
#pragma unroll 1
    for (int piece = 0; piece < kPieces; ++piece) {
      visit(c, source, piece * kRecords, piece == 0, open, [&](int r, const float4 (&x)[kRecords]) {
        float squares = 0.0f;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kRecords; ++i) {
          if constexpr (Source::kNormed) {
            squares = fma_f32(x[i].x, x[i].x, squares);
            squares = fma_f32(x[i].y, x[i].y, squares);
            squares = fma_f32(x[i].z, x[i].z, squares);
            squares = fma_f32(x[i].w, x[i].w, squares);
          }
          const uint2 pairs = rounded(c, source, i, x[i]);
          const uint32_t mine = Limbs::largest(Limbs::of_pairs(pairs.x, pairs.y));
          most = mine > most ? mine : most;
          if constexpr (kKept) kept[r][i] = pairs;
          else if constexpr (!kByPiece) reinterpret_cast<uint2*>(place(i, r))[c.lane] = pairs;
        }
        most = __reduce_max_sync(~0u, most);
        if constexpr (Source::kNormed) squares = tree_sum(squares);
        if (c.lane == 0) {
          uint32_t* to = FastWork::maxima(r) + c.warp;
          if (kPieces > 1 && piece > 0 && *to > most) most = *to;
          *to = most;
          if constexpr (Source::kNormed) FastWork::squares()[r * kWarps + c.warp] = squares;
        }
      });
    }
    sync_tasks();
    if (c.thread < kRows) FastWork::row_scales()[c.thread] = byte_scale(most_of(c.thread));
    if constexpr (kByPiece) {
      stage(c, source, 0);
    } else {
#pragma unroll(kKept ? kRows : 1)
      for (int r = 0; r < kRows; ++r) {
        uint2 pairs[kRecords];
#pragma unroll
        for (int i = 0; i < kRecords; ++i) {
          if constexpr (kKept) pairs[i] = kept[r][i];
          else pairs[i] = reinterpret_cast<const uint2*>(place(i, r))[c.lane];
        }
        if constexpr (!kKept) __syncwarp();  // all lanes have read where bytes come
        put(c, r, pairs);
      }
      __syncwarp();
    }
  }

  static __device__ __forceinline__ uint32_t most_of(int r) {
    const uint32_t* each = FastWork::maxima(r);
    uint32_t most = each[0];
#pragma unroll
    for (int i = 1; i < kWarps; ++i) most = each[i] > most ? each[i] : most;
    return most;
  }

  // Stages a piece of rows that come piece by piece: the bytes of the warp's records from `record0` on.
  __device__ __forceinline__ void stage(const Context c, const Source& source, int record0) const {
    visit(c, source, record0, false, [] {}, [&](int r, const float4 (&x)[kRecords]) {
      uint2 pairs[kRecords];
#pragma unroll
      for (int i = 0; i < kRecords; ++i) pairs[i] = rounded(c, source, i, x[i]);
      put(c, r, pairs);
    });
    __syncwarp();
  }

  // The bytes of a row.  A lane has values 4q .. 4q + 3 of unit s, for q = lane % 8 and s = lane / 8; kHalves: 2q, 2q + 1, 2q + 16, 2q + 17.
  __device__ __forceinline__ void put(const Context c, int r, const uint2 (&pairs)[kRecords]) const {
    const ByteScale by = bytes_over(most_of(r));
    const int s = c.lane / 8, q = c.lane % 8;
#pragma unroll
    for (int i = 0; i < kRecords; ++i) {
      const float4 x = Limbs::of_pairs(pairs[i].x, pairs[i].y);
      const uint32_t bytes = four_bytes_of(by, x.x, x.y, x.z, x.w);
      uint8_t* to = place(i, r) + (s / 2 ^ r % 2) * 64 + s % 2 * 8;
      if constexpr (Source::kHalves) {
        auto pair = [&](int k) { return reinterpret_cast<uint16_t*>(to + k / 8 * 16 + k % 8); };
        *pair(2 * q) = uint16_t(bytes), *pair(2 * q + 16) = uint16_t(bytes >> 16);
      } else {
        *reinterpret_cast<uint32_t*>(to + q / 2 * 16 + q % 2 * 4) = bytes;
      }
    }
  }

  // The lane's bytes that meet the warp's j-th staged record.  Rows that do not exist have the bytes of the last one, and no sum.
  __device__ __forceinline__ Fragment fragment(const Context c, int j) const {
    auto half = [&](int row, int h) {
      const int r = row < kRows ? row : kRows - 1;
      return *reinterpret_cast<const uint4*>(place(j, r) + (h ^ r % 2) * 64 + c.lane % 4 * 16);
    };
    const int g = c.lane / 4;
    Fragment to{{half(g, 0), half(g, 1)}, {make_uint4(0, 0, 0, 0), make_uint4(0, 0, 0, 0)}};
    if constexpr (kRows > 8) to.high[0] = half(g + 8, 0), to.high[1] = half(g + 8, 1);
    return to;
  }
};

}  // namespace amk
#endif
