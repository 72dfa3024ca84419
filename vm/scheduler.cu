// The device VM: one cooperative launch, one CTA a queue, many steps.  Every CTA runs its queue in order: wait for counters,
// dispatch on the op, execute, signal.  A loader warp streams the queue's weights ahead of all waits (fast mode).
//
// A GPU never hangs: every wait is bounded, polls the halt word, and a wait that runs out leaves a fault report that names the
// task and the counter and makes all queues stop at their next task boundary.
#include "common.cuh"
#include "attention_exact.cuh"
#include "attention_fast.cuh"
#include "combine.cuh"
#include "embed.cuh"
#include "finish.cuh"
#include "gemv_exact.cuh"
#include "gemv_fast.cuh"
#include "gemv_quant.cuh"
#include "gemv_rows.cuh"
#include "head.cuh"
#include "protocol.h"
#include "ring.cuh"
#include "sample.cuh"
#include "tagged.cuh"
#include "trace.cuh"
#include "waits.cuh"

namespace amk {

constexpr int kLoaderWarps = kExact ? 0 : 1;

// A matrix of K columns times the activations of a source, by the product of the mode and of the weights.
#if AMK_EXACT
#define AMK_PRODUCT gemv_exact
#elif !AMK_QUANT
#define AMK_PRODUCT gemv_fast
#else
#define AMK_PRODUCT gemv_of
template <int K, class W, class Source>
__device__ __forceinline__ void gemv_of(const Context c, const Source& source, const Finish& finish) {
  if constexpr (W::kQuantised) {
    gemv_quant<K, W>(c, source, finish);
  } else {
    gemv_fast<K, W>(c, source, finish);
  }
}
#endif

// o_proj and down_proj: the same parameters in the same places.
template <int K>
__device__ __forceinline__ void run_project(const Context c) {
#if AMK_EXACT
  AMK_PRODUCT<K, LayerWeights>(c, ExactPlain<K>{c.at<const float>(o_proj::x)}, Finish::of(c));
#elif AMK_MARKED
  AMK_PRODUCT<K, LayerWeights>(c, MarkedPairSource<K>{marked_words(c, c.at<void>(o_proj::x), K / 2)}, Finish::of(c));
#elif AMK_TAGGED
  AMK_PRODUCT<K, LayerWeights>(c, TaggedPairSource<K>{c.at<const uint2>(o_proj::x)}, Finish::of(c));
#else
  AMK_PRODUCT<K, LayerWeights>(c, PlainSource<K>{c.at<const float>(o_proj::x)}, Finish::of(c));
#endif
}

// Runs one task; kFailed when its data asks for something that does not exist (the fault has been reported).
__device__ __forceinline__ Outcome execute(const Launch& launch, const Context c) {
  switch (c.op()) {
    case kEmbed: {
      int row = 0, seen = 0;
      if (run_embed(c, &row, &seen)) return kDone;
      if (c.thread == 0)
        report(Fault{kTokenRange, shared.task[c.turn].id, c.op(), int32_t(blockIdx.x), shared.where[c.turn].y, 0, c.step(),
                             row, seen, c.p(embed::vocab)});
      return kFailed;
    }
    case kQkv:
    case kGateUp:
    case kLmHead: {
      // Their first parameters are h and norm_w, their last is eps.
      const int eps = c.op() == kQkv ? int(qkv::eps) : (c.op() == kGateUp ? int(gate_up::eps) : int(lm_head::eps));
      const float* weight = c.at<const float>(qkv::norm_w);
      const Finish finish = Finish::of(c);
#if AMK_EXACT
      const ExactNorm<kHidden> source{c.at<const float>(qkv::h), weight, c.real(eps)};
#elif AMK_MARKED
      const MarkedNormSource source{marked_words(c, c.at<void>(qkv::h), kHidden), c.real(eps)};
#elif AMK_TAGGED
      const TaggedNormSource source{c.at<const uint2>(qkv::h), weight, c.real(eps)};
#else
      const NormSource source{c.at<const float>(qkv::h), weight, c.real(eps)};
#endif
#if AMK_LAYER_FORMAT != AMK_HEAD_FORMAT
      if (c.op() == kLmHead) {
        AMK_PRODUCT<kHidden, HeadWeights>(c, source, finish);
      } else
#endif
        AMK_PRODUCT<kHidden, LayerWeights>(c, source, finish);
      if (c.op() == kLmHead && c.p(lm_head::amax) >= 0) {
        sync_tasks();
        tile_argmax(c, finish.out);
      }
      return kDone;
    }
    case kAttn:
#if AMK_EXACT
      run_attn_exact(c);
#else
      run_attn_fast(c);
#endif
      return kDone;
#if AMK_FUSED_COMBINE
    case kOProjCombine: {
      namespace a = o_proj_combine;
      const Partials partials{c.at<const float>(a::part), c.p(a::splits), c.p(a::blocks)};
#if AMK_EXACT
      AMK_PRODUCT<kQSize, LayerWeights>(c, ExactCombine{partials, c.p(a::pos_var)}, Finish::of(c));
#else
      AMK_PRODUCT<kQSize, LayerWeights>(c, CombineSource{partials, c.p(a::pos_var)}, Finish::of(c));
#endif
      return kDone;
    }
#else
#if !AMK_TAGGED
    case kAttnCombine:
      run_attn_combine(c);
      return kDone;
#endif
    case kOProj:
      run_project<kQSize>(c);
      return kDone;
#endif
    case kDownProj:
      run_project<kInter>(c);
      return kDone;
    case kSample:
      // Every queue's first task of the next step is ordered behind the sampler, so all of them see the same decision.
      if (run_sample(c) && c.thread == 0) atomicMin(launch.halt, uint32_t(c.step()) + 1);
      return kSampled;
    default:
      return kDone;  // refused by the host
  }
}

// Between tasks nothing but `turn` and the thread's number is kept in registers: the bodies need them all.
__device__ __forceinline__ void run_queue(const Launch& launch) {
  Trace trace;
#pragma unroll 1
  for (int turn = 0;; turn ^= 1) {
    const Context c = Context::here(turn);
    const int warp = c.warp, lane = c.lane, thread = c.thread;
    if (thread == 0) {
      trace.at_fetch();
      poke(shared.poll_start, 0);
    }
#if !AMK_EXACT
    Prologue::fetch(c);
#if AMK_HEAD_DIM > 64
    fetch_cache(c);
#endif
#endif
    const bool waits = shared.task[turn].n_waits > 0 || shared.where[turn].y == 0;
    if (waits) {  // else the last turn's barrier is enough
      if (warp == 0) {
        const int2 where = shared.where[turn];
        bool go = wait_for(launch, shared.task[turn], where.x, where.y, lane);
        // The stop flag of the step before is behind the first wait of this one: look again, now that the wait holds.
        if (where.y == 0 && where.x > 0) go = go && load_acquire(launch.halt) > uint32_t(where.x);
        if (lane == 0 && go && peek(ring.broken)) {
          report_weights(turn);
          go = false;
        }
        if (lane == 0) shared.go = go;
      }
      sync_tasks();
      if (!shared.go) return;
    }
    if (thread == 0) trace.at_ready();
    if (warp == 0) {  // the next task of the queue comes into shared memory while this one runs
      __syncwarp();   // the first lane has read the last task's signals, whose place this is
      const int2 where = shared.where[turn];
      const int next = where.y + 1 == shared.n ? 0 : where.y + 1;
      if (lane == 0) shared.where[turn ^ 1] = make_int2(where.x + (next == 0), next);
      if (lane < 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&shared.task[turn ^ 1]) + lane * 16),
                     "l"(reinterpret_cast<const uint8_t*>(launch.tasks + shared.base + next) + lane * 16) : "memory");
    }
    const Outcome outcome = execute(launch, Context::here(turn));
    asm volatile("cp.async.wait_all;" ::: "memory");
    const bool first = Context::here(turn).thread == 0;
    if (first) trace.at_end(kTagged);
    if constexpr (kTagged) {
      const uint32_t broken = peek(ring.broken);  // without waits this is the task boundary
      if (any_thread(outcome == kFailed || broken != 0)) {
        if (first && broken == kWeightsLate) report_weights(turn);
        return;
      }
    } else {
      sync_tasks();
      if (outcome == kFailed) return;
    }
    if (first) {
      signal_all(launch, shared.task[turn]);
      trace.store(launch, shared.where[turn].x, shared.base + shared.where[turn].y);
      if (outcome == kSampled) publish_tokens(launch, shared.where[turn].x);
    }
    if (shared.where[turn ^ 1].x == launch.steps) return;
  }
}

}  // namespace amk

extern "C" __global__ void __launch_bounds__(amk::kThreads + 32 * amk::kLoaderWarps, 1) amk_run(const __grid_constant__ amk::Launch launch) {
  using namespace amk;
  const int thread = threadIdx.x, base = launch.queue_off[blockIdx.x], n = launch.queue_off[blockIdx.x + 1] - base;
  if (n == 0) return;
  begin_queue(launch, thread, base, n);
  __syncthreads();
  if (thread < kThreads) {
    run_queue(launch);
    if (thread == 0) {
      poke(ring.leave, 1);
      Trace::anchor(launch, 1);
    }
  } else {
    run_loader(launch, thread & 31);
  }
}

// Row-major bf16 weights [rows][K] into the tape's fragment order, one block row a segment {row0, row1, tape offset}.
extern "C" __global__ void amk_pack(const uint16_t* __restrict__ weights, int k, const long long* __restrict__ segments, uint8_t* tape) {
  using namespace amk;
  const long long row0 = segments[blockIdx.y * 3], row1 = segments[blockIdx.y * 3 + 1];
  uint16_t* out = reinterpret_cast<uint16_t*>(tape + segments[blockIdx.y * 3 + 2]);
  const int units = (k + 31) / 32, groups = int(row1 - row0 + 7) / 8;
  for (int item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; item < groups * units; item += gridDim.x * (blockDim.x / 32)) {
    const int lane = threadIdx.x & 31, group = item / units, unit = item % units;
    const long long row = row0 + group * 8 + lane / 4;
    const int column = unit * 32 + lane % 4 * 8;
    uint16_t v[8];
    for (int i = 0; i < 8; ++i) v[i] = row < row1 && column + i < k ? weights[row * k + column + i] : uint16_t(0);
    int place = item;
    if (units > kPieceUnits) {  // two row groups take turns, piece by piece
      const int pair = group & ~1, both = pair + 1 < groups ? 2 : 1, piece = unit & ~(kPieceUnits - 1);
      const int size = units - piece < kPieceUnits ? units - piece : kPieceUnits;
      place = pair * units + piece * both + (group & 1) * size + unit - piece;
    }
    for (int i = 0; i < 8; ++i) out[(size_t(place) * 32 + lane) * 8 + i] = v[i];
  }
}
