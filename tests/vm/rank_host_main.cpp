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
}

}  // namespace amk

// 0: every thread came to its end; 1: some wait for each other for ever.
extern "C" int run_task(
    const amk::DeviceTask* task, int step, int own, const int32_t* variables, uint8_t** mails, const uint8_t* const* slots, int32_t* sent) {
  using namespace amk;
  run = {task, step, own, variables, mails, slots, sent};
  std::memset(work, 0xff, sizeof work);
  return run_fibers(body) ? 0 : 1;
}
