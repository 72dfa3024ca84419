// What every micro-kernel uses: the model's dimensions (compile-time constants from the schedule), the launch context of a CTA,
// loads that see other CTAs' stores, warp reductions.
#pragma once
#include <stdint.h>

#include "abi.h"
#include "device.h"
#include "numerics.h"

// Set by the host from the schedule's parameters and the target.
#if !defined(AMK_ROWS) || !defined(AMK_CHUNK) || !defined(AMK_HIDDEN) || !defined(AMK_INTER) || !defined(AMK_HEADS) || \
    !defined(AMK_KV_HEADS) || !defined(AMK_HEAD_DIM) || !defined(AMK_EXACT) || !defined(AMK_TAGGED) || !defined(AMK_WORK_BYTES)
#error "the host defines the model's dimensions; see amk_core/vm/program.py"
#endif
#ifndef AMK_MARKED  // values of several rows carry no tags, see marked.cuh
#define AMK_MARKED 0
#endif

namespace amk {

constexpr int kRows = AMK_ROWS;            // rows of a step: batch * chunk
constexpr int kChunk = AMK_CHUNK;          // tokens of a sequence in a step
constexpr int kBatch = kRows / kChunk;
constexpr int kHidden = AMK_HIDDEN, kInter = AMK_INTER, kHeads = AMK_HEADS, kKvHeads = AMK_KV_HEADS, kHeadDim = AMK_HEAD_DIM;
constexpr int kGroup = kHeads / kKvHeads;  // query heads that share a key
constexpr int kVocab = AMK_VOCAB;
constexpr int kQSize = kHeads * kHeadDim, kKvSize = kKvHeads * kHeadDim;
constexpr bool kExact = AMK_EXACT != 0;
constexpr bool kTagged = AMK_TAGGED != 0;  // activations carry their step, see tagged.cuh
static_assert(!kTagged || (!kExact && kChunk == 1 && kRows <= 16), "tagged values serve fast decoding");
constexpr int kWarps = AMK_WARPS;          // warps that execute tasks
constexpr int kThreads = kWarps * 32;
constexpr int kWorkBytes = AMK_WORK_BYTES; // shared memory a task may use as it likes
constexpr int kMaxVariables = 64;
constexpr int kBlock = AMK_BLOCK;          // positions of an attention block: part of the numeric plan
constexpr int kPartHead = 2;               // {maximum, sum} before the values of an attention partial
#define kMinusInfinity __int_as_float(int(0xff800000u))

__host__ __device__ constexpr int up(int n, int to) { return (n + to - 1) / to * to; }

// Shared memory of a CTA besides its ring.  At namespace scope, so that every access is known to be one to shared memory.
struct Shared {
  DeviceTask task[2];        // the task that runs and the next one
  int32_t variables[kMaxVariables];
  int2 where[2];             // step and place in the queue of the two tasks
  int2 cursor;               // place in the weight ring: slot, parity
  int32_t base, n;           // tasks of this queue: first one, how many
  int32_t go;                // the task of this turn may run
  int32_t tokens[kBatch];    // what the sampler chose, for the host
  volatile uint64_t poll_start;  // when a poll of this task began to last long; steers, see ring.cuh
  uint32_t* halt;            // of the launch
  Fault* fault;
#if AMK_TRACE
  uint32_t arrived;          // when the first warp had its tagged activations
#endif
};
__shared__ Shared shared;
extern __shared__ __align__(128) uint8_t dynamic_shared[];  // kWorkBytes that a task may use as it likes, then the ring

// What a task body sees.  Passed by value and held in registers: its address is never taken, or it would live in local memory,
// whose lines every acquire drops from L1.
struct Context {
  int turn, warp, lane, thread;

  // Reads the thread's number anew, so that nothing derived from it is kept, or spilled, over a whole turn of the queue.
  static __device__ __forceinline__ Context here(int turn) {
    int thread;
    asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
    return {turn, thread >> 5, thread & 31, thread};
  }
  __device__ __forceinline__ int step() const { return shared.where[turn].x; }
  __device__ __forceinline__ int op() const { return shared.task[turn].op; }
  __device__ __forceinline__ int p(int i) const { return shared.task[turn].par[i]; }
  __device__ __forceinline__ float real(int i) const { return __int_as_float(p(i)); }
  template <class T = float>
  __device__ __forceinline__ T* at(int i) const {
    return reinterpret_cast<T*>(shared.task[turn].at[i]);
  }
  __device__ __forceinline__ uint8_t* work() const { return dynamic_shared; }
  // Launch variables p0 and n of a sequence; token c of this step is active while step * chunk + c < n.
  __device__ __forceinline__ int first(int pos_var, int seq) const { return shared.variables[pos_var + seq] + step() * kChunk; }
  __device__ __forceinline__ int tokens(int pos_var, int seq) const {
    const int left = shared.variables[pos_var + kBatch + seq] - step() * kChunk;
    return left < 0 ? 0 : (left > kChunk ? kChunk : left);
  }
  __device__ __forceinline__ bool active(int pos_var, int row) const { return row % kChunk < tokens(pos_var, row / kChunk); }
  __device__ __forceinline__ int position(int pos_var, int row) const { return first(pos_var, row / kChunk) + row % kChunk; }
};

// The first fault of the launch is kept; all queues stop at their next task boundary.
__device__ __forceinline__ void report(const Fault& f) {
  if (atomicCAS(reinterpret_cast<int*>(&shared.fault->kind), int(kNoFault), int(f.kind)) == int(kNoFault)) {
    Fault* to = shared.fault;
    to->task = f.task, to->op = f.op, to->queue = f.queue, to->position = f.position, to->counter = f.counter;
    to->step = f.step, to->row = f.row, to->has = f.has, to->needs = f.needs;
  }
  atomicExch(shared.halt, 0u);
}

// Traced builds: the first warp has its tagged activations.
__device__ __forceinline__ void note_arrival(const Context c) {
#if AMK_TRACE
  uint32_t now;
  asm volatile("mov.u32 %0, %clock;" : "=r"(now)::"memory");  // low word of the SM clock
  if (c.thread == 0) shared.arrived = now;
#endif
}

// Barrier among the warps that execute tasks (the loader does not take part).
__device__ __forceinline__ void sync_tasks() { asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory"); }

// Whether any task thread says so; a barrier too.
__device__ __forceinline__ bool any_thread(bool mine) {
  uint32_t out;
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.or.pred q, 1, %2, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(out) : "r"(uint32_t(mine)), "n"(kThreads) : "memory");
  return out != 0;
}

// Loads of bytes that other CTAs write during the launch: from L2, never from a read-only or stale line.
__device__ __forceinline__ float load_shared_f32(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float2 load_shared_f32x2(const float* p) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_shared_f32x4(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ int32_t load_shared_i32(const int32_t* p) {
  int32_t v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Loads of tables, which nobody writes; volatile, so that they are issued where they stand: ahead of the wait.
__device__ __forceinline__ float load_table(const float* p) {
  float v;
  asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ float4 load_table_x4(const float* p) {
  float4 v;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// Sum over the 32 lanes by halves (16, 8, 4, 2, 1); every lane gets it.  The tree of docs/numerics.md.
__device__ __forceinline__ float tree_sum(float v) {
#pragma unroll
  for (int off = 16; off > 0; off >>= 1) v = v + __shfl_xor_sync(~0u, v, off);
  return v;
}
__device__ __forceinline__ float tree_max(float v) {
#pragma unroll
  for (int off = 16; off > 0; off >>= 1) {
    const float other = __shfl_xor_sync(~0u, v, off);
    v = other > v ? other : v;
  }
  return v;
}

// fast mode only: the hardware's approximations, within 2 units in the last place (PTX ISA: ex2, rcp, rsqrt).
__device__ __forceinline__ float exp_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float rsqrt_fast(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to nearest even, the first in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// Stored keys and values: float in exact mode, bf16 in fast mode.
#if AMK_EXACT
using Stored = float;
#else
using Stored = uint16_t;
#endif
__device__ __forceinline__ void store_kv(float* p, float a, float b) { p[0] = a, p[1] = b; }
__device__ __forceinline__ void store_kv(uint16_t* p, float a, float b) { *reinterpret_cast<uint32_t*>(p) = pack_bf16(a, b); }

}  // namespace amk
