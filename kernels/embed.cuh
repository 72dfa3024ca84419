// embed: out[r][col0:col1) = table[token of row r] * scale.
// Reads the token (generic), the table (read-only); writes its columns of out.  A row without a token becomes zeros.
#pragma once
#include "common.cuh"
#include "marked.cuh"
#include "tagged.cuh"

namespace amk {

// Returns false and fills the fault's row, has and needs when a token does not exist.
__device__ __noinline__ bool run_embed(const Context c, int* row, int* seen) {
  const int col0 = c.p(embed::col0), col1 = c.p(embed::col1), vocab = c.p(embed::vocab);
  const float scale = c.real(embed::scale);
#if AMK_TAGGED
  // One token a lane, then pairs of columns of all rows, several under way at a time.
  static_assert(kRows <= 32, "a warp holds the tokens of a step");
  const int mine = c.lane < kRows ? load_shared_i32(c.at<int32_t>(embed::token) + c.lane * c.p(kStrideWord)) : kNoToken;
  const uint32_t bad = __ballot_sync(~0u, mine != kNoToken && (mine < 0 || mine >= vocab));
  if (bad != 0) {
    *row = __ffs(int(bad)) - 1, *seen = __shfl_sync(~0u, mine, *row);
    return false;
  }
  constexpr int kAtOnce = 4;
  const int pairs = (col1 - col0) / 2, n = kRows * pairs;
  for (int i0 = c.thread; i0 - c.lane < n; i0 += kAtOnce * kThreads) {
    uint32_t v[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = i0 + j * kThreads, r = i < n ? i / pairs : 0, id = __shfl_sync(~0u, mine, r);
      v[j] = 0;
      if (i < n && id != kNoToken) v[j] = __ldg(reinterpret_cast<const uint32_t*>(c.at<const uint16_t>(embed::table) + int64_t(id) * kHidden + col0) + i % pairs);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = i0 + j * kThreads;
      if (i >= n) break;
      float a = f32_of_bf16(uint16_t(v[j])), b = f32_of_bf16(uint16_t(v[j] >> 16));
      if (scale != 1.0f) a = a * scale, b = b * scale;
#if AMK_MARKED
      put_floats<kHidden>(c, c.at<void>(embed::out), i / pairs, col0 + i % pairs * 2, a, b);
#else
      store_floats(c.at<uint2>(embed::out) + i / pairs * kHidden + col0 + i % pairs * 2, a, b, tag_of(c));
#endif
    }
  }
  return true;
#endif
  for (int r = 0; r < kRows; ++r) {
    const int column = c.p(embed::feed) == 0 ? 0 : c.step() * kChunk + r % kChunk;
    const int id = load_shared_i32(c.at<int32_t>(embed::token) + (r / kChunk) * c.p(kStrideWord) + column);
    float* to = c.at(embed::out) + r * kHidden;
    if (id == kNoToken) {
#pragma unroll 1
      for (int i = col0 + c.thread; i < col1; i += kThreads) to[i] = 0.0f;
      continue;
    }
    if (id < 0 || id >= vocab) {
      *row = r, *seen = id;
      return false;
    }
    const int64_t from = int64_t(id) * kHidden;
    for (int i = col0 + c.thread; i < col1; i += kThreads) {
#if AMK_EXACT
      const float v = c.at<const float>(embed::table)[from + i];
#else
      const float v = f32_of_bf16(c.at<const uint16_t>(embed::table)[from + i]);
#endif
      to[i] = scale != 1.0f ? v * scale : v;
    }
  }
  return true;
}

}  // namespace amk
