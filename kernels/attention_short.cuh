// Tiles of attention for heads of at most 64 values: see attention_fast.cuh.
#pragma once
#include "attention_work.cuh"
#include "weights.cuh"

#if !AMK_EXACT && AMK_HEAD_DIM <= 64
namespace amk {

// The keys and values of a warp's positions of a block: tiles of eight positions, lane (g, t) holding columns 32 i + 8 t .. + 8 of
// position g.
struct HeldTiles {
  static constexpr int kLoads = kHeadDim / 32, kTiles = kBlock / (8 * kWarps);
  static_assert(kTiles * 8 * kWarps == kBlock && kTiles % 2 == 0, "the warps cover a block in pairs of tiles");
  static constexpr int kLate = 0;
  uint4 key[kTiles][kLoads], value[kTiles][kLoads];

  // What long heads do besides.
  __device__ __forceinline__ void ready() {}
  __device__ __forceinline__ void forget() {}
  __device__ __forceinline__ void forget_keys() {}
  __device__ __forceinline__ void load_late(const uint16_t*, int, int, int, int) {}

  // First position, inside the block, of a warp's tiles.
  static __device__ __forceinline__ int start(int warp) { return warp * kTiles * 8; }
  // Positions from `stored` on become zeros: 0 * garbage may be NaN.
  __device__ __forceinline__ static void load(uint4 (&to)[kTiles][kLoads], const uint16_t* rows, int warp, int stored, int g, int t) {
    const int from = start(warp);
    const uint16_t* mine = rows + ((from + g) * kKvSize + t * 8);
    const int left = stored - from - g;
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) to[u][i] = u * 8 < left ? load_shared_u32x4(mine + (u * 8 * kKvSize + i * 32)) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void put(int warp, int position, const uint16_t* newest, int g, int t) {
    const int from = start(warp);
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
      if (from + u * 8 + g == position) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          key[u][i] = *reinterpret_cast<const uint4*>(newest + i * 32 + t * 8);
          value[u][i] = *reinterpret_cast<const uint4*>(newest + kHeadDim + i * 32 + t * 8);
        }
      }
  }
};

// One block of a warp: scores of its positions, their maximum, sum and weighted values.  `seen_low`, `seen_high`: positions of the
// block that rows g and g + 8 see; `rows`: rows of the tile.  `keys_used`, `values_used`: called when their registers are free.
template <class KeysUsed, class ValuesUsed>
__device__ __forceinline__ void attend(const AttentionWork& work, HeldTiles& held, int warp, int, int seen_low, int seen_high, int rows,
                                       float scale, int g, int t, KeysUsed keys_used, ValuesUsed values_used) {
  using H = HeldTiles;
  using W = AttentionWork;
  constexpr bool kTall = W::kQueryRows > 8;  // else rows 8 .. 16 of a tile do not exist
  constexpr int kHalves = kTall ? 2 : 1;
  const int from = H::start(warp);
  float s[kHalves][H::kTiles * 2];
#pragma unroll
  for (int u = 0; u < H::kTiles; ++u) {
    float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int half = 1; half >= 0; --half)
#pragma unroll
      for (int i = 0; i < H::kLoads; ++i) {
        const uint16_t* q = work.query[half] + g * W::kQueryStride + i * 32 + t * 8;
        const uint4 low = *reinterpret_cast<const uint4*>(q);
        const uint4 high = kTall ? *reinterpret_cast<const uint4*>(q + 8 * W::kQueryStride) : make_uint4(0, 0, 0, 0);
        mma_bf16(acc, low.x, high.x, low.y, high.y, held.key[u][i].x, held.key[u][i].y);
        mma_bf16(acc, low.z, high.z, low.w, high.w, held.key[u][i].z, held.key[u][i].w);
      }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int j = from + u * 8 + 2 * t + k;
      s[0][2 * u + k] = j < seen_low ? acc[k] * scale : kMinusInfinity;
      if (kTall) s[kHalves - 1][2 * u + k] = j < seen_high ? acc[2 + k] * scale : kMinusInfinity;
    }
  }
  keys_used();
  uint2 p[kHalves][H::kTiles];  // {values, rests} of a lane's pair of probabilities
  probabilities(work, s, p, warp, g, t);
#pragma unroll
  for (int i = 0; i < H::kLoads; ++i) {
    float y[kHalves][8];  // columns 32 i + 8 t .. + 8 of rows g and g + 8
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t v[H::kTiles];
#pragma unroll
      for (int u = 0; u < H::kTiles; ++u) v[u] = transpose_8x8(word_of(held.value[u][i], j));
      float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int half = 1; half >= 0; --half)
#pragma unroll
        for (int u = 0; u < H::kTiles; u += 2) {
          const uint2 *low = p[0] + u, *high = p[kHalves - 1] + u;
          mma_bf16(acc, half ? low[0].y : low[0].x, kTall ? (half ? high[0].y : high[0].x) : 0u, half ? low[1].y : low[1].x,
                   kTall ? (half ? high[1].y : high[1].x) : 0u, v[u], v[u + 1]);
        }
      y[0][2 * j] = acc[0], y[0][2 * j + 1] = acc[1];
      if (kTall) y[kHalves - 1][2 * j] = acc[2], y[kHalves - 1][2 * j + 1] = acc[3];
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (g + 8 * h >= rows) continue;
      float4* to = reinterpret_cast<float4*>(work.out + (warp * W::kOutRows + g + 8 * h) * W::kOutStride + i * 32 + t * 8);
      to[0] = make_float4(y[h][0], y[h][1], y[h][2], y[h][3]), to[1] = make_float4(y[h][4], y[h][5], y[h][6], y[h][7]);
    }
  }
  values_used();
}

// The warps' results of a block merged, warps ascending, two columns of a row a thread: `put(row, column, x, maximum, sum)`.
// `there`: positions of the block that exist; rows from `skip` on.
template <class Put>
__device__ __forceinline__ void merge_warps(const Context c, const AttentionWork& work, int there, int skip, int rows, Put put) {
  using W = AttentionWork;
  constexpr int D = kHeadDim, kOfWarp = HeldTiles::kTiles * 8;
  const int warps = (there + kOfWarp - 1) / kOfWarp;
  for (int i = c.thread; i < rows * (D / 2); i += kThreads) {
    const int local = i / (D / 2), e = i % (D / 2) * 2;
    if (local < skip) continue;
    const float2* stats = work.stats + local * kWarps;
    float top = kMinusInfinity, total = 0.0f;
    float2 x = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int w = 0; w < warps; ++w) top = fmaxf(top, stats[w].x);
#pragma unroll 2
    for (int w = 0; w < warps; ++w) {
      const float weight = exp_fast(stats[w].x - top);
      const float2 y = *reinterpret_cast<const float2*>(work.out + (w * W::kOutRows + local) * W::kOutStride + e);
      total = fma_f32(weight, stats[w].y, total);
      x.x = fma_f32(weight, y.x, x.x), x.y = fma_f32(weight, y.y, x.y);
    }
    put(local, e, x, top, total);
  }
}

__device__ __forceinline__ void put_query(const AttentionWork& work, int r, int e, float2 q) {
  const uint2 halves = split_bf16(q.x, q.y);
  *reinterpret_cast<uint32_t*>(work.query[0] + r * AttentionWork::kQueryStride + e) = halves.x;
  *reinterpret_cast<uint32_t*>(work.query[1] + r * AttentionWork::kQueryStride + e) = halves.y;
}

}  // namespace amk
#endif
