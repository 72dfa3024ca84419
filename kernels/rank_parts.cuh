// Parts between ranks: elements of 16 bytes, three sums and the tag of their step, through L2.  o_sum and down_sum poll those of all
// ranks, 16 lanes an element, add them in the tree of docs/numerics.md to the residual stream and give that to the cluster; embed
// begins it.
#pragma once
#include "rank_access.cuh"
#include "rank_mail.cuh"

namespace amk {

constexpr int kSumPasses = AMK_RANK_SUM_PASSES;  // elements that a thread has of a tile, all of them polled at once
constexpr int kSumGroups = kThreads / 16;

__device__ __forceinline__ float low_float(uint64_t v) { return __uint_as_float(uint32_t(v)); }
__device__ __forceinline__ float high_float(uint64_t v) { return __uint_as_float(uint32_t(v >> 32)); }

// Sum over 16 lanes by halves; every lane gets it.
__device__ __forceinline__ float sum_of_16(float v) {
#pragma unroll
  for (int off = 8; off > 0; off >>= 1) v = v + __shfl_xor_sync(~0u, v, off);
  return v;
}

// Values of work memory to a mailbox, four a store where they lie on 16 bytes there: what a hand-off pays for is its stores.
__device__ __forceinline__ void send_row(const Context c, const Route& route, float* to, const float* from, int n, bool aligned) {
  const int each = aligned ? 4 : 1;
  for (int i = c.thread; i < n / each * kCluster; i += kThreads) {
    const int at = i / kCluster * each, cta = i % kCluster;
    if (!route.goes_to(cta)) continue;
    if (aligned)
      route.send(to + at, cta, *reinterpret_cast<const float4*>(from + at));
    else
      route.send(to + at, cta, from[at]);
  }
}

__device__ __noinline__ void run_rank_sum(const Context c) {
  namespace a = o_sum;  // down_sum has the same parameters in the same places
  const int col0 = c.p(a::col0), width = c.p(a::col1) - col0, parts = c.p(a::n), first = first_element(c.p(kElementWord));
  const int place = c.lane & 15, group = c.thread >> 4;
  const ulonglong2* from = c.at<const ulonglong2>(a::parts);
  float* h = box(c, a::h) + col0;
  float* row = reinterpret_cast<float*>(c.work());
  const uint32_t tag = tag_of(c);
  const Route route(c);
  float old[kSumPasses][kPartFloats];
  ulonglong2 v[kSumPasses];
  bool wanted[kSumPasses];
#pragma unroll
  for (int i = 0; i < kSumPasses; ++i) {
    const int e = i * kSumGroups + group;
    wanted[i] = place < parts && e * kPartFloats < width;
    v[i] = make_ulonglong2(0, uint64_t(tag) << 32);  // a part that does not exist adds zeros
    if (wanted[i]) v[i] = load_part(from + part_at(first + e, place, parts));
#pragma unroll
    for (int j = 0; j < kPartFloats; ++j) old[i][j] = e * kPartFloats + j < width ? h[e * kPartFloats + j] : 0.0f;
  }
#pragma unroll 1
  for (uint32_t round = 1;; ++round) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < kSumPasses; ++i) all = all && uint32_t(v[i].y >> 32) == tag;
    if (__all_sync(~0u, all)) break;
    if (round % 256 == 0 && __any_sync(~0u, poll_is_over(c.turn, uint32_t(v[0].y >> 32), tag))) break;
#pragma unroll
    for (int i = 0; i < kSumPasses; ++i)
      if (uint32_t(v[i].y >> 32) != tag) v[i] = load_part(from + part_at(first + i * kSumGroups + group, place, parts));
  }
  note_arrival(c);
#pragma unroll
  for (int i = 0; i < kSumPasses; ++i) {
    const int at = (i * kSumGroups + group) * kPartFloats;
    const float sum[kPartFloats] = {old[i][0] + sum_of_16(low_float(v[i].x)), old[i][1] + sum_of_16(high_float(v[i].x)),
                                    old[i][2] + sum_of_16(low_float(v[i].y))};
#pragma unroll
    for (int j = 0; j < kPartFloats; ++j)
      if (place == j && at + j < width) row[at + j] = sum[j];
  }
  sync_tasks();
  send_row(c, route, h, row, width, (col0 | width) % 4 == 0);
}

// The columns of the token's embedding that this queue begins the residual stream with.  False where the token does not exist.
__device__ __noinline__ bool run_rank_embed(const Context c, int* seen) {
  const int col0 = c.p(embed::col0), n = c.p(embed::col1) - col0;
  const int column = c.p(embed::feed) == 0 ? 0 : c.step();  // the sampler's token, or the next one of the prompt
  const int id = load_shared_i32(c.at<int32_t>(embed::token) + column);
  if (id != kNoToken && (id < 0 || id >= c.p(embed::vocab))) {
    *seen = id;
    return false;
  }
  const float scale = c.real(embed::scale);
  const uint16_t* from = c.at<const uint16_t>(embed::table) + int64_t(id) * kHidden + col0;
  float* to = box(c, embed::out) + col0;
  const Route route(c);
  for (int i = c.thread; i < n * kCluster; i += kThreads) {
    const int column = i / kCluster, cta = i % kCluster;
    if (route.goes_to(cta)) route.send(to + column, cta, id == kNoToken ? 0.0f : f32_of_bf16(from[column]) * scale);
  }
  return true;
}

}  // namespace amk
