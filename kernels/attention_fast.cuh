// attn, fast: tensor cores on bf16 keys and values.  Queries and probabilities enter as two bf16 halves (value and rest), so that
// rounding is left to what is stored.  A tile of 16 query rows at a time; row r is token r / group, query head r % group.
//
// Per block of 128 positions: keys go from global memory into fragments (a warp owns eight positions in every 8 kWarps), values into shared
// memory; scores -> shared memory; one warp a row takes maximum, exponentials and sum; then the product with the values, one warp an
// 8-column tile over all 128 positions.  No sum depends on the other rows, on the split or on the chunk.
#pragma once
#include "common.cuh"
#include "gemv_fast.cuh"

namespace amk {

struct AttentionWork {
  static constexpr int kValueStride = kHeadDim + 8, kQueryStride = kHeadDim + 8, kScoreStride = kBlock + 4, kProbStride = kBlock + 8;
  uint16_t* values;   // [kBlock][kValueStride]
  uint16_t* query[2]; // [16][kQueryStride], value and rest
  uint16_t* prob[2];  // [16][kProbStride]
  float* scores;      // [16][kScoreStride]
  __device__ __forceinline__ explicit AttentionWork(uint8_t* work) {
    values = reinterpret_cast<uint16_t*>(work);
    query[0] = values + kBlock * kValueStride, query[1] = query[0] + 16 * kQueryStride;
    prob[0] = query[1] + 16 * kQueryStride, prob[1] = prob[0] + 16 * kProbStride;
    scores = reinterpret_cast<float*>(prob[1] + 16 * kProbStride);
  }
  __host__ __device__ static constexpr int bytes() {
    return (kBlock * kValueStride + 32 * kQueryStride + 32 * kProbStride) * 2 + 16 * kScoreStride * 4;
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
  constexpr int D = kHeadDim, kKeyLoads = D / 32, kKeyTiles = kBlock / (8 * kWarps);
  constexpr bool kTallTiles = kChunk * kGroup > 8;  // else rows 8 .. 16 of a tile do not exist
  using W = AttentionWork;
  const W work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks);
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) return;
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride;
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const uint16_t* keys = c.at<const uint16_t>(attn::k) + head * D;
  const uint16_t* values = c.at<const uint16_t>(attn::v) + head * D;
  const int lane = c.lane, warp = c.warp, g = lane >> 2, t = lane & 3;

  int slot = c.p(attn::split) * blocks * (D + kPartHead);  // of block b: this split's blocks lie side by side
  for (int b = c.p(attn::split); b * kBlock <= first + tokens - 1; b += splits, slot += D + kPartHead) {
    const int start = b * kBlock;
    const int there = first + tokens - start < kBlock ? first + tokens - start : kBlock;  // written positions of the block
    // Values to shared memory; positions that nobody wrote become zeros, since 0 * garbage may be NaN.
    const int used = up(there, 32);  // positions that enter the products
    for (int i = c.thread; i < used * (D / 8); i += kThreads) {
      const int j = i / (D / 8), e = i % (D / 8) * 8;
      const uint32_t to = shared_address(work.values + j * W::kValueStride + e);
      const uint16_t* from = values + (kv_row0 + start + (j < there ? j : 0)) * kKvSize + e;
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(j < there ? 16 : 0) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
    uint4 key[kKeyTiles][kKeyLoads];
#pragma unroll
    for (int tile = 0; tile < kKeyTiles; ++tile) {
      const int j = (tile * kWarps + warp) * 8 + g;
      const uint16_t* from = keys + (kv_row0 + start + j) * kKvSize + t * 8;
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) key[tile][i] = j < there ? load_shared_u32x4(from + i * 32) : make_uint4(0, 0, 0, 0);
    }
    const int skip = start > first ? (start - first) * kGroup : 0;  // rows before it end before this block
    for (int r0 = skip / 16 * 16; r0 < n_rows; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = n_rows - r0 < 16 ? n_rows - r0 : 16;
      for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
        const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
        const float2 q = load_shared_f32x2(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                (head * kGroup + r % kGroup) * D + e);
        const uint2 halves = split_bf16(q.x, q.y);
        *reinterpret_cast<uint32_t*>(work.query[0] + (r - r0) * W::kQueryStride + e) = halves.x;
        *reinterpret_cast<uint32_t*>(work.query[1] + (r - r0) * W::kQueryStride + e) = halves.y;
      }
      sync_tasks();
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        if ((tile * kWarps + warp) * 8 >= there) break;  // no keys: the scores are masked below
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
        if (lane == 0 && n > 0) *reinterpret_cast<float2*>(part + r * part_stride + slot) = make_float2(m, total);
      }
      asm volatile("cp.async.wait_all;" ::: "memory");
      sync_tasks();
      for (int tile = warp; tile < D / 8; tile += kWarps) {
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
        float* to = part + slot + kPartHead + tile * 8 + 2 * t;
        const int low = r0 + g, high = low + 8;
        if (low >= skip && low < n_rows) *reinterpret_cast<float2*>(to + low * part_stride) = make_float2(out[0] + rest[0], out[1] + rest[1]);
        if (kTallTiles && high >= skip && high < n_rows) *reinterpret_cast<float2*>(to + high * part_stride) = make_float2(out[2] + rest[2], out[3] + rest[3]);
      }
      sync_tasks();
    }
  }
}

#endif

}  // namespace amk
