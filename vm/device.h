// What the host hands to the device VM: tasks with resolved addresses, waits and signals, and the arguments of one launch.
// amk_core/vm/program.py writes the same bytes; the sizes are checked on both sides.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace amk {

constexpr int kInlineWaits = 4, kInlineSignals = 2, kParamWords = 24, kBufferParams = 8;

// Ready in `step` when the counter has reached step * per_step + base (a wait on the step before has base <= 0 in step 0).
struct WaitWord {
  int32_t counter, per_step, base;
};
struct SignalWord {
  int32_t counter, amount;
};

struct alignas(16) DeviceTask {
  int32_t op, id, n_waits, n_signals;
  int32_t par[kParamWords];          // the parameters of ops.py in their order, then two strides
  uint64_t at[kBufferParams];        // address of buffer parameter i; 0 where the parameter is -1
  WaitWord waits[kInlineWaits];      // the first ones; the others lie at Launch::waits + more_waits
  SignalWord signals[kInlineSignals];
  int32_t more_waits, more_signals;
  uint64_t weight;                   // exact mode: address of the row-major weight tile
};
static_assert(sizeof(DeviceTask) == 256, "the host packs 256 bytes a task");

// One weight tile as the loader streams it: `units` units from `offset` of the tape, in slots that end with every `block` units: as
// many whole row groups as fit a slot, or one row group (ring.cuh says how long ones take turns, how large a unit is, and where pairs stand for row groups).
struct alignas(16) TileRef {
  uint64_t offset;
  uint32_t units, block;
};

// One timed occurrence: low words of the SM clock.
struct alignas(16) TraceRecord {
  uint32_t fetch, ready, end, signalled;
};
struct alignas(16) TraceAnchor {
  uint64_t clock, ns;
};

struct Launch {
  const DeviceTask* tasks;      // in queue order
  const int32_t* queue_off;     // [queues + 1] into tasks
  const TileRef* tiles;         // in queue order
  const int32_t* tile_off;      // [queues + 1] into tiles
  const WaitWord* waits;
  const SignalWord* signals;
  const uint8_t* tape;
  uint32_t* counters;           // kCounterStride words apart
  uint32_t* halt;               // first step that must not run; 0 after an abort
  const int32_t* variables;     // flattened launch variables, then the sequence number before the first step
  Fault* fault;
  uint64_t* ring;               // host memory, [steps][sequences]: {token, sequence number of the step} in one word
  TraceRecord* trace;           // [steps][tasks in queue order], traced builds only
  TraceAnchor* anchors;         // [queues][2], traced builds only
  uint64_t bound_ns;            // longest wait before the launch gives up
  int32_t steps, n_variables, n_tasks, reserved;
};

static_assert(sizeof(Launch) == 136, "the host packs 136 bytes a launch");

// A stride that no parameter carries: columns of the prompt buffer (embed), of the stop-id rows (sample).
constexpr int kStrideWord = 22;

}  // namespace amk
