// How a queue begins, a task's counters, and the report of weights that are late: what the schedulers share.
#pragma once
#include "common.cuh"
#include "protocol.h"
#include "ring.cuh"
#include "trace.cuh"

namespace amk {

enum Outcome : int { kFailed = 0, kDone = 1, kSampled = 2 };

// What all threads of a CTA do before its first task; a barrier has to follow.
__device__ __forceinline__ void begin_queue(const Launch& launch, int thread, int base, int n) {
  if (thread == 0) {
    ring_init(launch.bound_ns);
    shared.where[0] = shared.cursor = make_int2(0, 0);
    shared.base = base, shared.n = n, shared.halt = launch.halt, shared.fault = launch.fault;
    Trace::anchor(launch, 0);
  }
  for (int i = thread; i <= launch.n_variables; i += blockDim.x) shared.variables[i] = launch.variables[i];
  if (n != 0 && thread < 32)
    reinterpret_cast<uint2*>(&shared.task[0])[thread] = __ldg(reinterpret_cast<const uint2*>(launch.tasks + base) + thread);
}

// All lanes of one warp: lane l polls wait l of the task, the last lane the halt word.  False when the launch stops before `step`.
__device__ __forceinline__ bool wait_for(const Launch& launch, const DeviceTask& task, int step, int position, int lane) {
  for (int from = 0; from < task.n_waits; from += 31) {
    const int i = from + lane;
    const bool mine = lane < 31 && i < task.n_waits;
    WaitWord w{0, 0, 0};
    if (mine) w = i < kInlineWaits ? task.waits[i] : launch.waits[task.more_waits + i - kInlineWaits];
    const int64_t needs = int64_t(step) * w.per_step + w.base;
    const uint32_t* address = mine ? launch.counters + int64_t(w.counter) * kCounterStride : launch.halt;
    uint64_t start = 0;
    for (uint32_t turn = 1;; ++turn) {
      const uint32_t seen = load_acquire(address);
      if (__all_sync(~0u, !mine || int64_t(seen) >= needs)) break;
      if (__any_sync(~0u, !mine && seen <= uint32_t(step))) return false;
      if (turn % 256 == 0) {
        const uint64_t now = now_ns();
        if (start == 0) start = now;
        const bool late = __shfl_sync(~0u, now - start > launch.bound_ns, 0);
        if (late) {
          if (mine && int64_t(seen) < needs)
            report(Fault{kSpinTimeout, task.id, task.op, int32_t(blockIdx.x), position, w.counter, step, 0, int64_t(seen), needs});
          return false;
        }
      }
    }
  }
  return true;
}

__device__ __forceinline__ void signal_all(const Launch& launch, const DeviceTask& task) {
  for (int i = 0; i < task.n_signals; ++i) {
    const SignalWord s = i < kInlineSignals ? task.signals[i] : launch.signals[task.more_signals + i - kInlineSignals];
    signal(launch.counters + int64_t(s.counter) * kCounterStride, uint32_t(s.amount));
  }
}

__device__ __noinline__ void report_weights(int turn) {
  const DeviceTask& task = shared.task[turn];
  const int2 where = shared.where[turn];
  report(Fault{kWeightTimeout, task.id, task.op, int32_t(blockIdx.x), where.y, 0, where.x, 0, 0, 0});
}

}  // namespace amk
