// embed: out[r][col0:col1) = table[token of row r] * scale.
// Reads the token (generic), the table (read-only); writes its columns of out.  A row without a token becomes zeros.
#pragma once
#include "common.cuh"
#include "tagged.cuh"

namespace amk {

// Returns false and fills the fault's row, has and needs when a token does not exist.
__device__ __noinline__ bool run_embed(const Context c, int* row, int* seen) {
  const int col0 = c.p(embed::col0), col1 = c.p(embed::col1), vocab = c.p(embed::vocab);
  const float scale = c.real(embed::scale);
  for (int r = 0; r < kRows; ++r) {
    const int column = c.p(embed::feed) == 0 ? 0 : c.step() * kChunk + r % kChunk;
    const int id = load_shared_i32(c.at<int32_t>(embed::token) + (r / kChunk) * c.p(kStrideWord) + column);
    float* to = c.at(embed::out) + r * kHidden;
    auto put = [&](int i, float v) {
      if constexpr (kTagged)
        store_element(c.at<uint2>(embed::out) + i, bits_of(v), tag_of(c));
      else
        to[i] = v;
    };
    if (id == kNoToken) {
#pragma unroll 1
      for (int i = col0 + c.thread; i < col1; i += kThreads) put(i, 0.0f);
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
      put(i, scale != 1.0f ? v * scale : v);
    }
  }
  return true;
}

}  // namespace amk
