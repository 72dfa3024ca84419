// attn, fast: tensor cores on bf16 keys and values.  Queries and probabilities enter as two bf16 halves (value and rest), so that
// rounding is left to what is stored.  A tile of 16 query rows at a time; row r is token r / group, query head r % group.
//
// A block of positions (as many as registers hold, see attn_block of lower.py) is spread over the warps, and a warp's keys and values
// stay in registers: scores, maximum, exponentials and products with the values need nobody else.  Values are turned for the second
// product by movmatrix.  Then the warps' results are merged in shared memory, warps ascending.  No sum depends on the other rows, on
// the split or on the chunk.
//
// Tagged: queries, the newest key and the newest value are polled, all other keys and values are on their way before: those of the
// first block ahead of the queries, those of a later one as soon as its predecessor's have been used.  The task of split 0 merges the
// blocks of all splits; of long heads (near_blocks of numerics.h) it does the first two by itself, without partials.
#pragma once
#include "common.cuh"
#include "combine.cuh"
#include "gemv_fast.cuh"
#include "marked.cuh"
#include "tagged.cuh"

#define AMK_NEAR (AMK_TAGGED && AMK_HEAD_DIM > 64)  // several blocks are near; in builds of short heads none of it is there

namespace amk {

static_assert(!kTagged || (near_blocks(kHeadDim) == 2) == bool(AMK_NEAR), "near_blocks of numerics.h");

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
  // [kGroup][kHeadDim / 2], near: two values of the first block, its maximum and sum.
  __device__ __forceinline__ float4* first() const { return reinterpret_cast<float4*>(out + kWarps * kOutRows * kOutStride); }
  __host__ __device__ static constexpr int bytes() {
    return (2 * kQueryRows * kQueryStride + 2 * kHeadDim) * 2 + kQueryRows * kWarps * 8 + kWarps * kOutRows * kOutStride * 4 +
           (AMK_NEAR ? kGroup * kHeadDim * 8 : 0);
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
// The keys and values of a warp's positions of a block: tiles of eight positions, lane (g, t) holding columns 32 i + 8 t .. + 8 of
// position g.
struct HeldTiles {
  static constexpr int kLoads = kHeadDim / 32, kTiles = kBlock / (8 * kWarps);
  static_assert(kTiles * 8 * kWarps == kBlock && kTiles % 2 == 0, "the warps cover a block in pairs of tiles");
  uint4 key[kTiles][kLoads], value[kTiles][kLoads];

  // First position, inside the block, of a warp's tiles.
  static __device__ __forceinline__ int start(int warp) { return warp * kTiles * 8; }
  // Positions from `stored` on become zeros: 0 * garbage may be NaN.
  __device__ __forceinline__ static void load(uint4 (&to)[kTiles][kLoads], const uint16_t* rows, int from, int stored, int g, int t) {
    const uint16_t* mine = rows + ((from + g) * kKvSize + t * 8);
    const int left = stored - from - g;
#pragma unroll
    for (int u = 0; u < kTiles; ++u)
#pragma unroll
      for (int i = 0; i < kLoads; ++i) to[u][i] = u * 8 < left ? load_shared_u32x4(mine + (u * 8 * kKvSize + i * 32)) : make_uint4(0, 0, 0, 0);
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

// One block of a warp: scores of its positions, their maximum, sum and weighted values.  `seen_low`, `seen_high`: positions of the
// block that rows g and g + 8 see; `rows`: rows of the tile.  `keys_used`, `values_used`: called when their registers are free.
template <class KeysUsed, class ValuesUsed>
__device__ __forceinline__ void attend(const AttentionWork& work, HeldTiles& held, int warp, int seen_low, int seen_high, int rows,
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
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    float top = s[h][0];
#pragma unroll
    for (int k = 1; k < 2 * H::kTiles; ++k) top = fmaxf(top, s[h][k]);
#pragma unroll
    for (int off = 1; off < 4; off <<= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, off));
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
    if (t == 0) work.stats[(g + 8 * h) * kWarps + warp] = make_float2(top, sum);
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

#if AMK_TAGGED
// One token of one sequence.
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  static_assert(kGroup <= 16, "the queries of a task are one tile");
  const AttentionWork work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), pos = c.p(attn::pos_var);
  const bool merges = c.p(attn::out) >= 0;
  [[maybe_unused]] uint2* const out = c.at<uint2>(attn::out) + (seq * kQSize + head * kGroup * D) / 2;
  if (c.tokens(pos, seq) == 0) {  // the readers of the output wait for every row
    if (merges)
      for (int i = c.thread; i < kGroup * D / 2; i += kThreads)
#if AMK_MARKED
        put_pair<kQSize>(c, c.at<void>(attn::out), seq, head * kGroup * D + 2 * i, 0);
#else
        store_element(out + i, 0, tag_of(c));
#endif
    return;
  }
  const int position = c.first(pos, seq), last = position / kBlock, splits = c.p(attn::splits), warp = c.warp, g = c.lane >> 2, t = c.lane & 3;
  int b = c.p(attn::split);
#if AMK_NEAR
  const bool near = last < near_blocks(kHeadDim);
  const int stride_blocks = near ? 1 : splits;
  if (b > (near ? 0 : last)) return;
#else
  const int stride_blocks = splits;
  if (b > last) return;
#endif

  // Positions of block b that lie in the cache; the newest one of the last block comes with the queries.
  auto stored = [&](int b) { return b == last ? position - b * kBlock : kBlock; };
  const int64_t row0 = (int64_t(seq) * c.p(attn::ctx)) * kKvSize + head * D;
  H held;
  auto load_keys = [&](int b) { H::load(held.key, c.at<const uint16_t>(attn::k) + row0 + b * (kBlock * kKvSize), H::start(warp), stored(b), g, t); };
  auto load_values = [&](int b) { H::load(held.value, c.at<const uint16_t>(attn::v) + row0 + b * (kBlock * kKvSize), H::start(warp), stored(b), g, t); };
  load_keys(b), load_values(b);
  {
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
        put_query(work, at / (D / 2), at % (D / 2) * 2, x);
      else if (at < kMost)
        reinterpret_cast<uint32_t*>(work.newest)[at - kQueries] = pack_bf16(x.x, x.y);
    }
    note_arrival(c);
  }
  sync_tasks();
  const float scale = c.real(attn::scale);
#pragma unroll 1
  for (;;) {
    const int there = b == last ? position + 1 - b * kBlock : kBlock, next = b + stride_blocks;
    const bool more = next <= last;
    if (H::start(warp) < there) {
      if (b == last) held.put(H::start(warp), there - 1, work.newest, g, t);
      attend(work, held, warp, there, there, kGroup, scale, g, t, [&] { if (more) load_keys(next); }, [&] { if (more) load_values(next); });
    }
    sync_tasks();
#if AMK_NEAR
    const bool alone = near;
#else
    const bool alone = last == 0;
#endif
    const int64_t stride = int64_t(splits) * c.p(attn::blocks) * (D + kPartHead);
    uint2* const part = c.at<uint2>(attn::part) + (seq * kHeads + head * kGroup) * stride +
                        (c.p(attn::split) * c.p(attn::blocks) + b / splits) * (D + kPartHead);
    merge_warps(c, work, there, 0, kGroup, [&](int r, int e, float2 x, float top, float total) {
#if AMK_NEAR
      float4* const first = work.first() + (r * D + e) / 2;  // of this thread alone, in both blocks
      if (near && more) {
        *first = make_float4(x.x, x.y, top, total);
        return;
      }
      if (near && b > 0) {
        const float4 y = *first;
        const float most = fmaxf(y.z, top), keep = exp_fast(y.z - most), take = exp_fast(top - most);
        total = keep * y.w + take * total;
        x.x = fma_f32(take, x.x, keep * y.x), x.y = fma_f32(take, x.y, keep * y.y);
      }
#endif
      if (alone) {  // what merging these blocks gives
        const float inverse = reciprocal_fast(total);
#if AMK_MARKED
        put_pair<kQSize>(c, c.at<void>(attn::out), seq, (head * kGroup + r) * D + e, pack_bf16(x.x * inverse, x.y * inverse));
#else
        store_element(out + (r * D + e) / 2, pack_bf16(x.x * inverse, x.y * inverse), tag_of(c));
#endif
      } else {
        if (e == 0) store_floats(part + r * stride, top, total, tag_of(c));
        store_floats(part + r * stride + kPartHead + e, x.x, x.y, tag_of(c));
      }
    });
    if (!more) break;
    sync_tasks();  // the next block's results go where these are
    b = next;
  }
#if AMK_NEAR
  if (near) return;
#endif
  if (merges && last > 0) merge_group(c, Partials{c.at<const float>(attn::part), splits, c.p(attn::blocks)}, seq, head, last + 1, c.at<uint2>(attn::out));
}
#else
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  const AttentionWork work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks), split = c.p(attn::split);
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) return;
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride;
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const int warp = c.warp, g = c.lane >> 2, t = c.lane & 3;

  int slot = split * blocks * (D + kPartHead);  // of block b: this split's blocks lie side by side
#pragma unroll 1
  for (int b = split; b * kBlock <= first + tokens - 1; b += splits, slot += D + kPartHead) {
    const int start = b * kBlock;
    const int there = first + tokens - start < kBlock ? first + tokens - start : kBlock;  // positions of the block that exist
    H held;
    H::load(held.key, c.at<const uint16_t>(attn::k) + (kv_row0 + start) * kKvSize + head * D, H::start(warp), there, g, t);
    H::load(held.value, c.at<const uint16_t>(attn::v) + (kv_row0 + start) * kKvSize + head * D, H::start(warp), there, g, t);
    const int skip = start > first ? (start - first) * kGroup : 0;  // rows before it end before this block
#pragma unroll 1
    for (int r0 = skip / 16 * 16; r0 < n_rows; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = n_rows - r0 < 16 ? n_rows - r0 : 16;
      for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
        const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
        put_query(work, r - r0, e, load_shared_f32x2(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                                     (head * kGroup + r % kGroup) * D + e));
      }
      sync_tasks();
      auto seen = [&](int r) {  // positions of the block at or before the row's
        const int n = first + r / kGroup + 1 - start;
        return n < there ? n : there;
      };
      if (H::start(warp) < there) attend(work, held, warp, seen(r0 + g), seen(r0 + g + 8), tile_rows, scale, g, t, [] {}, [] {});
      sync_tasks();
      merge_warps(c, work, there, skip - r0, tile_rows, [&](int r, int e, float2 x, float top, float total) {
        float* to = part + (r0 + r) * part_stride + slot;
        if (e == 0) *reinterpret_cast<float2*>(to) = make_float2(top, total);
        *reinterpret_cast<float2*>(to + kPartHead + e) = x;
      });
      if (r0 + 16 < n_rows || (b + splits) * kBlock <= first + tokens - 1) sync_tasks();  // the next round writes here
    }
  }
}
#endif

#endif

}  // namespace amk
