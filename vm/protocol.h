// Waiting for and signalling monotone counters, and handing over tagged elements, with a spin bound and an abort flag; one source for
// host threads and CTAs.
// A counter only grows during a launch.  A wait that returned kReady has acquired everything released by the signals it counted.
#pragma once
#include "abi.h"

#if defined(__CUDACC__)
#define AMK_PROTOCOL static __device__ __forceinline__
#else
#include <sched.h>
#include <time.h>

#include <atomic>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#define AMK_PROTOCOL static inline __attribute__((unused))
#endif

namespace amk {

enum WaitStatus : int32_t { kReady = 0, kTimedOut = 1, kAborted = 2, kStopped = 3, kOvertaken = 4 };

constexpr uint32_t kNeverStops = 0xffffffffu;

AMK_PROTOCOL uint32_t load_acquire(const uint32_t* p) {
#if defined(__CUDACC__)
  uint32_t v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");  // orders the reads behind it
  return v;
#else
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(p)).load(std::memory_order_acquire);
#endif
}

// Publishes everything the caller did before.  On the device one thread calls it, behind a CTA barrier.
AMK_PROTOCOL void signal(uint32_t* counter, uint32_t amount) {
#if defined(__CUDACC__)
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(amount) : "memory");  // a read-modify-write
#else
  std::atomic_ref<uint32_t>(*counter).fetch_add(amount, std::memory_order_release);
#endif
}

AMK_PROTOCOL uint64_t now_ns() {
#if defined(__CUDACC__)
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
#else
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return uint64_t(t.tv_sec) * 1000000000u + uint64_t(t.tv_nsec);
#endif
}

// One turn of a spin.  On the host there may be more queues than cores, so a spinner gives its core away soon, and sleeps when
// the wait lasts.
AMK_PROTOCOL void relax(uint32_t turn) {
#if defined(__CUDACC__)
  if (turn > 64) __nanosleep(20);
#else
  constexpr uint32_t kPauses = 200, kYields = 4000;
  if (turn < kPauses) {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  } else if (turn < kYields) {
    sched_yield();
  } else {
    const timespec nap{0, 50000};
    nanosleep(&nap, nullptr);
  }
#endif
}

// What a counter has to reach in `step` for a wait (t, e) on a counter that grows by `per_step`; 0 or less holds trivially.
AMK_PROTOCOL int64_t threshold(int64_t step, int64_t e, int64_t per_step, int64_t t) {
  return step + e < 0 ? 0 : (step + e) * per_step + t;
}

// Publishes that the launch ends before `step`; every queue finishes the steps before it.
AMK_PROTOCOL void store_release(uint32_t* p, uint32_t value) {
#if defined(__CUDACC__)
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
#else
  std::atomic_ref<uint32_t>(*p).store(value, std::memory_order_release);
#endif
}

struct Spin {
  const uint32_t* abort_flag;  // not zero: leave
  const uint32_t* stop_at;     // first step that must not run, kNeverStops while the launch goes on
  uint64_t bound_ns;
};

// Whether a wait on behalf of a task of `step` is to end in this turn: kReady while it goes on.  `start` is the wait's own, 0 at first.
AMK_PROTOCOL WaitStatus give_up(uint32_t turn, int64_t step, const Spin& spin, uint64_t* start) {
  constexpr uint32_t kTurnsPerCheck = 64;  // clock, abort flag and stop cost more than a turn
  if (turn % kTurnsPerCheck != kTurnsPerCheck - 1) return kReady;
  if (load_acquire(spin.abort_flag) != 0) return kAborted;
  if (int64_t(load_acquire(spin.stop_at)) <= step) return kStopped;
  const uint64_t now = now_ns();
  if (*start == 0) *start = now;
  return now - *start > spin.bound_ns ? kTimedOut : kReady;
}

// Waits until *counter >= needs, on behalf of a task of `step`.  A stop is seen while waiting too: the queue that would have
// signalled may have left already.  `has` receives the last value seen.
AMK_PROTOCOL WaitStatus wait_at_least(const uint32_t* counter, int64_t needs, int64_t step, const Spin& spin, int64_t* has) {
  uint64_t start = 0;
  for (uint32_t turn = 0;; ++turn) {
    *has = int64_t(load_acquire(counter));
    if (*has >= needs) return kReady;
    if (const WaitStatus over = give_up(turn, step, spin, &start); over != kReady) return over;
    relax(turn);
  }
}

// ---- tagged hand-off: an element and the tag that says whose it is travel in one aligned 8-byte word.  Relaxed accesses order
// nothing else: a tag proves that this element arrived, not that its writer ended.

AMK_PROTOCOL void store_tagged(uint64_t* word, uint32_t value, uint32_t tag) {
  const uint64_t both = uint64_t(tag) << 32 | value;
#if defined(__CUDACC__)
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(word), "l"(both) : "memory");  // one store, never torn
#else
  std::atomic_ref<uint64_t>(*word).store(both, std::memory_order_relaxed);
#endif
}

AMK_PROTOCOL uint64_t load_tagged(const uint64_t* word) {
#if defined(__CUDACC__)
  uint64_t both;
  asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(both) : "l"(word) : "memory");
  return both;
#else
  return std::atomic_ref<uint64_t>(*const_cast<uint64_t*>(word)).load(std::memory_order_relaxed);
#endif
}

// Waits until the word carries exactly `tag`, on behalf of a task of `step`.  Tags of a word only grow, so a newer one means that
// the value is gone: kOvertaken, never a value.  `has` receives the last tag seen.
AMK_PROTOCOL WaitStatus wait_tagged(const uint64_t* word, uint32_t tag, int64_t step, const Spin& spin, uint32_t* value, uint32_t* has) {
  uint64_t start = 0;
  for (uint32_t turn = 0;; ++turn) {
    const uint64_t both = load_tagged(word);
    *has = uint32_t(both >> 32);
    if (*has == tag) {
      *value = uint32_t(both);
      return kReady;
    }
    if (*has > tag) return kOvertaken;
    if (const WaitStatus over = give_up(turn, step, spin, &start); over != kReady) return over;
    relax(turn);
  }
}

}  // namespace amk
