// Tiles of attention for heads of more than 64 values: see attention_fast.cuh.
//
// A product of eight rows of queries has eight rows to spare: they are the rests of the bf16 values, so that one product takes both, and
// the two sums are added at its end.  Rows 8 .. 16 of a tile are products of their own, with the same sums.
//
// Of a block a warp has two tiles.  While there are no more positions than two blocks hold, the task of split 0 attends to all of them at
// once, as to one block, with four tiles a warp; the values of the second two come when the keys have been used, whose registers they
// need.  From there on blocks are spread over the splits.  So the order of the sums depends on a row's position alone.
#pragma once
#include "attention_work.cuh"
#include "weights.cuh"

#if !AMK_EXACT && AMK_HEAD_DIM > 64
namespace amk {

__device__ __forceinline__ void multiply_add(float (&c)[4], uint4 a, uint32_t b0, uint32_t b1) { mma_bf16(c, a.x, a.y, a.z, a.w, b0, b1); }
__device__ __forceinline__ void transpose_8x8(uint4& v) {
  v.x = transpose_8x8(v.x), v.y = transpose_8x8(v.y), v.z = transpose_8x8(v.z), v.w = transpose_8x8(v.w);
}
constexpr int kNear = near_blocks(kHeadDim) * kBlock;  // so many positions are attended to at once

// The keys and values of a warp's positions of a block: tiles of eight positions, lane (g, t) holding columns 32 i + 8 t .. + 8 of
// position g.  Values are turned before they are multiplied.
struct HeldTiles {
  static constexpr int kLoads = kHeadDim / 32, kTiles = kNear / (8 * kWarps), kSoon = 2, kLate = 2;
  static_assert(kTiles == 4 && kNear == 2 * kBlock && kBlock == 16 * kWarps, "the warps cover a block in two tiles, the near positions in four");
  uint4 key[kTiles][kLoads], value[kSoon][kLoads], late[kLate][kLoads];
  int fresh = -1;  // the warp's position that comes with the queries

  // First position of a tile of a warp: two neighbours in the first block, then one in each half of the second.
  static __device__ __forceinline__ int at(int warp, int u) { return u < 2 ? 8 * (2 * warp + u) : 8 * (kWarps * u + warp); }
  static __device__ __forceinline__ int start(int warp) { return at(warp, 0); }
  static __device__ __forceinline__ int warps(int there) { return there < 16 * kWarps ? (there + 15) / 16 : kWarps; }

  // Positions from `stored` on become zeros: 0 * garbage may be NaN.
  template <int kFirst = 0, int N>
  static __device__ __forceinline__ void load(uint4 (&to)[N][kLoads], const uint16_t* rows, int warp, int stored, int g, int t) {
#pragma unroll
    for (int pair = kFirst; pair < kFirst + N; pair += 2) {
      const int from = at(warp, pair) + g;
      const uint16_t* mine = rows + (from * kKvSize + t * 8);
      asm volatile("" : "+l"(mine));  // in a register, and all else in the instructions
#pragma unroll
      for (int u = pair; u < pair + 2; ++u) {
        const int beyond = (u - pair) * (pair < 2 ? 8 : 8 * kWarps);
#pragma unroll
        for (int i = 0; i < kLoads; ++i)
          to[u - kFirst][i] = from + beyond < stored ? load_shared_u32x4(mine + (beyond * kKvSize + i * 32)) : make_uint4(0, 0, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void load_late(const uint16_t* rows, int warp, int stored, int g, int t) {
    load<kSoon>(late, rows, warp, stored, g, t);
  }
  // Their registers are free from here on, whatever a branch may keep them for.
  template <int N>
  static __device__ __forceinline__ void forget(uint4 (&values)[N][kLoads]) {
#pragma unroll
    for (int u = 0; u < N; ++u)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) asm volatile("" : "=r"(values[u][i].x), "=r"(values[u][i].y), "=r"(values[u][i].z), "=r"(values[u][i].w));
  }
  __device__ __forceinline__ void forget_keys() { forget(key); }
  __device__ __forceinline__ void forget() { forget(key), forget(value); }
  template <int N>
  static __device__ __forceinline__ void turn(uint4 (&values)[N][kLoads]) {
#pragma unroll
    for (int u = 0; u < N; ++u)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) transpose_8x8(values[u][i]);
  }
  // The values have come, or are waited for.
  __device__ __forceinline__ void ready() { turn(value); }
  __device__ __forceinline__ void put(int warp, int position, const uint16_t* newest, int g, int t) {
    bool mine = false;
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      mine = mine || at(warp, u) == position / 8 * 8;
      if (at(warp, u) + g == position) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) key[u][i] = *reinterpret_cast<const uint4*>(newest + i * 32 + t * 8);
      }
    }
    fresh = mine ? position : -1;
  }
  // Where it goes there are zeros.
  __device__ __forceinline__ void put_value(int warp, const uint16_t* newest, int g, int t) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (g == fresh % 8) v = *reinterpret_cast<const uint4*>(newest + kHeadDim + i * 32 + t * 8);
      transpose_8x8(v);
#pragma unroll
      for (int u = 0; u < kTiles; ++u)
        if (at(warp, u) == fresh / 8 * 8) {
          uint4& to = u < kSoon ? value[u < kSoon ? u : 0][i] : late[u < kSoon ? 0 : u - kSoon][i];
          to = make_uint4(to.x | v.x, to.y | v.y, to.z | v.z, to.w | v.w);
        }
    }
  }
  __device__ __forceinline__ const uint4& turned(int u, int i) const { return u < kSoon ? value[u < kSoon ? u : 0][i] : late[u < kSoon ? 0 : u - kSoon][i]; }
};

// Brings the keys and values that attention will want to L2 while the projection before it waits for its activations: behind a stream of
// weights memory answers late, and an SM has too few loads under way to make up for it.  Each queue has some of the positions.
__device__ __forceinline__ void fetch_cache(const Context c) {
  if (c.op() != kQkv || c.warp != kWarps - 1) return;
  constexpr int kRowBytes = kKvSize * 2, kLines = (kRowBytes + 127) / 128;
#pragma unroll 1
  for (int seq = 0; seq < kBatch; ++seq) {
    const int stored = c.first(c.p(qkv::pos_var), seq);
#pragma unroll 1
    for (int r = int(blockIdx.x); r < stored; r += int(gridDim.x))
#pragma unroll 1
      for (int i = c.lane; i < 2 * kLines; i += 32) {
        const uint8_t* row = c.at<const uint8_t>(i < kLines ? qkv::k : qkv::v) + (int64_t(seq) * c.p(qkv::ctx) + r) * kRowBytes;
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + i % kLines * 128));
      }
  }
}

// Words of values and rests in turns, as a product takes them.
__device__ __forceinline__ void put_query(const AttentionWork& work, int r, int e, float2 q) {
  *reinterpret_cast<uint2*>(work.queries(r) + 2 * e) = split_bf16(q.x, q.y);
}

// Scores of a warp's first kTiles tiles; -infinity for the others, and where rows g and g + 8 do not see.
template <int kTiles>
__device__ __forceinline__ void score(const AttentionWork& work, const HeldTiles& held, int warp, const int (&seen)[2], float scale, int g, int t,
                                      float (&s)[AttentionWork::kOctets][HeldTiles::kTiles * 2]) {
  using H = HeldTiles;
#pragma unroll
  for (int h = 0; h < AttentionWork::kOctets; ++h) {
    float acc[kTiles][4];
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) acc[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < H::kLoads; ++i) {
      const uint4* q = reinterpret_cast<const uint4*>(work.queries(g + 8 * h) + 2 * (i * 32 + t * 8));
      const uint4 a = q[0], b = q[1];
#pragma unroll
      for (int u = 0; u < kTiles; ++u) multiply_add(acc[u], a, held.key[u][i].x, held.key[u][i].y);
#pragma unroll
      for (int u = 0; u < kTiles; ++u) multiply_add(acc[u], b, held.key[u][i].z, held.key[u][i].w);
    }
#pragma unroll
    for (int u = 0; u < H::kTiles; ++u)
#pragma unroll
      for (int k = 0; k < 2; ++k)
        s[h][2 * u + k] = u < kTiles && H::at(warp, u) + 2 * t + k < seen[h] ? (acc[u % kTiles][k] + acc[u % kTiles][2 + k]) * scale : kMinusInfinity;
  }
}
// Products of the values of as many tiles with their probabilities.
template <int kTiles>
__device__ __forceinline__ void weigh(const AttentionWork& work, const HeldTiles& held, int warp, int rows, const uint2 (&p)[AttentionWork::kOctets][HeldTiles::kTiles],
                                      int g, int t) {
  using H = HeldTiles;
  using W = AttentionWork;
#pragma unroll
  for (int i = 0; i < H::kLoads; ++i)
#pragma unroll
    for (int h = 0; h < AttentionWork::kOctets; ++h) {
      float y[8];  // columns 32 i + 8 t .. + 8 of row g + 8h
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int u = 0; u < kTiles; u += 2)
          multiply_add(acc, make_uint4(p[h][u].x, p[h][u].y, p[h][u + 1].x, p[h][u + 1].y), word_of(held.turned(u, i), j), word_of(held.turned(u + 1, i), j));
        y[2 * j] = acc[0] + acc[2], y[2 * j + 1] = acc[1] + acc[3];
      }
      if (g + 8 * h >= rows) continue;
      float4* to = reinterpret_cast<float4*>(work.out + (warp * W::kOutRows + g + 8 * h) * W::kOutStride + i * 32 + t * 8);
      to[0] = make_float4(y[0], y[1], y[2], y[3]), to[1] = make_float4(y[4], y[5], y[6], y[7]);
    }
}

// One block of a warp, as in attention_short.cuh; `keys_used` asks for late values.
template <class KeysUsed, class ValuesUsed>
__device__ __forceinline__ void attend(const AttentionWork& work, HeldTiles& held, int warp, int there, int seen_low, int seen_high, int rows,
                                       float scale, int g, int t, KeysUsed keys_used, ValuesUsed values_used) {
  using H = HeldTiles;
  using W = AttentionWork;
  constexpr int kOctets = W::kOctets;
  const bool both = H::at(warp, 2) < there;  // of the warp's positions some lie in the second block
  const int seen[2] = {seen_low, seen_high};
  float s[kOctets][H::kTiles * 2];
  if (both) {
    score<H::kTiles>(work, held, warp, seen, scale, g, t, s);
  } else {
    score<2>(work, held, warp, seen, scale, g, t, s);
  }
  keys_used();
  uint2 p[kOctets][H::kTiles];  // {values, rests} of a lane's pair of probabilities
  probabilities(work, s, p, warp, g, t);
  if (both) H::turn(held.late);
  if (held.fresh >= 0) held.put_value(warp, work.newest, g, t);
  if (both) {
    weigh<H::kTiles>(work, held, warp, rows, p, g, t);
  } else {
    weigh<2>(work, held, warp, rows, p, g, t);
  }
  values_used();
}

// The warps' results of a block merged, warps ascending, two columns of a row a thread: `put(row, column, x, maximum, sum)`.
// `there`: positions of the block that exist; rows from `skip` on.
template <class Put>
__device__ __forceinline__ void merge_warps(const Context c, const AttentionWork& work, int there, int skip, int rows, Put put) {
  using W = AttentionWork;
  constexpr int D = kHeadDim;
  const int warps = HeldTiles::warps(there);
  for (int i = c.thread; i < rows * (D / 2); i += kThreads) {
    const int local = i / (D / 2), e = i % (D / 2) * 2;
    if (local < skip) continue;
    float2 m[kWarps], x = make_float2(0.0f, 0.0f);
    float top = kMinusInfinity, total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      m[w] = work.stats[local * kWarps + w];
      if (w < warps) top = fmaxf(top, m[w].x);
    }
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      if (w < warps) {
        const float weight = exp_fast(m[w].x - top);
        const float2 y = *reinterpret_cast<const float2*>(work.out + (w * W::kOutRows + local) * W::kOutStride + e);
        total = fma_f32(weight, m[w].y, total);
        x.x = fma_f32(weight, y.x, x.x), x.y = fma_f32(weight, y.y, x.y);
      }
    put(local, e, x, top, total);
  }
}

}  // namespace amk
#endif
