// The device VM for ranks: one cooperative launch of clusters, one CTA a queue, many steps (sm_90 and later).  As scheduler.cu, whose
// code is left alone by it; what differs is how activations are handed on: inside a cluster through mailboxes (rank_mail.cuh), between
// clusters as tagged parts (rank_parts.cuh).  Counters order the sampler before the next step, and the step before the sampler.
#include "common.cuh"
#include "head.cuh"
#include "protocol.h"
#include "rank_attn.cuh"
#include "rank_gemv.cuh"
#include "rank_mail.cuh"
#include "rank_parts.cuh"
#include "ring.cuh"
#include "sample.cuh"
#include "tagged.cuh"
#include "trace.cuh"
#include "waits.cuh"

// A build that leaves what stands in each CTA at the end of a launch where a traced one leaves its anchors: amk_bench/rank_dump.py
#ifndef AMK_RANK_DUMP
#define AMK_RANK_DUMP 0
#endif
static_assert(!(AMK_RANK_DUMP && AMK_TRACE), "a launch leaves either anchors or mailboxes");

namespace amk {

#if AMK_RANK_DUMP
// 16 words {step and place of the two task records, their turn is unknown; broken}, the mailboxes, the barriers.
__device__ __noinline__ void leave_mail(const Launch& launch, int thread, int threads) {
  constexpr int kHead = 16, kWords = (kMailBytes + 8 * kMailBarriers) / 4;
  uint32_t* to = reinterpret_cast<uint32_t*>(launch.anchors) + size_t(blockIdx.x) * (kHead + kWords);
  if (thread == 0) {
    to[0] = shared.where[0].x, to[1] = shared.where[0].y, to[2] = shared.where[1].x, to[3] = shared.where[1].y;
    to[4] = peek(ring.broken);
  }
  for (int i = thread; i < kWords; i += threads) to[kHead + i] = reinterpret_cast<const uint32_t*>(mail())[i];
}
#endif

__device__ __forceinline__ Outcome execute(const Launch& launch, const Context c) {
  switch (c.op()) {
    case kEmbed: {
      int seen = 0;
      if (run_rank_embed(c, &seen)) return kDone;
      if (c.thread == 0)
        report(Fault{kTokenRange, shared.task[c.turn].id, c.op(), int32_t(blockIdx.x), shared.where[c.turn].y, 0, c.step(), 0, seen,
                     c.p(embed::vocab)});
      return kFailed;
    }
    case kRankQkv: run_rank_qkv(c); return kDone;
    case kRankAttn: run_rank_attn(c); return kDone;
    case kOPart: run_o_part(c); return kDone;
    case kOSum:
    case kDownSum: run_rank_sum(c); return kDone;
    case kGateUp: run_rank_gate_up(c); return kDone;
    case kDownPart: run_down_part(c); return kDone;
    case kLmHead:
      run_rank_head(c);
      if (c.p(lm_head::amax) >= 0) {
        sync_tasks();
        tile_argmax(c, c.at<const float>(lm_head::logits));
      }
      return kDone;
    case kSample:
      if (run_sample(c) && c.thread == 0) atomicMin(launch.halt, uint32_t(c.step()) + 1);
      return kSampled;
    default: return kDone;  // refused by the host
  }
}

// Tasks of the queue that a record does: rows of queries, keys and values that follow each other are one product.
__device__ __forceinline__ int tasks_of(const DeviceTask& task) {
  return task.op == kRankQkv ? 1 + (task.par[kMoreWord] != 0) + (task.par[kMoreWord2] != 0) : 1;
}

__device__ __forceinline__ void run_queue(const Launch& launch) {
  Trace trace;
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    const Context c = Context::here(turn);
    if (c.thread == 0) {
      trace.at_fetch();
      poke(shared.poll_start, 0);
    }
    if (shared.task[turn].n_waits > 0 || shared.where[turn].y == 0) {  // else the last turn's barrier is enough
      if (c.warp == 0) {
        const int2 where = shared.where[turn];
        bool go = wait_for(launch, shared.task[turn], where.x, where.y, c.lane);
        // The stop flag of the step before is behind the first wait of this one: look again, now that the wait holds.
        if (where.y == 0 && where.x > 0) go = go && load_acquire(launch.halt) > uint32_t(where.x);
        if (c.lane == 0) shared.go = go;
      }
      sync_tasks();
      if (!shared.go) return;
    }
    if (c.thread == 0) trace.at_ready();
    if (c.warp == 0) {  // the next task of the queue comes into shared memory while this one runs
      __syncwarp();     // the first lane has read the last task's signals, whose place this is
      const int2 where = shared.where[turn];
      const int behind = where.y + tasks_of(shared.task[turn]), next = behind == shared.n ? 0 : behind;
      if (c.lane == 0) shared.where[turn ^ 1] = make_int2(where.x + (next == 0), next);
      if (c.lane < 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&shared.task[turn ^ 1]) + c.lane * 16),
                     "l"(reinterpret_cast<const uint8_t*>(launch.tasks + shared.base + next) + c.lane * 16) : "memory");
    }
    const Outcome outcome = execute(launch, Context::here(turn));
    asm volatile("cp.async.wait_all;" ::: "memory");
    const bool first = Context::here(turn).thread == 0;
    if (first) trace.at_end(true);
    const uint32_t broken = peek(ring.broken);
    if (any_thread(outcome == kFailed || broken != 0)) {
      if (first && broken == kWeightsLate) report_weights(turn);
      if (first && broken == kMailLate) report_mail(turn);
      return;
    }
    if (first) {
      signal_all(launch, shared.task[turn]);
      trace.store(launch, shared.where[turn].x, shared.base + shared.where[turn].y);
#if AMK_TRACE
      for (int i = 1; i < tasks_of(shared.task[turn]); ++i) {  // took no time of their own
        trace.at_fetch(), trace.at_ready(), trace.at_end(false);
        trace.store(launch, shared.where[turn].x, shared.base + shared.where[turn].y + i);
      }
#endif
      if (outcome == kSampled) publish_tokens(launch, shared.where[turn].x);
    }
    if (shared.where[turn ^ 1].x == launch.steps) return;
  }
}

}  // namespace amk

extern "C" __global__ void __launch_bounds__(amk::kThreads + 32, 1) amk_run(const __grid_constant__ amk::Launch launch) {
  using namespace amk;
  const int thread = threadIdx.x, base = launch.queue_off[blockIdx.x], n = launch.queue_off[blockIdx.x + 1] - base;
  begin_queue(launch, thread, base, n);
  mail_init(thread, blockDim.x);
  __syncthreads();
  mail_begin(launch, base, n, thread, blockDim.x);
  cluster_barrier();  // every barrier stands before anybody sends
  if (n == 0) {       // stays for the others' sake, which may not outlive their cluster
  } else if (thread < kThreads) {
    run_queue(launch);
    if (thread == 0) {
      poke(ring.leave, 1);
      Trace::anchor(launch, 1);
    }
  } else {
    run_loader(launch, thread & 31);
  }
  // Nobody leaves while others may still send to it.  In a launch that was ended from outside bytes may be on their way that no task
  // waits for any more.
  if (load_acquire(launch.halt) == 0)
    for (const uint64_t start = now_ns(); now_ns() - start < 50000;) __nanosleep(1000);
  cluster_barrier();
#if AMK_RANK_DUMP
  leave_mail(launch, thread, blockDim.x);
#endif
}
