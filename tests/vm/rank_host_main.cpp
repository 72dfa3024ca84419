// One task of a program for ranks, by the kernel's own code.
#include "common.cuh"
#include "rank_attn.cuh"
#include "rank_gemv.cuh"
#include "rank_parts.cuh"

namespace amk {

static void body() {
  const Context c = Context::here();
  int seen = 0;
  switch (run.task->op) {
    case kEmbed:
      if (!run_rank_embed(c, &seen)) std::abort();
      break;
    case kRankQkv: run_rank_qkv(c); break;
    case kRankAttn: run_rank_attn(c); break;
    case kOPart: run_o_part(c); break;
    case kOSum:
    case kDownSum: run_rank_sum(c); break;
    case kGateUp: run_rank_gate_up(c); break;
    case kDownPart: run_down_part(c); break;
    case kLmHead: run_rank_head(c); break;
    default: std::abort();
  }
  fibers[current].done = true;
  yield();
}

}  // namespace amk

// 0: every thread came to its end; 1: some wait for each other for ever.
extern "C" int run_task(
    const amk::DeviceTask* task, int step, int own, const int32_t* variables, uint8_t** mails, const uint8_t* tile, int64_t block, int32_t* sent) {
  using namespace amk;
  constexpr size_t kStack = 128 * 1024;
  run = {task, step, own, variables, mails, tile, block, sent};
  std::memset(work, 0xff, sizeof work);
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
    if (round > 10'000'000) return 1;
    left = 0;
    for (current = 0; current < kThreads; ++current)
      if (!fibers[current].done) ++left, swapcontext(&turn_taker, &fibers[current].context);
  }
  return 0;
}
