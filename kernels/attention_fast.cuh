// attn, fast: tensor cores on bf16 keys and values.  Queries and probabilities enter as two bf16 halves (value and rest), so that
// rounding is left to what is stored.  A tile of 16 query rows at a time; row r is token r / group, query head r % group.
//
// Per block of 128 positions: keys go from global memory into fragments (a warp owns eight positions in every 8 kWarps), values into shared
// memory; scores -> shared memory; one warp a row takes maximum, exponentials and sum; then the product with the values, one warp an
// 8-column tile over all 128 positions.  No sum depends on the other rows, on the split or on the chunk.
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
  static constexpr int kQueryRows = kChunk * kGroup > 8 ? 16 : 8;  // of a tile
  static constexpr int kValueStride = kHeadDim + 8, kQueryStride = kHeadDim + 8, kScoreStride = kBlock + 4, kProbStride = kBlock + 8;
  uint16_t* values;   // [kBlock][kValueStride]
  uint16_t* query[2]; // [kQueryRows][kQueryStride], value and rest
  uint16_t* prob[2];  // [kQueryRows][kProbStride]
  float* scores;      // [kQueryRows][kScoreStride]
  uint16_t* newest;   // [2][kHeadDim], tagged: key and value of this step
  float4* weights;    // [rows], tagged: how blocks that are all here are merged
  __device__ __forceinline__ explicit AttentionWork(uint8_t* work) {
    values = reinterpret_cast<uint16_t*>(work);
    query[0] = values + kBlock * kValueStride, query[1] = query[0] + kQueryRows * kQueryStride;
    prob[0] = query[1] + kQueryRows * kQueryStride, prob[1] = prob[0] + kQueryRows * kProbStride;
    scores = reinterpret_cast<float*>(prob[1] + kQueryRows * kProbStride);
    weights = reinterpret_cast<float4*>(scores + kQueryRows * kScoreStride), newest = reinterpret_cast<uint16_t*>(weights + kQueryRows);
  }
  __host__ __device__ static constexpr int bytes() {
    return (kBlock * kValueStride + 2 * kQueryRows * (kQueryStride + kProbStride)) * 2 + kQueryRows * (kScoreStride * 4 + 16) + kHeadDim * 4;
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

#if !AMK_EXACT
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim, kKeyLoads = D / 32, kKeyTiles = kBlock / (8 * kWarps), kTiles = (D / 8 + kWarps - 1) / kWarps;
  constexpr bool kTallTiles = kChunk * kGroup > 8;  // else rows 8 .. 16 of a tile do not exist
  using W = AttentionWork;
  const W work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks);
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) return;
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + (kTagged ? 2 : 1) * (int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride);
  const bool merges = kTagged && c.p(attn::out) >= 0, alone = merges && first < kRun * kBlock;  // alone: all blocks are ours
  auto put = [&](int64_t at, float a, float b) {  // two values of the partials
    if constexpr (kTagged)
      store_floats(reinterpret_cast<uint2*>(part) + at, a, b, tag_of(c));
    else
      *reinterpret_cast<float2*>(part + at) = make_float2(a, b);
  };
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const uint16_t* keys = c.at<const uint16_t>(attn::k) + head * D;
  const uint16_t* values = c.at<const uint16_t>(attn::v) + head * D;
  const int lane = c.lane, warp = c.warp, g = lane >> 2, t = lane & 3;

  const Runs runs{splits, blocks};
  const int split = c.p(attn::split);
  const bool takes_newest = kTagged && first / kBlock / kRun % splits == split;
  static_assert(!kTagged || kGroup <= 16, "tagged queries of a task stay in shared memory");
  int slot = split * blocks * (D + kPartHead);  // of block b: this split's blocks lie side by side
  float before[kTiles][4];                      // alone: products of the block before
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) before[i / 4][i % 4] = 0.0f;
#pragma unroll 1
  for (int own = 0, b = runs.block(split, 0); b * kBlock <= first + tokens - 1; b = runs.block(split, ++own), slot += D + kPartHead) {
    const int start = b * kBlock;
    const int there = first + tokens - start < kBlock ? first + tokens - start : kBlock;  // written positions of the block
    // Values to shared memory; positions that nobody wrote become zeros, since 0 * garbage may be NaN.
    const int used = up(there, 32);  // positions that enter the products
    const bool newest = kTagged && start + there - 1 == first;
    const int stored = there - (newest ? 1 : 0);  // positions that lie in the cache
    for (int i = c.thread; i < used * (D / 8); i += kThreads) {
      const int j = i / (D / 8), e = i % (D / 8) * 8;
      if (newest && j == stored) continue;  // comes with the queries
      const uint32_t to = shared_address(work.values + j * W::kValueStride + e);
      const uint16_t* from = values + (kv_row0 + start + (j < stored ? j : 0)) * kKvSize + e;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(j < stored ? 16 : 0) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    uint4 key[kKeyTiles][kKeyLoads];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const int j = (tile * kWarps + warp) * 8 + g;
      const uint16_t* from = keys + (kv_row0 + start + j) * kKvSize + t * 8;
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) key[tile][i] = j < stored ? load_shared_u32x4(from + i * 32) : make_uint4(0, 0, 0, 0);
    }
    const int skip = start > first ? (start - first) * kGroup : 0;  // rows before it end before this block
    for (int r0 = skip / 16 * 16; r0 < n_rows; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = n_rows - r0 < 16 ? n_rows - r0 : 16;
      auto put_query = [&](int r, int e, float2 q) {
        const uint2 halves = split_bf16(q.x, q.y);
        *reinterpret_cast<uint32_t*>(work.query[0] + r * W::kQueryStride + e) = halves.x;
        *reinterpret_cast<uint32_t*>(work.query[1] + r * W::kQueryStride + e) = halves.y;
      };
      if constexpr (kTagged) {
        constexpr int kMost = ((kGroup < 16 ? kGroup : 16) + 2) * (D / 2), kLoads = (kMost + kThreads - 1) / kThreads;
        // queries, newest key, newest value: once, for all blocks of the task
        const int queries = own == 0 ? tile_rows * (D / 2) : 0, all = own == 0 ? queries + (takes_newest ? D : 0) : 0;
        uint4 v[kLoads];
        poll(c, v, [&](int i) {
          const int at = c.thread + i * kThreads, beyond = at - queries;
          const int section = beyond < 0 ? (head * kGroup + r0) * D + 2 * at
                                         : (beyond < D / 2 ? (kHeads + head) * D + 2 * beyond : (kHeads + kKvHeads + head) * D + 2 * beyond - D);
          return at < all ? c.at<const uint2>(attn::q) + section : nullptr;
        });
#pragma unroll
        for (int i = 0; i < kLoads; ++i) {
          const int at = c.thread + i * kThreads, beyond = at - queries;
          const float2 x = floats_of(v[i]);
          if (at < queries) {
            put_query(at / (D / 2), at % (D / 2) * 2, x);
          } else if (at < all) {
            uint16_t* to = work.newest + 2 * beyond;
            if (newest && beyond >= D / 2) to = work.values + stored * W::kValueStride + 2 * beyond - D;
            *reinterpret_cast<uint32_t*>(to) = pack_bf16(x.x, x.y);
          }
        }
        if (newest && own > 0 && c.thread < D / 8)  // came with the queries
          reinterpret_cast<uint4*>(work.values + stored * W::kValueStride)[c.thread] = reinterpret_cast<const uint4*>(work.newest + D)[c.thread];
#if AMK_TRACE
        if (c.thread == 0) shared.arrived = trace_clock();
#endif
      } else {
        for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
          const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
          put_query(r - r0, e, load_shared_f32x2(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                                 (head * kGroup + r % kGroup) * D + e));
        }
      }
      sync_tasks();
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        if ((tile * kWarps + warp) * 8 >= there) break;  // no keys: the scores are masked below
        if constexpr (kTagged) {
          if (newest && (tile * kWarps + warp) * 8 + g == stored) {
#pragma unroll
            for (int i = 0; i < kKeyLoads; ++i) key[tile][i] = *reinterpret_cast<const uint4*>(work.newest + i * 32 + t * 8);
          }
        }
        float acc[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < kKeyLoads; ++i)
#pragma unroll
          for (int half = 1; half >= 0; --half) {
            const uint16_t* q = work.query[half] + g * W::kQueryStride + i * 32 + t * 8;
            const uint4 low = *reinterpret_cast<const uint4*>(q);
            const uint4 high = kTallTiles ? *reinterpret_cast<const uint4*>(q + 8 * W::kQueryStride) : make_uint4(0, 0, 0, 0);
            mma_bf16(half ? rest : acc, low.x, high.x, low.y, high.y, key[tile][i].x, key[tile][i].y);
            mma_bf16(half ? rest : acc, low.z, high.z, low.w, high.w, key[tile][i].z, key[tile][i].w);
          }
        float* s = work.scores + g * W::kScoreStride + (tile * kWarps + warp) * 8 + 2 * t;
        *reinterpret_cast<float2*>(s) = make_float2((acc[0] + rest[0]) * scale, (acc[1] + rest[1]) * scale);
        if (kTallTiles) *reinterpret_cast<float2*>(s + 8 * W::kScoreStride) = make_float2((acc[2] + rest[2]) * scale, (acc[3] + rest[3]) * scale);
      }
      sync_tasks();
      for (int local = warp; local < tile_rows; local += kWarps) {
        const int r = r0 + local;
        int n = first + r / kGroup + 1 - start;
        n = n < 0 ? 0 : (n < kBlock ? n : kBlock);
        const float4 v = *reinterpret_cast<const float4*>(work.scores + local * W::kScoreStride + lane * 4);
        float e[4] = {v.x, v.y, v.z, v.w}, m = kMinusInfinity, total = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) m = lane * 4 + i < n ? fmaxf(m, e[i]) : m;
        m = tree_max(m);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          e[i] = lane * 4 + i < n ? exp_fast(e[i] - m) : 0.0f;
          total = total + e[i];
        }
        total = tree_sum(total);
        const uint2 a = split_bf16(e[0], e[1]), d = split_bf16(e[2], e[3]);
        *reinterpret_cast<uint2*>(work.prob[0] + local * W::kProbStride + lane * 4) = make_uint2(a.x, d.x);
        *reinterpret_cast<uint2*>(work.prob[1] + local * W::kProbStride + lane * 4) = make_uint2(a.y, d.y);
        if (lane == 0 && n > 0 && !alone) put(r * part_stride + slot, m, total);
        if (kTagged && lane == 0 && alone) {  // as merge_fast weighs one block or two
          float4& w = work.weights[local];    // {maximum and sum of the block before}, {its weight, this one's weight, 1 / sum}
          if (newest && b > 0) {
            const float top = fmaxf(w.x, m), first_weight = exp_fast(w.x - top), weight = exp_fast(m - top);
            w = make_float4(first_weight, weight, reciprocal_fast(first_weight * w.y + weight * total), 0.0f);
          } else {
            w = newest ? make_float4(0.0f, 1.0f, reciprocal_fast(total), 0.0f) : make_float4(m, total, 0.0f, 0.0f);
          }
        }
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      sync_tasks();
#pragma unroll
      for (int nth = 0; nth < kTiles; ++nth) {
        const int tile = warp + nth * kWarps;
        if (D / 8 % kWarps != 0 && tile >= D / 8) break;
        float out[4] = {0.0f, 0.0f, 0.0f, 0.0f}, rest[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int k = 0; k < kBlock; k += 32) {
          if (k >= used) break;
          uint32_t v0, v1, v2, v3;
          asm volatile(  // four 8x8 tiles, transposed: positions k .. k+32 of eight columns as the second operand
              "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
              : "=r"(v0), "=r"(v1), "=r"(v2), "=r"(v3)
              : "r"(shared_address(work.values + (k + lane) * W::kValueStride + tile * 8))
              : "memory");
#pragma unroll
          for (int half = 1; half >= 0; --half) {
            const uint16_t* p = work.prob[half] + g * W::kProbStride + k + 2 * t;
            auto word = [&](int offset) { return *reinterpret_cast<const uint32_t*>(p + offset); };
            constexpr int kDown = 8 * W::kProbStride;
            mma_bf16(half ? rest : out, word(0), kTallTiles ? word(kDown) : 0u, word(8), kTallTiles ? word(kDown + 8) : 0u, v0, v1);
            mma_bf16(half ? rest : out, word(16), kTallTiles ? word(kDown + 16) : 0u, word(24), kTallTiles ? word(kDown + 24) : 0u, v2, v3);
          }
        }
        const int low = r0 + g, high = low + 8, column = tile * 8 + 2 * t;
        auto give = [&](int r, int local, bool high_row, float x, float y) {
          if (r < skip || r >= n_rows) return;
          if (alone) {  // what merge_fast gives for one block or two
            const float4 w = work.weights[local];
            if (b > 0) x = fma_f32(w.y, x, fma_f32(w.x, before[nth][high_row ? 2 : 0], 0.0f)), y = fma_f32(w.y, y, fma_f32(w.x, before[nth][high_row ? 3 : 1], 0.0f));
            store_element(c.at<uint2>(attn::out) + ((head * kGroup + r) * D + column) / 2, pack_bf16(x * w.z, y * w.z), tag_of(c));
          } else {
            put(r * part_stride + slot + kPartHead + column, x, y);
          }
        };
        if (alone && !newest) {  // one more block comes
#pragma unroll
          for (int i = 0; i < 4; ++i) before[nth][i] = out[i] + rest[i];
          continue;
        }
        give(low, g, false, out[0] + rest[0], out[1] + rest[1]);
        if (kTallTiles) give(high, g + 8, true, out[2] + rest[2], out[3] + rest[3]);
      }
      sync_tasks();
    }
  }
  if constexpr (kTagged) {
    if (merges && !alone) merge_group(c, Partials{c.at<const float>(attn::part), splits, blocks}, head, first / kBlock + 1, c.at<uint2>(attn::out));
  }
}

#endif

}  // namespace amk
