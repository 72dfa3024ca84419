// A CTA on the host: its threads are fibers that take turns at barriers and exchanges between lanes.
#pragma once
#include "host_strand.h"

#include <stdint.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "numerics.h"

#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) ulonglong2 { unsigned long long x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline ulonglong2 make_ulonglong2(uint64_t x, uint64_t y) { return {x, y}; }
inline uint32_t __float_as_uint(float x) { return amk::bits_of(x); }
inline float __uint_as_float(uint32_t x) { return amk::float_of(x); }
inline float __int_as_float(int32_t x) { return amk::float_of(uint32_t(x)); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }

namespace amk {

constexpr int kThreads = AMK_WARPS * 32;
struct Fiber {
  Strand strand;
  uint8_t* stack;
  const int* barrier;  // whose generation it waits to see changed; null: it can run
  int generation;
  bool done;
};
static Fiber fibers[kThreads];
static Strand turn_taker;
static int current;
static void (*thread_body)();

struct Barrier {
  int arrived = 0, generation = 0;
  void wait(int n) {
    if (++arrived == n) {
      arrived = 0, ++generation;
      return;
    }
    Fiber& f = fibers[current];
    f.barrier = &generation, f.generation = generation;
    turn_taker.take_over(f.strand);
  }
};
static Barrier cta, warps[AMK_WARPS];
static uint32_t lanes[AMK_WARPS][2][32][6];  // what lanes show each other, by parity of the exchange
struct Shown {
  uint32_t (*of)[6];
  Shown(std::initializer_list<uint32_t> words) {
    const int warp = current / 32;
    of = lanes[warp][warps[warp].generation & 1];
    int i = 0;
    for (uint32_t w : words) of[current % 32][i++] = w;
    warps[warp].wait(32);
  }
};
inline float __shfl_xor_sync(uint32_t, float v, int off) { return float_of(Shown({bits_of(v)}).of[current % 32 ^ off][0]); }
inline int32_t __shfl_xor_sync(uint32_t, int32_t v, int off) { return int32_t(Shown({uint32_t(v)}).of[current % 32 ^ off][0]); }
inline uint32_t __reduce_max_sync(uint32_t, uint32_t v) {
  const Shown shown({v});
  uint32_t most = 0;
  for (int i = 0; i < 32; ++i) most = shown.of[i][0] > most ? shown.of[i][0] : most;
  return most;
}
inline int32_t __reduce_add_sync(uint32_t, int32_t v) {
  const Shown shown({uint32_t(v)});
  int32_t sum = 0;
  for (int i = 0; i < 32; ++i) sum += int32_t(shown.of[i][0]);
  return sum;
}
inline bool __any_sync(uint32_t, bool v) {
  const Shown shown({uint32_t(v)});
  bool any = false;
  for (int i = 0; i < 32; ++i) any = any || shown.of[i][0];
  return any;
}
inline bool __all_sync(uint32_t mask, bool v) { return !__any_sync(mask, !v); }
inline void sync_tasks() { cta.wait(kThreads); }

inline void live() {  // of a fiber: one body after the other
  for (;;) {
    thread_body();
    fibers[current].done = true;
    turn_taker.take_over(fibers[current].strand);
  }
}

// Runs `body` in every thread.  False: some wait for each other for ever.
inline bool run_fibers(void (*body)()) {
  constexpr size_t kStack = 128 * 1024;
  thread_body = body;
  cta = Barrier{};
  for (Barrier& w : warps) w = Barrier{};
  for (Fiber& f : fibers) {
    if (!f.stack) f.stack = static_cast<uint8_t*>(std::malloc(kStack));
    if (!f.done) f.strand.prepare(f.stack, kStack, live);  // new, or given up in the middle of a body
    f.barrier = nullptr, f.done = false;
  }
  for (int left = kThreads; left > 0;) {
    bool moved = false;
    for (current = 0; current < kThreads; ++current) {
      Fiber& f = fibers[current];
      if (f.done || (f.barrier && *f.barrier == f.generation)) continue;
      f.barrier = nullptr, moved = true;
      f.strand.take_over(turn_taker);
      left -= f.done;
    }
    if (!moved) return false;
  }
  return true;
}

}  // namespace amk
