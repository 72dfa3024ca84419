// Values of a step that carry no tag: a word that nobody has written yet holds a marker, so half as many bytes are polled as of tagged
// values (tagged.cuh), which matters where every CTA reads the values of many rows.
//
// The words of step s lie in half s % 2 of the buffer (marked_map.h).  Whoever writes a value puts the marker into the other half,
// whose values were read in the step before, and which the step behind this one waits for: the barrier of a step, through the
// sampler, stands between either and the marker.  Memory holds markers before a launch.  An access is of whole words, or pairs of
// them, that one store wrote, so what is no marker is the value of this step.
#pragma once
#include "common.cuh"
#include "tagged.cuh"

#ifndef AMK_MARKED_WINDOW  // accesses of 16 bytes that a lane has under way while it polls
#define AMK_MARKED_WINDOW 16
#endif

#if AMK_MARKED  // no other build has a name of this in it
#include "marked_map.h"
namespace amk {

static_assert(kTagged && kRows > 1 && kHidden % 32 == 0 && kQSize % 32 == 0 && kInter % 32 == 0, "marked values are tagged ones of several rows, in whole units");

__device__ __forceinline__ uint4 load_marked_pairs(const uint32_t* p) {  // written by stores of one word
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));  // polls
  return v;
}
__device__ __forceinline__ uint64_t load_marked_word(const uint32_t* p) {  // two floats, written by one store
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(v) : "l"(p));  // polls
  return v;
}
__device__ __forceinline__ void store_marked_pair(uint32_t* p, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(value) : "memory");  // published at once
}
__device__ __forceinline__ void store_marked_floats(uint32_t* p, uint64_t value) {
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(value) : "memory");  // published at once
}

__device__ __forceinline__ uint32_t* marked_words(const Context c, void* buffer, int words_a_row, int ahead = 0) {
  return static_cast<uint32_t*>(buffer) + marked_half(c.step() + ahead, kRows, words_a_row);
}
// Values k and k + 1 of row r, and the marker for the next step.
template <int K>
__device__ __forceinline__ void put_floats(const Context c, void* buffer, int r, int k, float a, float b) {
  const int word = marked_float(r, k, kRows);
  store_marked_floats(marked_words(c, buffer, K) + word, uint64_t(bits_of(b)) << 32 | bits_of(a));
  store_marked_floats(marked_words(c, buffer, K, 1) + word, uint64_t(kUnwritten) << 32 | kUnwritten);
}
template <int K>
__device__ __forceinline__ void put_pair(const Context c, void* buffer, int r, int k, uint32_t pair) {
  const int word = marked_pair(r, k, kRows);
  store_marked_pair(marked_words(c, buffer, K / 2) + word, pair);
  store_marked_pair(marked_words(c, buffer, K / 2, 1) + word, kUnwritten);
}

// Polls what has not arrived yet until everything has, as poll_rest of tagged.cuh.  `kPairs`: each word was stored alone.
template <bool kPairs>
__device__ __forceinline__ bool written(const uint4& v) {
  return v.x != kUnwritten && v.z != kUnwritten && (!kPairs || (v.y != kUnwritten && v.w != kUnwritten));
}
template <bool kPairs>
__device__ __forceinline__ uint4 load_marked(const uint32_t* p) {
  if constexpr (kPairs) return load_marked_pairs(p);
  return load_elements(reinterpret_cast<const uint2*>(p));
}
template <bool kPairs, int N, class Needed, class Address>
__device__ __forceinline__ void marked_start(uint4 (&v)[N], Needed needed, Address address) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = make_uint4(0, 0, 0, 0);
    if (needed(i)) v[i] = load_marked<kPairs>(address(i));
  }
}
template <bool kPairs, int N, class Address>
__device__ __forceinline__ void marked_rest(const Context c, uint4 (&v)[N], Address address) {
#pragma unroll 1
  for (uint32_t round = 1;; ++round) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < N; ++i) all = all && written<kPairs>(v[i]);
    if (all) break;
    if (round % 256 == 0 && poll_is_over(c.turn, 0, tag_of(c))) break;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (!written<kPairs>(v[i])) v[i] = load_marked<kPairs>(address(i));
  }
}
// Values k and k + 1 of rows of a buffer of floats: asked for, then polled.
template <int N, class Needed, class Address>
__device__ __forceinline__ void marked_words_start(uint64_t (&v)[N], Needed needed, Address address) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = needed(i) ? load_marked_word(address(i)) : 0;
}
template <int N, class Address>
__device__ __forceinline__ void marked_words_rest(const Context c, uint64_t (&v)[N], Address address) {
#pragma unroll 1
  for (uint32_t round = 1;; ++round) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < N; ++i) all = all && uint32_t(v[i]) != kUnwritten;
    if (all) break;
    if (round % 256 == 0 && poll_is_over(c.turn, 0, tag_of(c))) break;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (uint32_t(v[i]) == kUnwritten) v[i] = load_marked_word(address(i));
  }
}
__device__ __forceinline__ float2 floats_of(uint64_t v) { return make_float2(float_of(uint32_t(v)), float_of(uint32_t(v >> 32))); }

}  // namespace amk
#endif
