// Mailboxes of a cluster: buffers that every CTA of it has a copy of, in its own shared memory.  A result goes to its own copy by a
// plain store and to the others by st.async, which completes on the receiver's mbarrier; a barrier has one phase a step, which ends
// with the bytes of all tasks that the counter stands for.  It is armed for the next step by one thread right after it was waited for:
// until then its one pending arrival keeps early bytes from completing anything.
#pragma once
#include "common.cuh"
#include "rank_maps.h"
#include "ring.cuh"
#include "tagged.cuh"

namespace amk {

constexpr int kCluster = AMK_RANK_CLUSTER;
constexpr int kMailBytes = AMK_RANK_MAIL_BYTES, kMailBarriers = AMK_RANK_BARRIERS;
static_assert(kWarps == kRankWarps && kRows == 1 && kTagged, "a program for ranks decodes one sequence");

__device__ __forceinline__ uint8_t* mail() { return dynamic_shared + kWorkBytes + kSlots * kSlotBytes; }
__device__ __forceinline__ uint64_t* mail_barrier(int i) { return reinterpret_cast<uint64_t*>(mail() + kMailBytes) + i; }
// A mailbox of the task: the address of its record is the offset in the part of the pool.
__device__ __forceinline__ float* box(const Context c, int param) {
  return reinterpret_cast<float*>(mail() + uint32_t(shared.task[c.turn].at[param]));
}
__device__ __forceinline__ int cta_of_cluster() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return int(r);
}
// A shared address of this CTA as that of the same place in another one.
__device__ __forceinline__ uint32_t peer_address(uint32_t own, int cta) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(own), "r"(cta));
  return r;
}
__device__ __forceinline__ void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");  // all threads of all CTAs
}
__device__ __forceinline__ void mail_arm(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}

// All threads, with a barrier of the CTA between the two: every barrier; then those of this queue's waits are armed for step 0.
__device__ __forceinline__ void mail_init(int thread, int threads) {
  for (int i = thread; i < kMailBarriers; i += threads) barrier_init(mail_barrier(i), 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // before the cluster's barrier
}
__device__ __forceinline__ void mail_begin(const Launch& launch, int base, int n, int thread, int threads) {
  for (int i = thread; i < n; i += threads) {
    const int32_t* par = launch.tasks[base + i].par;
    const int32_t barrier = __ldg(par + kArriveWord), bytes = __ldg(par + kBytesWord);
    if (barrier >= 0) mail_arm(mail_barrier(barrier), uint32_t(bytes));
  }
}

__device__ __forceinline__ bool mail_came(uint32_t barrier, uint32_t parity) {
  uint32_t ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(barrier), "r"(parity) : "memory");
  return ok != 0;
}
__device__ __forceinline__ uint32_t clock_low() {
  uint32_t t;
  asm volatile("mov.u32 %0, %clock;" : "=r"(t)::"memory");
  return t;
}

constexpr uint32_t kMailLate = 3;  // of Ring::broken: a wait for values of the cluster ran out

// Of one thread, behind a task whose wait ran out.
__device__ __noinline__ void report_mail(int turn) {
  const DeviceTask& task = shared.task[turn];
  const int2 where = shared.where[turn];
  const int i = task.par[kArriveWord];
  uint64_t state;  // opaque to programs; it tells a reader of the report how many arrivals and bytes are missing
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(state) : "r"(shared_address(mail_barrier(i))) : "memory");
  report(Fault{kMailTimeout, task.id, task.op, int32_t(blockIdx.x), where.y, i, where.x, 0, int64_t(state), int64_t(task.par[kBytesWord])});
}

// All threads, behind whatever the task fetches ahead: the values of this step have come.  A wait that is given up marks the ring
// broken, and the queue stops behind the task; its barrier is not armed again.  Nothing is called here: around a call what the task
// has in registers would be spilled.
__device__ __forceinline__ void await_mail(const Context c) {
  constexpr uint32_t kPatientClocks = 1 << 16;  // the hardware suspends a waiting thread for a time of its own, so tries are not counted
  const int i = c.p(kArriveWord);
  if (i < 0) return;
  const uint32_t b = shared_address(mail_barrier(i)), parity = uint32_t(c.step()) & 1u;
  if (!mail_came(b, parity)) {
    uint32_t looked = clock_low();
    uint64_t start = 0;
#pragma unroll 1
    while (!mail_came(b, parity)) {
      if (clock_low() - looked <= kPatientClocks) continue;
      looked = clock_low();
      if (peek(ring.broken)) return;
      const uint64_t now = now_ns();
      if (start == 0) start = now;
      const bool stopped = load_acquire(shared.halt) <= uint32_t(c.step()), late = now - start > ring.bound_ns;
      if (stopped || late) {
        poke(ring.broken, stopped ? uint32_t(kPollOver) : kMailLate);
        return;
      }
    }
  }
  // an acquire alone would empty L1; shared memory is all that is handed on here
  asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
  if (c.thread == 0) mail_arm(mail_barrier(i), uint32_t(c.p(kBytesWord)));
  note_arrival(c);
}

// A place of the ring that is read before the ones in front of it are released.
struct Place {
  int slot;
  uint32_t parity;

  __device__ __forceinline__ explicit Place(const RingCursor& at) : slot(at.slot), parity(at.parity) {}
  __device__ __forceinline__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// The weights at a place of the ring.  RingCursor::wait calls a function while it is patient, and around a call everything that a task
// has in registers ahead of its wait is spilled; this one does not.
__device__ __forceinline__ const uint8_t* slot_of(const Place& at) {
  uint64_t* full = &ring.full[at.slot];
  if (!barrier_try(full, at.parity)) {
    const uint64_t start = now_ns();
#pragma unroll 1
    while (!barrier_try(full, at.parity)) {
      if (peek(ring.broken)) break;
      if (now_ns() - start <= ring.bound_ns) continue;
      poke(ring.broken, kWeightsLate);
      break;
    }
  }
  return ring_data() + at.slot * kSlotBytes;
}

// Where the results of a task go.
struct Route {
  uint32_t mask, barrier;
  int own;

  __device__ __forceinline__ explicit Route(const Context c) : mask(uint32_t(c.p(kSendWord))), own(cta_of_cluster()) {
    barrier = shared_address(mail_barrier(int(mask >> 16)));
    mask &= 0xffffu;
  }
  __device__ __forceinline__ bool goes_to(int cta) const { return cta == own || (mask >> cta & 1u); }
  __device__ __forceinline__ void send(float* to, int cta, float v) const {
    if (cta == own)
      *to = v;
    else if (mask >> cta & 1u)
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                   ::"r"(peer_address(shared_address(to), cta)), "r"(__float_as_uint(v)), "r"(peer_address(barrier, cta)) : "memory");
  }
  __device__ __forceinline__ void send(float* to, int cta, float a, float b) const {  // to: on 8 bytes
    if (cta == own)
      *reinterpret_cast<float2*>(to) = make_float2(a, b);
    else if (mask >> cta & 1u)
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                   ::"r"(peer_address(shared_address(to), cta)), "r"(__float_as_uint(a)), "r"(__float_as_uint(b)),
                   "r"(peer_address(barrier, cta)) : "memory");
  }
  __device__ __forceinline__ void send(float* to, int cta, float4 v) const {  // to: on 16 bytes
    if (cta == own)
      *reinterpret_cast<float4*>(to) = v;
    else if (mask >> cta & 1u)
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                   ::"r"(peer_address(shared_address(to), cta)), "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)),
                   "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)), "r"(peer_address(barrier, cta)) : "memory");
  }
};

}  // namespace amk
