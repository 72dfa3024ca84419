// Activations of one row that meet pairs of row groups (quant_pairs.cuh): asked for, waited for, and staged as integers of three bytes,
// each warp those of its own records: all of a row, or of a long row one piece at a time, the next one under way meanwhile.
#pragma once
#include "activations.cuh"
#include "weights.cuh"

#if AMK_PAIRS
namespace amk {

// What a lane asks for of a record.
template <class Source, bool kPolled = Source::kPolled>
struct RowValues {
  using Type = float4;
  static constexpr int kAccesses = 1;
};
template <class Source>
struct RowValues<Source, true> {
  using Type = uint4;
  static constexpr int kAccesses = Source::kAccesses;
};

template <int K, class W, class Source, bool kByPiece>
struct PairRow {
  using S = Slices<K, W>;
  static constexpr int kLoads = kByPiece ? W::kPiece / kWarps : S::kPerWarp, kAccesses = RowValues<Source>::kAccesses;
  static constexpr bool kNorm = Source::kNormed && !kNormShared;
  typename RowValues<Source>::Type v[kLoads * kAccesses];
  float4 norm[kNorm ? kLoads : 1];  // weights of the norm
  uint8_t* staged;

  static __device__ __forceinline__ int record(const Context c, int piece, int i) { return c.warp + kWarps * (piece * kLoads + i); }
  static __device__ __forceinline__ int k_of(const Context c, int piece, int i) { return record(c, piece, i) * 128 + c.lane * 4; }

  __device__ __forceinline__ PairRow(const Context c, const Source& source, uint8_t* staged) : staged(staged) {
    if constexpr (kNorm) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) norm[i] = source.weight(c, -1, k_of(c, 0, i));
    }
  }
  __device__ __forceinline__ void ask(const Context c, const Source& source, int piece) {
    if constexpr (Source::kPolled) {
      auto needed = [&](int i) { return k_of(c, piece, i / kAccesses) < K; };
      poll_start(v, tag_of(c), needed, [&](int i) { return source.address(0, k_of(c, piece, i / kAccesses), i % kAccesses); });
    } else {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int k = Source::kHalves ? record(c, piece, i) * 128 + c.lane / 8 * 32 + c.lane % 8 * 2 : k_of(c, piece, i);
        v[i] = source.load(c, 0, record(c, piece, i) < S::kRecords ? k : K);
      }
    }
  }
  __device__ __forceinline__ void arrive(const Context c, const Source& source, int piece, bool first) {
    if constexpr (Source::kPolled) {
      if (first && c.thread == 0) poke(ring.polling, 1);
      poll_rest(c, v, tag_of(c), [&](int i) { return source.address(0, k_of(c, piece, i / kAccesses), i % kAccesses); });
      if (first && c.thread == 0) poke(ring.polling, 0);
      if (first) note_arrival(c);
    }
  }
  // The four values of a record, and the sum of squares so far.
  __device__ __forceinline__ float4 value(const Context c, const Source& source, int i, float& squares) const {
    if constexpr (!Source::kNormed) {
      if constexpr (Source::kPolled) {
        return Limbs::of_pairs(v[i].x, v[i].z);
      } else {
        return Limbs::of_floats(v[i]);
      }
    } else {
      float4 y;
      if constexpr (Source::kPolled) {
        const float2 a = floats_of(v[i * kAccesses]), b = floats_of(v[i * kAccesses + 1]);
        y = make_float4(a.x, a.y, b.x, b.y);
      } else {
        y = v[i];
      }
      squares = fma_f32(y.x, y.x, squares);
      squares = fma_f32(y.y, y.y, squares);
      squares = fma_f32(y.z, y.z, squares);
      squares = fma_f32(y.w, y.w, squares);
      if constexpr (kNorm) return times(y, norm[i]);
      const int k = k_of(c, 0, i);
      return times(y, !Source::kPolled || k < K ? source.weight(c, i, k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f));
    }
  }
  // Values that have arrived become integers, and those of the piece `next`, if it is one, are asked for.  The largest values of all records
  // first, then their integers in one go: exchanges of a warp keep what is around them apart.  Of records beyond K there are zeros, for
  // which there is room.
  __device__ __forceinline__ void stage(const Context c, const Source& source, int piece, int next) {
    float squares = 0.0f;
    float4 x[kLoads];
    uint32_t most[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) x[i] = value(c, source, i, squares);
    if (next >= 0) ask(c, source, next);
    if (kByPiece) __syncwarp();  // all lanes have read the piece before
#pragma unroll
    for (int i = 0; i < kLoads; ++i) most[i] = Limbs::most(x[i]);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) Limbs::put<Source::kHalves, true>(staged + i * W::kStageBytes, c.lane, x[i], most[i]);
    __syncwarp();
    if (Source::kNormed) {
      squares = tree_sum(squares);
      if (c.lane == 0) FastWork::squares()[c.warp] = squares;
    }
  }
};

}  // namespace amk
#endif
