// attn, fast: tensor cores on bf16 keys and values.  Queries and probabilities enter as two bf16 halves (value and rest), so that
// rounding is left to what is stored.  A tile of 16 query rows at a time; row r is token r / group, query head r % group.
//
// A block of 256 positions is spread over the warps, and a warp's keys and values stay in registers: scores, maximum, exponentials
// and products with the values need nobody else.  Values are turned for the second product by movmatrix.  Then the warps' results
// are merged in shared memory, warps ascending.  No sum depends on the other rows, on the split or on the chunk.
//
// Tagged: queries, the newest key and the newest value are polled, all other keys and values are on their way before; the task of
// split 0 merges the blocks of all splits.
#pragma once
#include "common.cuh"
#include "combine.cuh"
#include "gemv_fast.cuh"
#include "tagged.cuh"

namespace amk {

struct AttentionWork {
  static constexpr int kRowsOf = kChunk * kGroup, kQueryRows = kRowsOf > 8 ? 16 : 8;  // rows of a tile
  static constexpr int kOutRows = kRowsOf < kQueryRows ? kRowsOf : kQueryRows;        // that exist
  static constexpr int kQueryStride = kHeadDim + 8, kOutStride = kHeadDim + 4;
  uint16_t* query[2];  // [kQueryRows][kQueryStride], value and rest
  uint16_t* newest;    // [2][kHeadDim], tagged: key and value of this step
  float2* stats;       // [kQueryRows][kWarps], {maximum, sum} of a warp's positions
  float* out;          // [kWarps][kOutRows][kOutStride], products of a warp's positions
  __device__ __forceinline__ explicit AttentionWork(uint8_t* work) {
    query[0] = reinterpret_cast<uint16_t*>(work), query[1] = query[0] + kQueryRows * kQueryStride;
    newest = query[1] + kQueryRows * kQueryStride;
    stats = reinterpret_cast<float2*>(newest + 2 * kHeadDim), out = reinterpret_cast<float*>(stats + kQueryRows * kWarps);
  }
  __host__ __device__ static constexpr int bytes() {
    return (2 * kQueryRows * kQueryStride + 2 * kHeadDim) * 2 + kQueryRows * kWarps * 8 + kWarps * kOutRows * kOutStride * 4;
  }
};
static_assert(kExact || AttentionWork::bytes() <= kWorkBytes, "the work area is too small for attention");
static_assert(kExact || kHeadDim % 32 == 0, "fast attention takes head dimensions that are multiples of 32");

__device__ __forceinline__ uint2 split_bf16(float a, float b) {  // {values, rests} of two floats
  const uint32_t value = pack_bf16(a, b);
  return make_uint2(value, pack_bf16(a - float_of(value << 16), b - float_of(value & 0xffff0000u)));
}

// Keys and values are mutable: L2 loads, never the read-only path.
__device__ __forceinline__ uint4 load_shared_u32x4(const void* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

// Lane (g, t) holds row g, columns 2t and 2t + 1 of an 8 x 8 tile of bf16; after it, rows 2t and 2t + 1 of column g.
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));  // between the lanes of a warp
  return y;
}
__device__ __forceinline__ uint32_t word_of(const uint4& v, int j) { return j == 0 ? v.x : (j == 1 ? v.y : (j == 2 ? v.z : v.w)); }

#if !AMK_EXACT
// The keys and values of a warp's positions in one round over a block: tiles of eight positions, lane (g, t) holding columns
// 32 i + 8 t .. + 8 of position g.
struct HeldTiles {
  static constexpr int kLoads = kHeadDim / 32;
  static constexpr int kTiles = kHeadDim <= 64 ? 4 : 2, kRounds = kBlock / (8 * kWarps * kTiles);  // as registers allow
  static_assert(kRounds * kTiles * 8 * kWarps == kBlock, "the warps cover a block");
  uint4 key[kTiles][kLoads], value[kTiles][kLoads];

  // First position, inside the block, of a warp's tiles.
  static __device__ __forceinline__ int start(int round, int warp) { return (round * kWarps + warp) * kTiles * 8; }
  // Positions from `stored` on become zeros: 0 * garbage may be NaN.
  __device__ __forceinline__ void load(const uint16_t* keys, const uint16_t* values, int from, int stored, int g, int t) {
#pragma unroll
    for (int u = 0; u < kTiles; ++u) {
      const int j = from + u * 8 + g;
      const int64_t at = int64_t(j) * kKvSize + t * 8;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) key[u][i] = j < stored ? load_shared_u32x4(keys + at + i * 32) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) value[u][i] = j < stored ? load_shared_u32x4(values + at + i * 32) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void put(int from, int position, const uint16_t* newest, int g, int t) {
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

// One round of a warp: scores of its positions, and maximum, sum and weighted values added to what it has.
// `seen_low`, `seen_high`: positions of the block that rows g and g + 8 see; `rows`: rows of the tile.
__device__ __forceinline__ void attend(const AttentionWork& work, const HeldTiles& held, int warp, int round, int seen_low, int seen_high,
                                       int rows, float scale, int g, int t) {
  using H = HeldTiles;
  using W = AttentionWork;
  constexpr bool kTall = W::kQueryRows > 8;  // else rows 8 .. 16 of a tile do not exist
  constexpr int kHalves = kTall ? 2 : 1;
  const int from = H::start(round, warp);
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
  uint2 p[kHalves][H::kTiles];  // {values, rests} of a lane's pair of probabilities
  float keep[kHalves];          // weight of what was there
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    float top = s[h][0];
#pragma unroll
    for (int k = 1; k < 2 * H::kTiles; ++k) top = fmaxf(top, s[h][k]);
#pragma unroll
    for (int off = 1; off < 4; off <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, off));
    float2* stats = work.stats + (g + 8 * h) * kWarps + warp;
    const float2 old = round > 0 ? *stats : make_float2(kMinusInfinity, 0.0f);
    top = fmaxf(top, old.x);
    const float zero = top == kMinusInfinity ? 0.0f : top;  // a row that sees none of these positions
    float sum = 0.0f;
#pragma unroll
    for (int u = 0; u < H::kTiles; ++u) {
      const float a = exp_fast(s[h][2 * u] - zero), b = exp_fast(s[h][2 * u + 1] - zero);
      sum = sum + a;
      sum = sum + b;
      p[h][u] = split_bf16(a, b);
    }
#pragma unroll
    for (int off = 1; off < 4; off <<= 1) sum = sum + __shfl_xor_sync(~0u, sum, off);
    keep[h] = exp_fast(old.x - zero);
    if (H::kRounds > 1) __syncwarp();  // all lanes of the row have read
    if (t == 0) *stats = make_float2(top, fma_f32(old.y, keep[h], sum));
  }
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
      float4 a = make_float4(y[h][0], y[h][1], y[h][2], y[h][3]), b = make_float4(y[h][4], y[h][5], y[h][6], y[h][7]);
      if (round > 0) {
        const float4 x = to[0], z = to[1];
        a = make_float4(fma_f32(x.x, keep[h], a.x), fma_f32(x.y, keep[h], a.y), fma_f32(x.z, keep[h], a.z), fma_f32(x.w, keep[h], a.w));
        b = make_float4(fma_f32(z.x, keep[h], b.x), fma_f32(z.y, keep[h], b.y), fma_f32(z.z, keep[h], b.z), fma_f32(z.w, keep[h], b.w));
      }
      to[0] = a, to[1] = b;
    }
  }
}

__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  using W = AttentionWork;
  const W work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks), split = c.p(attn::split);
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) {
    if constexpr (kTagged) {  // the readers of the output wait for every row
      if (c.p(attn::out) >= 0)
        for (int i = c.thread; i < kGroup * D / 2; i += kThreads)
          store_element(c.at<uint2>(attn::out) + (seq * kQSize + head * kGroup * D) / 2 + i, 0, tag_of(c));
    }
    return;
  }
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + (kTagged ? 2 : 1) * (int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride);
  const bool merges = kTagged && c.p(attn::out) >= 0, alone = merges && first < kBlock;  // alone: there is one block only
  auto put = [&](int64_t at, float a, float b) {  // two values of the partials
    if constexpr (kTagged)
      store_floats(reinterpret_cast<uint2*>(part) + at, a, b, tag_of(c));
    else
      *reinterpret_cast<float2*>(part + at) = make_float2(a, b);
  };
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const int lane = c.lane, warp = c.warp, g = lane >> 2, t = lane & 3;
  static_assert(!kTagged || kGroup <= 16, "tagged queries of a task stay in shared memory");

  int slot = split * blocks * (D + kPartHead);  // of block b: this split's blocks lie side by side
  bool queries_here = false;
#pragma unroll 1
  for (int b = split; b * kBlock <= first + tokens - 1; b += splits, slot += D + kPartHead) {
    const int start = b * kBlock;
    const int there = first + tokens - start < kBlock ? first + tokens - start : kBlock;  // positions of the block that exist
    const bool newest = kTagged && start + there - 1 == first;
    const int stored = there - (newest ? 1 : 0);  // that lie in the cache
    const uint16_t* keys = c.at<const uint16_t>(attn::k) + (kv_row0 + start) * kKvSize + head * D;
    const uint16_t* values = c.at<const uint16_t>(attn::v) + (kv_row0 + start) * kKvSize + head * D;
    const int rounds = H::kRounds == 1 || there <= H::start(1, 0) ? 1 : H::kRounds;
    H held;
    if (H::kRounds == 1) held.load(keys, values, H::start(0, warp), stored, g, t);
    const int skip = start > first ? (start - first) * kGroup : 0;  // rows before it end before this block
#pragma unroll 1
    for (int r0 = skip / 16 * 16; r0 < n_rows; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = n_rows - r0 < 16 ? n_rows - r0 : 16;
      if (H::kRounds > 1) held.load(keys, values, H::start(0, warp), stored, g, t);
      auto put_query = [&](int r, int e, float2 q) {
        const uint2 halves = split_bf16(q.x, q.y);
        *reinterpret_cast<uint32_t*>(work.query[0] + r * W::kQueryStride + e) = halves.x;
        *reinterpret_cast<uint32_t*>(work.query[1] + r * W::kQueryStride + e) = halves.y;
      };
      if constexpr (kTagged) {
        if (!queries_here) {  // queries, newest key, newest value: once, for all blocks of the task
          constexpr int kMost = (kGroup + 2) * (D / 2), kPolls = (kMost + kThreads - 1) / kThreads, kQueries = kGroup * (D / 2);
          uint4 v[kPolls];
          poll(c, v, [&](int i) { return c.thread + i * kThreads < kMost; }, [&](int i) {
            const int at = c.thread + i * kThreads, beyond = at - kQueries;
            const int element = beyond < 0 ? head * kGroup * D + 2 * at
                                           : (beyond < D / 2 ? (kHeads + head) * D + 2 * beyond : (kHeads + kKvHeads + head) * D + 2 * beyond - D);
            return c.at<const uint2>(attn::q) + seq * (kQSize + 2 * kKvSize) + element;
          });
#pragma unroll
          for (int i = 0; i < kPolls; ++i) {
            const int at = c.thread + i * kThreads;
            const float2 x = floats_of(v[i]);
            if (at < kQueries)
              put_query(at / (D / 2), at % (D / 2) * 2, x);
            else if (at < kMost)
              reinterpret_cast<uint32_t*>(work.newest)[at - kQueries] = pack_bf16(x.x, x.y);
          }
          queries_here = true;
          note_arrival(c);
        }
      } else {
        for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
          const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
          put_query(r - r0, e, load_shared_f32x2(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                                 (head * kGroup + r % kGroup) * D + e));
        }
      }
      sync_tasks();
      auto seen = [&](int r) {  // positions of the block at or before the row's
        const int n = first + r / kGroup + 1 - start;
        return n < there ? n : there;
      };
#pragma unroll 1
      for (int round = 0; round < rounds; ++round) {
        if (H::kRounds > 1 && round > 0) held.load(keys, values, H::start(round, warp), stored, g, t);
        if (H::start(round, warp) >= there) break;  // and no later round has more
        if (newest) held.put(H::start(round, warp), stored, work.newest, g, t);
        attend(work, held, warp, round, seen(r0 + g), seen(r0 + g + 8), tile_rows, scale, g, t);
      }
      sync_tasks();
      // Two columns of a row a thread, warps ascending.
      const int warps = there < H::start(0, kWarps) ? (there + H::kTiles * 8 - 1) / (H::kTiles * 8) : kWarps;
      for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
        const int local = i / (D / 2), r = r0 + local, e = i % (D / 2) * 2;
        if (r < skip) continue;
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
        if (alone) {  // what merging one block gives
          const float inverse = reciprocal_fast(total);
          store_element(c.at<uint2>(attn::out) + (seq * kQSize + (head * kGroup + r) * D + e) / 2, pack_bf16(x.x * inverse, x.y * inverse), tag_of(c));
        } else {
          if (e == 0) put(r * part_stride + slot, top, total);
          put(r * part_stride + slot + kPartHead + e, x.x, x.y);
        }
      }
      if (r0 + 16 < n_rows || (b + splits) * kBlock <= first + tokens - 1) sync_tasks();  // the next round writes here
    }
  }
  if constexpr (kTagged) {
    if (merges && !alone) merge_group(c, Partials{c.at<const float>(attn::part), splits, blocks}, seq, head, first / kBlock + 1, c.at<uint2>(attn::out));
  }
}

#endif

}  // namespace amk
