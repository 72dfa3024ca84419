// Tagged buffers on the CPU: the elements {value, tag} that a task exchanges, and a plain copy of them for its body.
//
// A body works on floats in a mirror of its queue.  Certain reads are polled into it before the body, certain writes published
// behind it; what only may happen, the body fetches and publishes itself.  Each element is one relaxed 64-bit message: a tag proves
// that its own value arrived and orders nothing else.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "abi.h"
#include "protocol.h"
#include "tables.hpp"

namespace amk {

// One access of a task to a tagged buffer.
struct TaggedAccess {
  int param;
  bool write, maybe;
  int64_t row0, row1, col0, col1;  // elements
};

// A tagged buffer parameter of a task.
struct TaggedParam {
  uint64_t* elements = nullptr;  // null: the parameter is plain
  float* mirror = nullptr;
  int64_t cols = 0;              // elements of a row
  int width = 1;                 // floats of an element: 2 where it holds a pair of bf16
};

// What a task has to do with tagged buffers in one step.
class TagPort {
 public:
  // `spin` null: a task on its own, whose inputs are taken as they are.
  TagPort(std::span<const TaggedParam> params, std::span<const TaggedAccess> accesses, int64_t step, const Spin* spin, Fault* fault)
      : params_(params), accesses_(accesses), step_(step), spin_(spin), fault_(fault) {}

  bool fetch_certain();    // false: the launch ends; the fault is filled where a value did not come in time or is gone
  void publish_certain();
  bool fetch(int param, int64_t row, int64_t col0, int64_t col1);
  void publish(int param, int64_t row, int64_t col0, int64_t col1);
  bool aborted() const { return status_ != kReady; }
  bool failed() const { return status_ == kTimedOut || status_ == kOvertaken; }  // the value did not come, or is gone

 private:
  uint32_t tag() const { return uint32_t(step_) + 1; }

  std::span<const TaggedParam> params_;
  std::span<const TaggedAccess> accesses_;
  int64_t step_;
  const Spin* spin_;
  Fault* fault_;
  WaitStatus status_ = kReady;
};

// Whether buffer parameter i of an op holds pairs of bf16 when the task is packed.
bool holds_pairs(int32_t op, int param);

}  // namespace amk
