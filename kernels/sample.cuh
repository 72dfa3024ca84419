// sample: the next token of each sequence, greedy or drawn (temperature, top-k, top-p, seeded Gumbel noise), stop ids, the stop
// flag of the step.  One task a step.  Draws are the same bits as on the CPU: candidates are ordered by (logit descending, index
// ascending), sums run over them in that order, noise depends on (seed, position, token) only.
#pragma once
#include "common.cuh"
#include "head.cuh"

namespace amk {

struct SampleWork {
  uint64_t keys[kMaxCandidates];
  float weights[kMaxCandidates];
  uint32_t histogram[256];
  Best best[kWarps];
  int8_t ended[kRows];  // 1 or 0: what the sequence has come to; -1: its token is still to be chosen
  uint64_t prefix;
  int32_t wanted, count, kept;
};
static_assert(sizeof(SampleWork) <= kWorkBytes, "the work area is too small for the sampler");

// Greater is earlier: order-preserving bits of the logit above the complement of the index.
__device__ __forceinline__ uint64_t order_key(float logit, int index) {
  const uint32_t b = bits_of(logit + 0.0f);
  const uint32_t key = logit != logit ? 0u : ((b >> 31) ? ~b : (b | 0x80000000u));
  return uint64_t(key) << 32 | (0xffffffffu - uint32_t(index));
}

// The `keep` greatest keys of a row of logits in descending order in work.keys.
__device__ __noinline__ void select_candidates(const Context c, SampleWork& work, const float* logits, int vocab, int keep) {
  if (c.thread == 0) work.prefix = 0, work.wanted = keep, work.count = 0;
  // Radix selection, eight bits a pass from the top: the keep-th greatest key.  Keys are distinct.
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int i = c.thread; i < 256; i += kThreads) work.histogram[i] = 0;
    sync_tasks();
    const uint64_t prefix = work.prefix, mask = shift == 56 ? 0 : ~uint64_t(0) << (shift + 8);
    for (int j = c.thread; j < vocab; j += kThreads) {
      const uint64_t key = order_key(load_shared_f32(logits + j), j);
      if ((key & mask) == prefix) atomicAdd(&work.histogram[uint32_t(key >> shift) & 255u], 1u);
    }
    sync_tasks();
    if (c.thread == 0) {
      int left = work.wanted, digit = 255;
      for (; digit > 0 && int(work.histogram[digit]) < left; --digit) left -= int(work.histogram[digit]);
      work.wanted = left;
      work.prefix = prefix | uint64_t(uint32_t(digit)) << shift;
    }
    sync_tasks();
  }
  const uint64_t least = work.prefix;
  for (int i = c.thread; i < kMaxCandidates; i += kThreads) work.keys[i] = 0;
  sync_tasks();
  for (int j = c.thread; j < vocab; j += kThreads) {
    const uint64_t key = order_key(load_shared_f32(logits + j), j);
    if (key >= least) work.keys[atomicAdd(&work.count, 1)] = key;
  }
  sync_tasks();
  for (int size = 2; size <= kMaxCandidates; size <<= 1)  // bitonic sort, descending
    for (int stride = size >> 1; stride > 0; stride >>= 1) {
      for (int i = c.thread; i < kMaxCandidates; i += kThreads) {
        const int other = i ^ stride;
        if (other > i) {
          const uint64_t a = work.keys[i], b = work.keys[other];
          if (((i & size) == 0) == (a < b)) work.keys[i] = b, work.keys[other] = a;
        }
      }
      sync_tasks();
    }
}

__device__ __noinline__ int draw_token(const Context c, SampleWork& work, const float* logits, int position, const int32_t* word) {
  const float temperature = __int_as_float(word[control::temperature]), top_p = __int_as_float(word[control::top_p]);
  const int vocab = c.p(sample::vocab), top_k = word[control::top_k];
  int keep = top_k > 0 && top_k < kMaxCandidates ? top_k : kMaxCandidates;
  keep = keep < vocab ? keep : vocab;
  select_candidates(c, work, logits, vocab, keep);
  auto index = [&](int i) { return int32_t(0xffffffffu - uint32_t(work.keys[i])); };
  const float top = load_shared_f32(logits + index(0));
  for (int i = c.thread; i < keep; i += kThreads)
    work.weights[i] = exp_f32((load_shared_f32(logits + index(i)) - top) / temperature);
  sync_tasks();
  if (c.thread == 0) {
    float total = 0.0f;
    for (int i = 0; i < keep; ++i) total = total + work.weights[i];
    int kept = keep;
    if (top_p < 1.0f) {
      float sum = 0.0f;
      for (int i = 0; i < keep; ++i) {
        sum = sum + work.weights[i];
        if (sum >= top_p * total) {
          kept = i + 1;
          break;
        }
      }
    }
    work.kept = kept;
  }
  sync_tasks();
  const uint32_t key[2] = {uint32_t(word[control::seed_lo]), uint32_t(word[control::seed_hi])};
  Best mine{kMinusInfinity, kNoIndex};  // index: place among the candidates, so that the earliest wins a tie
  for (int i = c.thread; i < work.kept; i += kThreads) {
    const uint32_t counter[4] = {uint32_t(position), uint32_t(index(i)), kSampleStream, 0};
    uint32_t random[4];
    philox_4x32(counter, key, random);
    const Best x{(load_shared_f32(logits + index(i)) - top) / temperature + gumbel_f32(random[0]), i};
    if (x.value > mine.value) mine = x;
  }
  mine = block_best(c, mine, work.best);
  return index(mine.index == kNoIndex ? 0 : mine.index);
}

__device__ __forceinline__ int greedy_token(const Context c, SampleWork& work, int seq) {
  Best mine{kMinusInfinity, kNoIndex};
  if (c.p(sample::amax) < 0) {
    const float* logits = c.at<const float>(sample::logits) + int64_t(seq) * c.p(sample::vocab);
    for (int j = c.thread; j < c.p(sample::vocab); j += kThreads) {
      const Best x{load_shared_f32(logits + j), j};
      if (better(x, mine)) mine = x;
    }
  } else {
    const float* tiles = c.at<const float>(sample::amax) + int64_t(seq) * 2 * c.p(sample::tiles);
    for (int j = c.thread; j < c.p(sample::tiles); j += kThreads) {
      const float2 v = load_shared_f32x2(tiles + 2 * j);
      const Best x{v.x, __float_as_int(v.y)};
      if (better(x, mine)) mine = x;
    }
  }
  const int index = block_best(c, mine, work.best).index;
  return index == kNoIndex ? 0 : index;
}

// One warp: everything about a sequence that draws nothing, from the maxima of the tiles.
__device__ __noinline__ void greedy_sequence(const Context c, SampleWork& work, int seq) {
  const int n_stop = c.p(sample::n_stop_ids), tiles = c.p(sample::tiles);
  int32_t* done = c.at<int32_t>(sample::done) + seq;
  int32_t* token = c.at<int32_t>(sample::token) + seq;
  int32_t* out = c.at<int32_t>(sample::out) + c.step() * kRows + seq;
  if (!c.active(c.p(sample::pos_var), seq)) {
    if (c.lane == 0) *token = kNoToken, *out = kNoToken, shared.tokens[seq] = kNoToken, work.ended[seq] = 1;
    return;
  }
  const float temperature = __int_as_float(load_shared_i32(c.at<int32_t>(sample::control) + seq * control::count + control::temperature));
  const int32_t was_done = load_shared_i32(done);
  const int32_t stop_id = c.lane < n_stop ? load_shared_i32(c.at<int32_t>(sample::stop_ids) + seq * c.p(kStrideWord) + c.lane) : kNoToken;
  const float* from = c.at<const float>(sample::amax) + int64_t(seq) * 2 * tiles;
  Best mine{kMinusInfinity, kNoIndex};
#pragma unroll 4
  for (int j = c.lane; j < tiles; j += 32) {
    const float2 v = load_shared_f32x2(from + 2 * j);
    const Best x{v.x, __float_as_int(v.y)};
    if (better(x, mine)) mine = x;
  }
  mine = warp_best(mine);
  const int id = mine.index == kNoIndex ? 0 : mine.index;
  bool stop = c.lane < n_stop && stop_id == id;
  for (int i = c.lane + 32; i < n_stop; i += 32)
    stop = stop || load_shared_i32(c.at<int32_t>(sample::stop_ids) + seq * c.p(kStrideWord) + i) == id;
  stop = __any_sync(~0u, stop) || was_done != 0;
  if (c.lane != 0) return;
  work.ended[seq] = -1;
  if (temperature > 0.0f) return;
  *token = id, *out = id, *done = stop, shared.tokens[seq] = id, work.ended[seq] = stop;
}

// Returns whether every sequence has stopped.
__device__ __noinline__ bool run_sample(const Context c) {
  SampleWork& work = *reinterpret_cast<SampleWork*>(c.work());
  const int n_stop = c.p(sample::n_stop_ids), pos = c.p(sample::pos_var);
  bool all_done = true;
  const bool early = kRows > 1 && c.p(sample::amax) >= 0;
  if (early) {  // a warp a sequence: those that are not active, and greedy ones
    for (int seq = c.warp; seq < kRows; seq += kWarps) greedy_sequence(c, work, seq);
    sync_tasks();
  }
  for (int seq = 0; seq < kRows; ++seq) {
    if (early && work.ended[seq] >= 0) {
      all_done = all_done && work.ended[seq];
      continue;
    }
    int32_t* done = c.at<int32_t>(sample::done) + seq;
    int32_t* token = c.at<int32_t>(sample::token) + seq;
    int32_t* out = c.at<int32_t>(sample::out) + c.step() * kRows + seq;
    if (!c.active(pos, seq)) {
      if (c.thread == 0) *token = kNoToken, *out = kNoToken, shared.tokens[seq] = kNoToken;
      continue;
    }
    // All small reads at once: control words and the stop flag by every thread, one stop id a thread.
    int32_t word[control::count];
#pragma unroll
    for (int i = 0; i < control::count; ++i) word[i] = load_shared_i32(c.at<int32_t>(sample::control) + seq * control::count + i);
    const int32_t was_done = load_shared_i32(done);
    const int32_t stop_id = c.thread < n_stop ? load_shared_i32(c.at<int32_t>(sample::stop_ids) + seq * c.p(kStrideWord) + c.thread) : kNoToken;
    const int id = __int_as_float(word[control::temperature]) > 0.0f
                       ? draw_token(c, work, c.at<const float>(sample::logits) + int64_t(seq) * c.p(sample::vocab),
                                    c.position(pos, seq), word)
                       : greedy_token(c, work, seq);
    bool stop = false;  // stop ids beyond one a thread, which no schedule of ours has
    for (int i = c.thread + kThreads; i < n_stop; i += kThreads)
      stop = stop || load_shared_i32(c.at<int32_t>(sample::stop_ids) + seq * c.p(kStrideWord) + i) == id;
    stop = any_thread(stop || was_done != 0 || (c.thread < n_stop && stop_id == id));
    if (c.thread == 0) *token = id, *out = id, *done = stop, shared.tokens[seq] = id;
    all_done = all_done && stop;
  }
  if (c.thread == 0) c.at<int32_t>(sample::stop)[c.step()] = all_done;
  return all_done;
}

// Hands the step's tokens to the host, by the thread that chose them.  Each word carries its own sequence number, so the host needs
// no order between words; behind the task's signals, so that no queue waits for the bus.
__device__ __forceinline__ void publish_tokens(const Launch& launch, int step) {
  const uint32_t number = uint32_t(shared.variables[launch.n_variables]) + uint32_t(step) + 1;
  uint64_t* row = launch.ring + int64_t(step) * kBatch;
  for (int seq = 0; seq < kBatch; ++seq)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;"  // one indivisible word, visible beyond the card
                 ::"l"(row + seq), "l"(uint64_t(number) << 32 | uint32_t(shared.tokens[seq])) : "memory");
}

}  // namespace amk
