// One task of fast decoding of several sequences, by the kernels' own code.
#include "rows_text.h"

namespace amk {

static Launch launch;
static void body() {
  const Context c = Context::here(0);
  if (!kExact) Prologue::fetch(c);
  if (execute(launch, Context::here(0)) == kFailed) std::abort();
}

}  // namespace amk

// 0: every thread came to its end; 1: some wait for each other for ever.
extern "C" int run_task(const amk::DeviceTask* task, int step, const int32_t* variables, int n_variables, const uint8_t* weights, const amk::TileRef* of) {
  using namespace amk;
  shared.task[0] = *task, shared.where[0] = {step, 1}, shared.cursor = {0, 0};
  std::memcpy(shared.variables, variables, 4 * n_variables);
  std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
  tape_at = weights, tile = *of;
  return run_fibers(body) ? 0 : 1;
}
