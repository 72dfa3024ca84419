// attn, exact: for every block of 128 positions that belongs to this split, and every query row of the group: scores (32 lanes and
// the tree), maximum, e^(s - max), their lane sum, and the weighted sum of the values position by position.  See docs/numerics.md.
#pragma once
#include "common.cuh"

namespace amk {

__device__ __forceinline__ float f32_of(float x) { return x; }
__device__ __forceinline__ float f32_of(uint16_t x) { return f32_of_bf16(x); }

__device__ __forceinline__ void run_attn_exact(const Context c) {
  constexpr int D = kHeadDim, DP = up(D, kLanes), kBlockRows = 8;  // query rows whose scores are kept together
  static_assert(kBlockRows * (DP + kBlock) * 4 <= kWorkBytes, "the work area is too small for attention");
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks);
  const int split = c.p(attn::split), pos = c.p(attn::pos_var);
  const int tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) return;
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride;
  float* q = reinterpret_cast<float*>(c.work());
  float* s = q + kBlockRows * DP;
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const Stored* keys = c.at<const Stored>(attn::k) + head * D;
  const Stored* values = c.at<const Stored>(attn::v) + head * D;

  for (int r0 = 0; r0 < n_rows; r0 += kBlockRows) {
    const int rows = n_rows - r0 < kBlockRows ? n_rows - r0 : kBlockRows;
    sync_tasks();
    for (int i = c.thread; i < rows * DP; i += kThreads) {
      const int r = r0 + i / DP, e = i % DP;
      q[i] = e < D ? load_shared_f32(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                     (head * kGroup + r % kGroup) * D + e)
                   : 0.0f;
    }
    sync_tasks();
    for (int b = split; b * kBlock <= first + tokens - 1; b += splits) {
      const int start = b * kBlock, slot = ((b % splits) * blocks + b / splits) * (D + kPartHead);
      auto seen = [&](int r) {  // keys of this block at or before the row's position
        const int n = first + (r0 + r) / kGroup + 1 - start;
        return n < 0 ? 0 : (n < kBlock ? n : kBlock);
      };
      for (int i = c.warp; i < rows * kBlock; i += kWarps) {
        const int r = i / kBlock, j = i % kBlock;
        if (j >= seen(r)) continue;
        const Stored* key = keys + (kv_row0 + start + j) * kKvSize;
        float acc = 0.0f;
#pragma unroll
        for (int e = c.lane; e < DP; e += kLanes) acc = fma_f32(e < D ? f32_of(key[e]) : 0.0f, q[r * DP + e], acc);
        acc = tree_sum(acc);
        if (c.lane == 0) s[r * kBlock + j] = acc * scale;
      }
      sync_tasks();
      for (int r = c.warp; r < rows; r += kWarps) {
        const int n = seen(r);
        if (n == 0) continue;
        float m = kMinusInfinity, total = 0.0f;
        for (int j = c.lane; j < n; j += kLanes) m = s[r * kBlock + j] > m ? s[r * kBlock + j] : m;
        m = tree_max(m) + 0.0f;
        for (int j = c.lane; j < up(n, kLanes); j += kLanes) {
          const float e = j < n ? exp_f32(s[r * kBlock + j] - m) : 0.0f;
          if (j < n) s[r * kBlock + j] = e;
          total = total + e;
        }
        total = tree_sum(total);
        if (c.lane == 0) part[(r0 + r) * part_stride + slot] = m, part[(r0 + r) * part_stride + slot + 1] = total;
      }
      sync_tasks();
      for (int i = c.thread; i < rows * D; i += kThreads) {
        const int r = i / D, e = i % D, n = seen(r);
        if (n == 0) continue;
        const Stored* value = values + (kv_row0 + start) * kKvSize + e;
        float acc = 0.0f;
#pragma unroll 8
        for (int j = 0; j < n; ++j) acc = fma_f32(s[r * kBlock + j], f32_of(value[int64_t(j) * kKvSize]), acc);
        part[(r0 + r) * part_stride + slot + kPartHead + e] = acc;
      }
      sync_tasks();
    }
  }
}

}  // namespace amk
