// In-kernel timing.  The queues are static, so record i of a queue and step *is* queue slot i: no ids are stored.  With AMK_TRACE
// 0 nothing of this is left in the machine code.
#pragma once
#include "common.cuh"
#include "device.h"

#ifndef AMK_TRACE
#define AMK_TRACE 0
#endif

namespace amk {

#if AMK_TRACE
__device__ __forceinline__ uint32_t trace_clock() {
  uint32_t t;
  asm volatile("mov.u32 %0, %clock;" : "=r"(t)::"memory");  // low word of the SM clock
  return t;
}

struct Trace {
  uint32_t fetch = 0, ready = 0, end = 0;
  __device__ void at_fetch() { fetch = shared.arrived = trace_clock(); }
  __device__ void at_ready() { ready = trace_clock(); }
  // `polled`: the task was ready when its tagged values had arrived.
  __device__ void at_end(bool polled) {
    end = trace_clock();
    if (polled && shared.arrived != fetch) ready = shared.arrived;
  }
  // Called by one thread after the task's signals, never before.
  __device__ void store(const Launch& launch, int step, int slot) {
    const uint32_t signalled = trace_clock();
    TraceRecord* to = launch.trace + size_t(step) * launch.n_tasks + slot;
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};"  // written once, read by the host: do not keep it in caches
                 ::"l"(to), "r"(fetch), "r"(ready), "r"(end), "r"(signalled) : "memory");
  }
  static __device__ void anchor(const Launch& launch, int which) {
    uint64_t clock, ns;
    asm volatile("mov.u64 %0, %clock64;" : "=l"(clock)::"memory");     // 64-bit SM clock
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)::"memory");    // one clock for all SMs, coarse
    launch.anchors[blockIdx.x * 2 + which] = TraceAnchor{clock, ns};
  }
};
#else
struct Trace {
  __device__ __forceinline__ void at_fetch() {}
  __device__ __forceinline__ void at_ready() {}
  __device__ __forceinline__ void at_end(bool) {}
  __device__ __forceinline__ void store(const Launch&, int, int) {}
  static __device__ __forceinline__ void anchor(const Launch&, int) {}
};
#endif

}  // namespace amk
