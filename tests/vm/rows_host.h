// Fast decoding of several sequences on the host: what the kernels' own text, cut by host_text.py, expects of the card.  A poll finds
// what it asks for, since tasks run one after the other in the order of the schedule; whoever would wait aborts.
#pragma once
#include <bit>

#include "device.h"
#include "host_fibers.h"
#include "host_mma.h"
#include "marked_map.h"
#include "protocol.h"
#include "quant.h"

#define __host__
#define __launch_bounds__(...)
#define __restrict__

struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int __float_as_int(float x) { return int(amk::bits_of(x)); }

namespace amk {

inline void __syncwarp() { warps[current / 32].wait(32); }
inline float __shfl_sync(uint32_t, float v, int from) { return float_of(Shown({bits_of(v)}).of[from & 31][0]); }
inline int __shfl_sync(uint32_t, int v, int from) { return int(Shown({uint32_t(v)}).of[from & 31][0]); }
inline float __shfl_down_sync(uint32_t, float v, int by) {
  const int lane = current % 32;
  return float_of(Shown({bits_of(v)}).of[lane + by < 32 ? lane + by : lane][0]);
}
inline uint32_t __ballot_sync(uint32_t, bool v) {
  const Shown shown({uint32_t(v)});
  uint32_t out = 0;
  for (int i = 0; i < 32; ++i) out |= shown.of[i][0] << i;
  return out;
}
inline int __ffs(int v) { return __builtin_ffs(v); }
template <class T>
inline T __ldcs(const T* p) {
  return *p;
}
template <class T>
inline T __ldg(const T* p) {
  return *p;
}

inline float load_shared_f32(const float* p) { return *p; }
inline float2 load_shared_f32x2(const float* p) { return {p[0], p[1]}; }
inline float4 load_shared_f32x4(const float* p) { return {p[0], p[1], p[2], p[3]}; }
inline int32_t load_shared_i32(const int32_t* p) { return *p; }
inline float load_table(const float* p) { return *p; }
inline float4 load_table_x4(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline float exp_fast(float x) { return std::exp(x); }
inline float reciprocal_fast(float x) { return 1.0f / x; }
inline float rsqrt_fast(float x) { return 1.0f / std::sqrt(x); }
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bf16_of(high)) << 16 | bf16_of(low); }
inline uint4 load_shared_u32x4(const void* p) {
  uint4 v;
  std::memcpy(&v, p, 16);
  return v;
}
inline uint32_t transpose_8x8(uint32_t x) {  // lane (g, t): of row g columns 2t and 2t + 1; then of column g rows 2t and 2t + 1
  const Shown shown({x});
  const int g = current % 32 / 4, t = current % 4;
  auto of = [&](int row) { return shown.of[row * 4 + g / 2][0] >> g % 2 * 16 & 0xffff; };
  return of(2 * t + 1) << 16 | of(2 * t);
}
inline void copy_16(void* to, const void* from) { std::memcpy(to, from, 16); }
inline void copy_4(void* to, const void* from) { std::memcpy(to, from, 4); }

inline uint4 load_elements(const uint2* p) { return load_shared_u32x4(p); }
inline void store_elements(uint2* p, uint32_t first, uint32_t second, uint32_t tag) { p[0] = {first, tag}, p[1] = {second, tag}; }
inline void store_element(uint2* p, uint32_t value, uint32_t tag) { *p = {value, tag}; }
inline uint4 load_marked_pairs(const uint32_t* p) { return load_shared_u32x4(p); }
inline uint64_t load_marked_word(const uint32_t* p) {
  uint64_t v;
  std::memcpy(&v, p, 8);
  return v;
}
inline void store_marked_pair(uint32_t* p, uint32_t value) { *p = value; }
inline void store_marked_floats(uint32_t* p, uint64_t value) { std::memcpy(p, &value, 8); }
inline bool poll_is_over(int, uint32_t, uint32_t) { std::abort(); }  // the value should be there

struct {
  uint32_t polling;
} ring;
inline void poke(uint32_t& word, uint32_t value) { word = value; }
static const uint2 blockIdx{0, 0};
static const uint8_t* tape_at;  // of the task that runs

}  // namespace amk
