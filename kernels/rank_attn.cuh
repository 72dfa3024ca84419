// Attention of a rank: some heads over every pieces-th position.  Keys and values of earlier steps are fetched ahead of the wait, the
// newest ones come with the queries.  A lane has eight values of a head; each warp goes through its positions with a running maximum,
// and the warps are merged in their order.
#pragma once
#include "rank_access.cuh"
#include "rank_mail.cuh"

namespace amk {

constexpr int kAtOnceHeads = kGroup < 4 ? kGroup : 4, kAtOncePasses = 4;
constexpr int kHeadLanes = kHeadDim / 8;  // lanes a position
constexpr int kWarpPart = kHeadDim + kPartHead;
static_assert(kHeadDim % 32 == 0 && kHeadDim <= 256 && (kHeadLanes & (kHeadLanes - 1)) == 0, "lanes share a position by halves");
static_assert(kWarps * kAtOnceHeads * kWarpPart * 4 <= kWorkBytes, "the work area is too small for the warps' parts");

__device__ __forceinline__ uint4 rounded_8(const float* x) {
  return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
}
__device__ __forceinline__ void widened_8(uint4 v, float (&x)[8]) {
  const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) x[2 * i] = __uint_as_float(word[i] << 16), x[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
}

__device__ __noinline__ void run_rank_attn(const Context c) {
  namespace a = rank_attn;
  const int pos = c.p(a::pos_var), piece = c.p(a::piece), pieces = c.p(a::pieces), kv_head = c.p(a::kv_head);
  const bool on = c.active(pos, 0);
  const int last = c.position(pos, 0), n = on ? piece_length(last, piece, pieces) : 0;
  const int dim = c.lane % kHeadLanes * 8;
  const uint16_t *keys = c.at<const uint16_t>(a::k) + kv_head * kHeadDim + dim, *values = c.at<const uint16_t>(a::v) + kv_head * kHeadDim + dim;
  uint4 key[kAtOncePasses], value[kAtOncePasses];
  auto fetch = [&](int pass0) {
#pragma unroll
    for (int i = 0; i < kAtOncePasses; ++i) {
      const int slot = piece_slot(pass0 + i, c.warp, c.lane, kHeadDim), at = piece + slot * pieces;
      key[i] = value[i] = make_uint4(0, 0, 0, 0);
      if (slot < n && at < last) key[i] = load_cached(keys + int64_t(at) * kKvSize), value[i] = load_cached(values + int64_t(at) * kKvSize);
    }
  };
  fetch(0);
  await_mail(c);
  const float* q = box(c, a::q);
  const float *new_key = q + kQSize + kv_head * kHeadDim + dim, *new_value = new_key + kKvSize;
  const float scale = c.real(a::scale);
  float* work = reinterpret_cast<float*>(c.work());
  const Route route(c);
#pragma unroll 1
  for (int h0 = 0; h0 < c.p(a::heads); h0 += kAtOnceHeads) {
    const int heads = c.p(a::heads) - h0 < kAtOnceHeads ? c.p(a::heads) - h0 : kAtOnceHeads;
    float x[kAtOnceHeads][8], sum[kAtOnceHeads][8], most[kAtOnceHeads], total[kAtOnceHeads];
#pragma unroll
    for (int h = 0; h < kAtOnceHeads; ++h) {
      most[h] = kMinusInfinity, total[h] = 0.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sum[h][j] = 0.0f;
        x[h][j] = h < heads ? round_bf16(q[(c.p(a::head) + h0 + h) * kHeadDim + dim + j]) : 0.0f;
      }
    }
#pragma unroll 1
    for (int pass0 = 0; pass0 * slots_a_pass(kHeadDim) < n; pass0 += kAtOncePasses) {
      if (pass0 > 0 || h0 > 0) fetch(pass0);
#pragma unroll
      for (int i = 0; i < kAtOncePasses; ++i) {
        const int slot = piece_slot(pass0 + i, c.warp, c.lane, kHeadDim);
        if (piece_slot(pass0 + i, c.warp, 0, kHeadDim) >= n) break;  // of the whole warp
        if (piece + slot * pieces == last) key[i] = rounded_8(new_key), value[i] = rounded_8(new_value);
        float k[8], v[8];
        widened_8(key[i], k);
        widened_8(value[i], v);
#pragma unroll
        for (int h = 0; h < kAtOnceHeads; ++h) {
          float dot = 0.0f;
#pragma unroll
          for (int j = 0; j < 8; ++j) dot = __fmaf_rn(k[j], x[h][j], dot);
#pragma unroll
          for (int off = kHeadLanes / 2; off > 0; off >>= 1) dot = dot + __shfl_xor_sync(~0u, dot, off);
          if (slot < n) {
            dot = dot * scale;
            const float next = fmaxf(most[h], dot), keep = exp_fast(most[h] - next), f = exp_fast(dot - next);
            most[h] = next;
            total[h] = total[h] * keep + f;
#pragma unroll
            for (int j = 0; j < 8; ++j) sum[h][j] = __fmaf_rn(sum[h][j], keep, f * v[j]);
          }
        }
      }
    }
    // the positions of a warp, by halves; then the warps
#pragma unroll
    for (int h = 0; h < kAtOnceHeads; ++h) {
#pragma unroll
      for (int off = kHeadLanes; off < 32; off <<= 1) {
        const float theirs = __shfl_xor_sync(~0u, most[h], off), next = fmaxf(most[h], theirs);
        const float keep = most[h] == next ? 1.0f : exp_fast(most[h] - next), take = theirs == next ? 1.0f : exp_fast(theirs - next);
        most[h] = next;
        total[h] = total[h] * keep + __shfl_xor_sync(~0u, total[h], off) * take;
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[h][j] = sum[h][j] * keep + __shfl_xor_sync(~0u, sum[h][j], off) * take;
      }
      float* to = work + (c.warp * kAtOnceHeads + h) * kWarpPart;
      if (c.lane < kHeadLanes) {
#pragma unroll
        for (int j = 0; j < 8; ++j) to[kPartHead + dim + j] = sum[h][j];
        if (c.lane == 0) to[0] = most[h], to[1] = total[h];
      }
    }
    sync_tasks();
    // four values a store, and behind those of a head its maximum and sum, to each CTA that merges pieces
    constexpr int kStores = kHeadDim / 4 + 1;
    for (int i = c.thread; i < heads * kStores * kCluster; i += kThreads) {
      const int cta = i % kCluster, quad = i / kCluster % kStores, h = i / kCluster / kStores;
      if (!route.goes_to(cta)) continue;
      float top = kMinusInfinity, s = 0.0f;
      float4 v = make_float4(0, 0, 0, 0);
      if (n > 0) {
        const float* from = work + h * kWarpPart;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) top = fmaxf(top, from[w * kAtOnceHeads * kWarpPart]);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          const float* part = from + w * kAtOnceHeads * kWarpPart;
          const float f = exp_fast(part[0] - top);
          s = s + f * part[1];
          if (quad == kStores - 1) continue;
          const float2 x = *reinterpret_cast<const float2*>(part + kPartHead + 4 * quad), y = *reinterpret_cast<const float2*>(part + kPartHead + 4 * quad + 2);
          v.x = v.x + f * x.x, v.y = v.y + f * x.y, v.z = v.z + f * y.x, v.w = v.w + f * y.y;
        }
      } else {  // a piece that nobody has reached weighs nothing
        top = on ? -3.402823466e38f : 0.0f, s = on ? 0.0f : 1.0f;
      }
      float* to = box(c, a::attn) + (c.p(a::head) + h0 + h) * pieces * kWarpPart;
      if (quad < kStores - 1)
        route.send(to + piece_value(piece, 4 * quad, kHeadDim), cta, v);
      else
        route.send(to + piece_head(piece, pieces, kHeadDim), cta, top, s);
    }
    if (h0 + kAtOnceHeads < c.p(a::heads)) sync_tasks();  // the warps' parts are written anew
  }
}

}  // namespace amk
