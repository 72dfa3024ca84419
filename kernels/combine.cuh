// Merging the partials of attention blocks: weights a_b = e^(m_b - max m), output sum_b a_b o_b / sum_b a_b l_b, blocks ascending.
// part holds rows [sequence][kv head][token][query head of the group], a row holds one slot a block: {m, l, o[head_dim]}; block b
// lies in slot (b % splits) * blocks + b / splits.
#pragma once
#include "common.cuh"
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

// The same sums of tagged partials, which other queues may still be writing: two values a lane, e and e + 1 of a head.
__device__ __noinline__ float2 merge_tagged(const Partials p, const uint2* row, int n_blocks, int e, int lane, int turn, uint32_t tag) {
  constexpr int kTogether = 16;
  uint32_t round = 0;
  auto give_up = [&](uint32_t seen) { return ++round % 256 == 0 && poll_is_over(turn, seen, tag); };
  BatchOfBlocks batch;
  float2 out = make_float2(0.0f, 0.0f);
#pragma unroll 1
  for (int b0 = 0; b0 < n_blocks; b0 += 32) {
    uint4 heads[4], v[kTogether];
    int split = b0 % p.splits, column = p.slot(b0);
    auto head = [&](int i) { return row + p.slot(b0 + 8 * i + lane % 8); };
    auto wanted = [&](int i) { return b0 + 8 * i + lane % 8 < n_blocks; };
#pragma unroll
    for (int i = 0; i < 4; ++i) heads[i] = wanted(i) ? load_elements(head(i)) : make_uint4(0, tag, 0, tag);
    auto load_some = [&](int b) {
      const int split_0 = split, column_0 = column;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        v[i] = make_uint4(0, tag, 0, tag);
        if (b + i < n_blocks) v[i] = load_elements(row + column + kPartHead + e);
        p.advance(split, column);
      }
#pragma unroll 1
      for (;;) {
        bool all = true;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) all = all && arrived(v[i], tag);
        if (all || give_up(v[0].y)) break;
        int s = split_0, at = column_0;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (!arrived(v[i], tag)) v[i] = load_elements(row + at + kPartHead + e);
          p.advance(s, at);
        }
      }
    };
    load_some(b0);
#pragma unroll 1
    for (;;) {
      bool all = true;
#pragma unroll
      for (int i = 0; i < 4; ++i) all = all && arrived(heads[i], tag);
      if (all || give_up(heads[0].y)) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (!arrived(heads[i], tag)) heads[i] = load_elements(head(i));
    }
    __syncwarp();
    float2 ml[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) ml[i] = wanted(i) ? floats_of(heads[i]) : make_float2(kMinusInfinity, 0.0f);
    const float keep = batch.weigh(ml);
    out.x *= keep, out.y *= keep;
#pragma unroll 1
    for (int b = b0;;) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float a = __shfl_sync(~0u, batch.weight[i / 8], (lane & 24) | (i % 8));
        const float2 x = floats_of(v[i]);
        out.x = fma_f32(a, x.x, out.x), out.y = fma_f32(a, x.y, out.y);
      }
      b += kTogether;
      if (b >= n_blocks || b == b0 + 32) break;
      batch.shift(), batch.shift();
      load_some(b);
      __syncwarp();
    }
  }
  const float inverse = reciprocal_fast(batch.total);
  return make_float2(out.x * inverse, out.y * inverse);
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

// Tagged: the heads of one group of a sequence, into pairs of bf16.  An octet of lanes merges 16 values of one head.
__device__ __forceinline__ void merge_group(const Context c, const Partials partials, int seq, int kv_head, int n_blocks, uint2* out) {
  constexpr int kOctets = kGroup * kHeadDim / 16;
#pragma unroll 1
  for (int i = c.warp; i < (kOctets + 3) / 4; i += kWarps) {
    const int octet = i * 4 + c.lane / 8, at = (octet < kOctets ? octet : 0) * 16 + c.lane % 8 * 2;
    const uint2* row = reinterpret_cast<const uint2*>(partials.part) + int64_t(seq * kHeads + kv_head * kGroup + at / kHeadDim) * partials.stride();
    const float2 v = merge_tagged(partials, row, n_blocks, at % kHeadDim, c.lane, c.turn, tag_of(c));
    if (octet < kOctets) store_element(out + (seq * kQSize + kv_head * kGroup * kHeadDim + at) / 2, pack_bf16(v.x, v.y), tag_of(c));
  }
}

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
