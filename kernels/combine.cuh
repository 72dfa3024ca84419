// Merging the partials of attention blocks: weights a_b = e^(m_b - max m), output sum_b a_b o_b / sum_b a_b l_b, blocks ascending.
// part holds rows [sequence][kv head][token][query head of the group], a row holds one slot a block: {m, l, o[head_dim]}; block b
// lies in slot (b % splits) * blocks + b / splits.
#pragma once
#include "common.cuh"
#include "marked.cuh"
#include "tagged.cuh"

namespace amk {

struct Partials {
  const float* part;
  int splits, blocks;
  __device__ __forceinline__ int64_t stride() const { return int64_t(splits) * blocks * (kHeadDim + kPartHead); }
  // Row of activation row r and query head `head`.
  __device__ __forceinline__ const float* row(int r, int head) const {
    const int64_t index = (int64_t(r / kChunk) * kKvHeads + head / kGroup) * kChunk * kGroup + r % kChunk * kGroup + head % kGroup;
    return part + index * stride();
  }
  // From block b's split and slot to those of block b + 1.
  __device__ __forceinline__ void advance(int& split, int& slot) const {
    ++split, slot += blocks * (kHeadDim + kPartHead);
    if (split == splits) split = 0, slot -= (splits * blocks - 1) * (kHeadDim + kPartHead);
  }
  __device__ __forceinline__ int slot(int b) const { return ((b % splits) * blocks + b / splits) * (kHeadDim + kPartHead); }
};

// exact: one value of the output, blocks one by one.
__device__ __forceinline__ float merge_exact(const Partials& p, const float* row, int n_blocks, int e) {
  float top = load_shared_f32(row + p.slot(0));
  for (int b = 1; b < n_blocks; ++b) {
    const float m = load_shared_f32(row + p.slot(b));
    top = m > top ? m : top;
  }
  float total = 0.0f, out = 0.0f;
  for (int b = 0; b < n_blocks; ++b) {
    const float* from = row + p.slot(b);
    const float a = exp_f32(load_shared_f32(from) - top);
    total = fma_f32(a, load_shared_f32(from + 1), total);
    out = fma_f32(a, load_shared_f32(from + kPartHead + e), out);
  }
  return out / total;
}

// Weights of a batch of 32 blocks for an octet of lanes, and what all batches so far add up to.
struct BatchOfBlocks {
  float top = kMinusInfinity, total = 0.0f;
  float weight[4];  // of blocks 8i + (lane of the octet)

  // `heads`: {maximum, sum} of those blocks.  Returns the weight of what was there before: 0 for the first batch.
  __device__ __forceinline__ float weigh(const float2 (&heads)[4]) {
    float next = fmaxf(fmaxf(heads[0].x, heads[1].x), fmaxf(heads[2].x, heads[3].x));
#pragma unroll
    for (int off = 1; off < 8; off <<= 1) next = fmaxf(next, __shfl_xor_sync(~0u, next, off));
    next = fmaxf(next, top);
    const float keep = exp_fast(top - next);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      weight[i] = exp_fast(heads[i].x - next);
      sum = fma_f32(weight[i], heads[i].y, sum);
    }
#pragma unroll
    for (int off = 1; off < 8; off <<= 1) sum = sum + __shfl_xor_sync(~0u, sum, off);
    total = fma_f32(total, keep, sum);
    top = next;
    return keep;
  }
  __device__ __forceinline__ void shift() { weight[0] = weight[1], weight[1] = weight[2], weight[2] = weight[3]; }
};

// fast: four values a lane, e, e + 1, e + 16 and e + 17 of a head, so that an octet of lanes reads 64 bytes in a row; the octet
// works on one head and shares its weights.  Blocks in batches of 32 with one running maximum a batch; the loads of kTogether blocks
// are in flight together.
__device__ __noinline__ float4 merge_fast(const Partials p, const float* row, int n_blocks, int e, int lane) {
  constexpr int kTogether = 8;
  if (n_blocks == 1) {  // what the loop below computes, without it
    const float sum = load_shared_f32(row + 1);
    const float2 low = load_shared_f32x2(row + kPartHead + e), high = load_shared_f32x2(row + kPartHead + e + 16);
    const float inverse = reciprocal_fast(sum);
    return make_float4(low.x * inverse, low.y * inverse, high.x * inverse, high.y * inverse);
  }
  BatchOfBlocks batch;
  float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int b0 = 0; b0 < n_blocks; b0 += 32) {
    float2 heads[4];  // blocks b0 + 8i + (lane of the octet)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int b = b0 + 8 * i + lane % 8;
      heads[i] = b < n_blocks ? load_shared_f32x2(row + p.slot(b)) : make_float2(kMinusInfinity, 0.0f);
    }
    int split = b0 % p.splits, column = p.slot(b0);  // of the block that is loaded next
    float2 low[kTogether], high[kTogether];
    auto load_some = [&](int b) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        low[i] = high[i] = make_float2(0.0f, 0.0f);
        if (b + i < n_blocks) {  // slots are even: 8-byte loads
          low[i] = load_shared_f32x2(row + column + kPartHead + e);
          high[i] = load_shared_f32x2(row + column + kPartHead + e + 16);
        }
        p.advance(split, column);
      }
    };
    load_some(b0);
    const float keep = batch.weigh(heads);
    out.x *= keep, out.y *= keep, out.z *= keep, out.w *= keep;
#pragma unroll 1
    for (int b = b0;;) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float a = __shfl_sync(~0u, batch.weight[0], (lane & 24) | i);
        out.x = fma_f32(a, low[i].x, out.x), out.y = fma_f32(a, low[i].y, out.y);
        out.z = fma_f32(a, high[i].x, out.z), out.w = fma_f32(a, high[i].y, out.w);
      }
      b += kTogether;
      if (b >= n_blocks || b == b0 + 32) break;
      batch.shift();
      load_some(b);
    }
  }
  const float inverse = reciprocal_fast(batch.total);
  return make_float4(out.x * inverse, out.y * inverse, out.z * inverse, out.w * inverse);
}

// fast: activations of the output projection straight from the partials.  All lanes of a warp ask for the same row.
struct CombineSource {
  static constexpr bool kNormed = false, kHalves = true, kPolled = false;
  Partials partials;
  int pos_var;
  static constexpr float eps = 0.0f;
  __device__ __forceinline__ float4 load(const Context c, int r, int k) const {
    const bool there = k < kQSize;
    if (!c.active(pos_var, r)) return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    k = there ? k : 0;
    const float4 v = merge_fast(partials, partials.row(r, k / kHeadDim), c.position(pos_var, r) / kBlock + 1, k % kHeadDim, c.lane);
    return there ? v : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __device__ __forceinline__ float4 weight(const Context, int, int) const { return make_float4(1.0f, 1.0f, 1.0f, 1.0f); }
};

#if AMK_TAGGED
// The same sums of tagged partials, which other queues may still be writing: the heads of one group of a sequence, into pairs of bf16.
// All threads fetch, several blocks at a time, into shared memory; a thread adds up a pair of values, an octet shares its weights.
__device__ __forceinline__ void merge_group(const Context c, const Partials partials, int seq, int kv_head, int n_blocks, uint2* out) {
  constexpr int kPairs = kGroup * kHeadDim / 2, kHeadBytes = kGroup * 32 * 8, kOuts = (kPairs + kThreads - 1) / kThreads;
  constexpr int kFit = (kWorkBytes - kHeadBytes) / (kPairs * 8), kSome = kFit >= 8 ? 8 : (kFit >= 4 ? 4 : (kFit >= 2 ? 2 : 1));
  constexpr int kHeadLoads = (kGroup * 32 + kThreads - 1) / kThreads, kLoads = (kSome * kPairs + kThreads - 1) / kThreads;
  static_assert(kFit >= 1, "the work area is too small for a block of partials");
  float2* const heads = reinterpret_cast<float2*>(c.work());  // [kGroup][32]
  float2* const values = heads + kGroup * 32;                 // [kSome][kPairs]
  const uint2* const rows = reinterpret_cast<const uint2*>(partials.part) + (seq * kHeads + kv_head * kGroup) * partials.stride();
  const uint32_t tag = tag_of(c);
  BatchOfBlocks batch[kOuts];
  float2 sum[kOuts];
#pragma unroll
  for (int o = 0; o < kOuts; ++o) sum[o] = make_float2(0.0f, 0.0f);
#pragma unroll 1
  for (int b0 = 0; b0 < n_blocks; b0 += kSome) {
    const int here = n_blocks - b0 < kSome ? n_blocks - b0 : kSome;
    const bool opens = b0 % 32 == 0;
    uint4 v[kLoads], h[kHeadLoads];
    const int stride = int(partials.stride());
    int place[kLoads], head_place[kHeadLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int at = c.thread + i * kThreads, pair = at % kPairs;
      place[i] = pair / (kHeadDim / 2) * stride + partials.slot(b0 + at / kPairs) + kPartHead + pair % (kHeadDim / 2) * 2;
    }
#pragma unroll
    for (int i = 0; i < kHeadLoads; ++i) head_place[i] = (c.warp + i * kWarps) * stride + partials.slot(b0 + c.thread % 32);
    auto value_wanted = [&](int i) { return c.thread + i * kThreads < here * kPairs; };
    auto value = [&](int i) { return rows + place[i]; };
    auto head_wanted = [&](int i) { return opens && c.thread + i * kThreads < kGroup * 32 && b0 + c.thread % 32 < n_blocks; };
    auto head = [&](int i) { return rows + head_place[i]; };
    poll_start(h, tag, head_wanted, head);
    poll_start(v, tag, value_wanted, value);
    sync_tasks();  // nobody reads what is there
    poll_rest(c, h, tag, head);
    poll_rest(c, v, tag, value);
    if (opens) {
#pragma unroll
      for (int i = 0; i < kHeadLoads; ++i)
        if (c.thread + i * kThreads < kGroup * 32)
          heads[c.thread + i * kThreads] = head_wanted(i) ? floats_of(h[i]) : make_float2(kMinusInfinity, 0.0f);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (value_wanted(i)) values[c.thread + i * kThreads] = floats_of(v[i]);
    sync_tasks();
#pragma unroll
    for (int o = 0; o < kOuts; ++o) {
      const int pair = c.thread + o * kThreads < kPairs ? c.thread + o * kThreads : 0;
      if (opens) {
        float2 mine[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) mine[i] = heads[pair / (kHeadDim / 2) * 32 + 8 * i + c.lane % 8];
        const float keep = batch[o].weigh(mine);
        sum[o].x *= keep, sum[o].y *= keep;
      } else if (b0 % 8 == 0) {
        batch[o].shift();
      }
#pragma unroll 1
      for (int i = 0; i < here; ++i) {
        const float a = __shfl_sync(~0u, batch[o].weight[0], (c.lane & 24) | (b0 % 8 + i));
        const float2 x = values[i * kPairs + pair];
        sum[o].x = fma_f32(a, x.x, sum[o].x), sum[o].y = fma_f32(a, x.y, sum[o].y);
      }
    }
  }
#pragma unroll
  for (int o = 0; o < kOuts; ++o) {
    const int pair = c.thread + o * kThreads;
    const float inverse = reciprocal_fast(batch[o].total);
#if AMK_MARKED
    if (pair < kPairs) put_pair<kQSize>(c, out, seq, kv_head * kGroup * kHeadDim + 2 * pair, pack_bf16(sum[o].x * inverse, sum[o].y * inverse));
#else
    if (pair < kPairs) store_element(out + (seq * kQSize + kv_head * kGroup * kHeadDim) / 2 + pair, pack_bf16(sum[o].x * inverse, sum[o].y * inverse), tag);
#endif
  }
}
#endif

// attn_combine: the group's heads of one sequence and kv head.
__device__ __forceinline__ void run_attn_combine(const Context c) {
  namespace a = attn_combine;
  const Partials partials{c.at<const float>(a::part), c.p(a::splits), c.p(a::blocks)};
  const int seq = c.p(a::seq), head0 = c.p(a::kv_head) * kGroup, pos = c.p(a::pos_var);
  float* out = c.at(a::out);
  if constexpr (kExact) {
    for (int i = c.thread; i < kChunk * kGroup * kHeadDim; i += kThreads) {
      const int e = i % kHeadDim, head = head0 + i / kHeadDim % kGroup, r = seq * kChunk + i / kHeadDim / kGroup;
      const bool on = c.active(pos, r);
      out[int64_t(r) * kQSize + head * kHeadDim + e] =
          on ? merge_exact(partials, partials.row(r, head), c.position(pos, r) / kBlock + 1, e) : 0.0f;
    }
  } else {
    constexpr int kOctets = kGroup * kHeadDim / 32;  // an octet of lanes merges 32 values of one head
    for (int i = c.warp; i < kChunk * ((kOctets + 3) / 4); i += kWarps) {
      const int r = seq * kChunk + i / ((kOctets + 3) / 4), octet = i % ((kOctets + 3) / 4) * 4 + c.lane / 8;
      const bool on = c.active(pos, r), there = octet < kOctets;
      const int at = (there ? octet : 0) * 32 + c.lane % 8 * 2;
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (on) v = merge_fast(partials, partials.row(r, head0 + at / kHeadDim), c.position(pos, r) / kBlock + 1, at % kHeadDim, c.lane);
      if (!there) continue;
      float* to = out + int64_t(r) * kQSize + head0 * kHeadDim + at;
      *reinterpret_cast<float2*>(to) = make_float2(v.x, v.y), *reinterpret_cast<float2*>(to + 16) = make_float2(v.z, v.w);
    }
  }
}

}  // namespace amk
