// A CTA on the host: its threads are fibers that take turns at barriers and exchanges between lanes.
#pragma once
#include <stdint.h>
#include <ucontext.h>

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
  ucontext_t context;
  uint8_t* stack;
  bool done;
};
static Fiber fibers[kThreads];
static ucontext_t turn_taker;
static int current;
inline void yield() { swapcontext(&fibers[current].context, &turn_taker); }

struct Barrier {
  int arrived = 0, generation = 0;
  void wait(int n) {
    const int mine = generation;
    if (++arrived == n) {
      arrived = 0, ++generation;
    } else {
      while (generation == mine) yield();
    }
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

// Runs `body` in every thread.  False: some wait for each other for ever.
inline bool run_fibers(void (*body)()) {
  constexpr size_t kStack = 128 * 1024;
  cta = Barrier{};
  for (Barrier& w : warps) w = Barrier{};
  for (Fiber& f : fibers) {
    if (!f.stack) f.stack = static_cast<uint8_t*>(std::malloc(kStack));
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack, f.context.uc_stack.ss_size = kStack, f.context.uc_link = &turn_taker;
    makecontext(&f.context, body, 0);
  }
  for (int round = 0, left = kThreads; left > 0; ++round) {
    if (round > 10'000'000) return false;
    left = 0;
    for (current = 0; current < kThreads; ++current)
      if (!fibers[current].done) ++left, swapcontext(&turn_taker, &fibers[current].context);
  }
  return true;
}
inline void end_fiber() {
  fibers[current].done = true;
  yield();
}

}  // namespace amk
