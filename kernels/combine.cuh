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

// Two floats of a row of the partials; tagged ones may not have arrived.
struct PlainPair {
  float2 v = {0.0f, 0.0f};
  static constexpr int kWords = 1;
  __device__ __forceinline__ void load(const float* p) { v = load_shared_f32x2(p); }
  __device__ __forceinline__ bool missing(uint32_t) const { return false; }
  __device__ __forceinline__ float2 get() const { return v; }
};
struct TaggedPair {
  uint4 v = {0, 0, 0, 0};
  static constexpr int kWords = 2;  // floats of memory per value
  __device__ __forceinline__ void load(const float* p) { v = load_elements(reinterpret_cast<const uint2*>(p)); }
  __device__ __forceinline__ bool missing(uint32_t tag) const { return !arrived(v, tag); }
  __device__ __forceinline__ float2 get() const { return floats_of(v); }
};

// fast: four values a lane, e, e + 1, e + 16 and e + 17 of a head, so that an octet of lanes reads 64 bytes in a row; the octet
// works on one head and shares its weights.  Blocks in batches of
// 32 with one running maximum a batch; the loads of kTogether blocks are in flight together.
template <class Pair>
__device__ __noinline__ float4 merge_fast(const Partials p, const float* row, int n_blocks, int e, int lane, int turn, uint32_t tag) {
  constexpr int kSlotFloats = kHeadDim + kPartHead, kTogether = 8 / Pair::kWords;
  uint32_t round = 0;
  auto again = [&](bool missing) { return missing && !(++round % 256 == 0 && poll_is_over(turn, 0, tag)); };
  if (Pair::kWords == 1 && n_blocks == 1) {  // what the loop below computes, without it
    const float sum = load_shared_f32(row + 1);
    const float2 low = load_shared_f32x2(row + kPartHead + e), high = load_shared_f32x2(row + kPartHead + e + 16);
    const float inverse = reciprocal_fast(sum);
    return make_float4(low.x * inverse, low.y * inverse, high.x * inverse, high.y * inverse);
  }
  float top = kMinusInfinity, total = 0.0f;
  float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int b0 = 0; b0 < n_blocks; b0 += 32) {
    Pair heads[4];
    float2 ml[4];  // blocks b0 + 8i + (lane of the octet)
    bool missing = false;
    auto load_heads = [&] {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int b = b0 + 8 * i + lane % 8;
        if (b < n_blocks) heads[i].load(row + p.slot(b) * Pair::kWords);
      }
    };
    load_heads();
    int split = b0 % p.splits, column = p.slot(b0);  // of the block that is loaded next
    Pair low[kTogether], high[kTogether];
    auto load_some = [&](int b) {
      const int split_0 = split, column_0 = column;
#pragma unroll 1
      do {  // tagged: until all of them have arrived
        split = split_0, column = column_0, missing = false;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          low[i] = high[i] = Pair{};
          if (b + i < n_blocks) {  // slots are even: 8-byte loads
            low[i].load(row + (column + kPartHead + e) * Pair::kWords);
            high[i].load(row + (column + kPartHead + e + 16) * Pair::kWords);
          }
          ++split, column += p.blocks * kSlotFloats;
          if (split == p.splits) split = 0, column -= (p.splits * p.blocks - 1) * kSlotFloats;
        }
        if constexpr (Pair::kWords == 2) {
#pragma unroll
          for (int i = 0; i < kTogether; ++i) missing = missing || (b + i < n_blocks && (low[i].missing(tag) || high[i].missing(tag)));
        }
      } while (Pair::kWords == 2 && again(missing));
      __syncwarp();
    };
    load_some(b0);
    if constexpr (Pair::kWords == 2) {
#pragma unroll 1
      for (;;) {
        missing = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) missing = missing || (b0 + 8 * i + lane % 8 < n_blocks && heads[i].missing(tag));
        if (!again(missing)) break;
        load_heads();
      }
      __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) ml[i] = b0 + 8 * i + lane % 8 < n_blocks ? heads[i].get() : make_float2(kMinusInfinity, 0.0f);
    float next = fmaxf(fmaxf(ml[0].x, ml[1].x), fmaxf(ml[2].x, ml[3].x));
#pragma unroll
    for (int off = 1; off < 8; off <<= 1) next = fmaxf(next, __shfl_xor_sync(~0u, next, off));
    next = fmaxf(next, top);
    const float keep = exp_fast(top - next);  // 0 for the first batch
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      ml[i].x = exp_fast(ml[i].x - next);
      sum = fma_f32(ml[i].x, ml[i].y, sum);
    }
#pragma unroll
    for (int off = 1; off < 8; off <<= 1) sum = sum + __shfl_xor_sync(~0u, sum, off);
    total = fma_f32(total, keep, sum);
    out.x *= keep, out.y *= keep, out.z *= keep, out.w *= keep;
    top = next;
#pragma unroll 1
    for (int b = b0;;) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float a = __shfl_sync(~0u, ml[0].x, (lane & 24) | ((b - b0) % 8 + i));
        const float2 first = low[i].get(), second = high[i].get();
        out.x = fma_f32(a, first.x, out.x), out.y = fma_f32(a, first.y, out.y);
        out.z = fma_f32(a, second.x, out.z), out.w = fma_f32(a, second.y, out.w);
      }
      b += kTogether;
      if (b >= n_blocks || b == b0 + 32) break;
      if ((b - b0) % 8 == 0) ml[0].x = ml[1].x, ml[1].x = ml[2].x, ml[2].x = ml[3].x;
      load_some(b);
    }
  }
  const float inverse = reciprocal_fast(total);
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
    const float4 v = merge_fast<PlainPair>(partials, partials.row(r, k / kHeadDim), c.position(pos_var, r) / kBlock + 1, k % kHeadDim, c.lane, c.turn, 0);
    return there ? v : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  __device__ __forceinline__ float4 weight(const Context, int, int) const { return make_float4(1.0f, 1.0f, 1.0f, 1.0f); }
};

// Tagged: the heads of one group, whose partials other queues may still be writing, into pairs of bf16.
__device__ __forceinline__ void merge_group(const Context c, const Partials partials, int seq, int kv_head, int n_blocks, uint2* out) {
  constexpr int kOctets = kGroup * kHeadDim / 32;
  for (int i = c.warp; i < (kOctets + 3) / 4; i += kWarps) {
    const int octet = i * 4 + c.lane / 8, at = (octet < kOctets ? octet : 0) * 32 + c.lane % 8 * 2;
    const float* row = partials.part + 2 * (int64_t(seq * kHeads + kv_head * kGroup + at / kHeadDim) * partials.stride());
    const float4 v = merge_fast<TaggedPair>(partials, row, n_blocks, at % kHeadDim, c.lane, c.turn, tag_of(c));
    if (octet >= kOctets) continue;
    uint2* to = out + (seq * kQSize + kv_head * kGroup * kHeadDim + at) / 2;
    store_element(to, pack_bf16(v.x, v.y), tag_of(c));
    store_element(to + 8, pack_bf16(v.z, v.w), tag_of(c));
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
      if (on) v = merge_fast<PlainPair>(partials, partials.row(r, head0 + at / kHeadDim), c.position(pos, r) / kBlock + 1, at % kHeadDim, c.lane, c.turn, 0);
      if (!there) continue;
      float* to = out + int64_t(r) * kQSize + head0 * kHeadDim + at;
      *reinterpret_cast<float2*>(to) = make_float2(v.x, v.y), *reinterpret_cast<float2*>(to + 16) = make_float2(v.z, v.w);
    }
  }
}

}  // namespace amk
