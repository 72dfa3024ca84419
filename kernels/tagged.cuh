// Values that carry the number of their step: 8-byte elements {value, tag}, written once a step and polled by whoever needs them.
// A tag proves that its own value arrived and orders nothing else, so there is no fence, no counter and no barrier in such a
// hand-off.  Two elements move in one access; each of them is atomic on its own (PTX ISA: vectors of relaxed accesses).
//
// The value is a float, or a pair of bf16 where the readers round to bf16 anyway.
#pragma once
#include "common.cuh"
#include "protocol.h"
#include "ring.cuh"

namespace amk {

__device__ __forceinline__ uint32_t tag_of(const Context c) { return uint32_t(c.step()) + 1; }  // memory is cleared before a launch

// Elements i and i + 1 (i even) as {value, tag, value, tag}.
__device__ __forceinline__ uint4 load_elements(const uint2* p) {
  uint64_t a, b;
  asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(p));  // polls: one message an element
  return make_uint4(uint32_t(a), uint32_t(a >> 32), uint32_t(b), uint32_t(b >> 32));
}
__device__ __forceinline__ void store_elements(uint2* p, uint32_t first, uint32_t second, uint32_t tag) {
  const uint64_t a = uint64_t(tag) << 32 | first, b = uint64_t(tag) << 32 | second;
  asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(p), "l"(a), "l"(b) : "memory");  // published at once
}
__device__ __forceinline__ void store_floats(uint2* p, float a, float b, uint32_t tag) {
  store_elements(p, uint32_t(__float_as_int(a)), uint32_t(__float_as_int(b)), tag);
}
__device__ __forceinline__ void store_element(uint2* p, uint32_t value, uint32_t tag) {
  const uint64_t a = uint64_t(tag) << 32 | value;
  asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(p), "l"(a) : "memory");  // published at once
}
__device__ __forceinline__ float2 floats_of(uint4 v) { return make_float2(float_of(v.x), float_of(v.z)); }
__device__ __forceinline__ bool arrived(uint4 v, uint32_t tag) { return v.y == tag && v.w == tag; }

// A steering word of 64 bits; the others, and what they are, stand in ring.cuh.
__device__ __forceinline__ uint64_t peek(volatile uint64_t& word) {
#if AMK_CHECKED
  return atomicAdd(const_cast<uint64_t*>(&word), uint64_t(0));
#else
  return word;
#endif
}
__device__ __forceinline__ void poke(volatile uint64_t& word, uint64_t value) {
#if AMK_CHECKED
  atomicExch(const_cast<uint64_t*>(&word), value);
#else
  word = value;
#endif
}

// A poll that has lasted long: true when it is to be given up, since the launch ends before this step or the bound ran out.  The
// task goes on with what is there, and its queue stops behind it.
__device__ __noinline__ bool poll_is_over(int turn, uint32_t seen, uint32_t tag) {
  if (peek(ring.broken)) return true;
  const int2 where = shared.where[turn];
  if (load_acquire(shared.halt) <= uint32_t(where.x)) {
    poke(ring.broken, kPollOver);
    return true;
  }
  const uint64_t now = now_ns(), start = peek(shared.poll_start);
  if (start == 0) poke(shared.poll_start, now);  // reset by the queue between tasks
  // Of another thread, whose clock may have been read behind this one's: signed.
  if (start == 0 || int64_t(now - start) <= int64_t(ring.bound_ns)) return false;
  report(Fault{kSpinTimeout, shared.task[turn].id, shared.task[turn].op, int32_t(blockIdx.x), where.y, -1, where.x, 0, int64_t(seen),
               int64_t(tag)});
  poke(ring.broken, kPollOver);
  return true;
}

// Polls what has not arrived yet until everything has.  `address(i)` gives the elements behind v[i] where `needed(i)`.
template <int N, class Needed, class Address>
__device__ __forceinline__ void poll_start(uint4 (&v)[N], uint32_t tag, Needed needed, Address address) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    v[i] = make_uint4(0, tag, 0, tag);
    if (needed(i)) v[i] = load_elements(address(i));
  }
}
template <int N, class Address>
__device__ __forceinline__ void poll_rest(const Context c, uint4 (&v)[N], uint32_t tag, Address address) {
#pragma unroll 1
  for (uint32_t round = 1;; ++round) {
    bool all = true;
#pragma unroll
    for (int i = 0; i < N; ++i) all = all && arrived(v[i], tag);
    if (all) break;
    if (round % 256 == 0 && poll_is_over(c.turn, v[0].y, tag)) break;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (!arrived(v[i], tag)) v[i] = load_elements(address(i));
  }
}
template <int N, class Needed, class Address>
__device__ __forceinline__ void poll(const Context c, uint4 (&v)[N], Needed needed, Address address) {
  poll_start(v, tag_of(c), needed, address);
  poll_rest(c, v, tag_of(c), address);
}

}  // namespace amk
