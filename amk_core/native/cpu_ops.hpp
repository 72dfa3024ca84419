// Bodies of the ops on the CPU: what one task computes, what it needs checked before it may run, and its private scratch.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi.h"
#include "cpu_isa.hpp"
#include "cpu_tags.hpp"
#include "quant.hpp"
#include "tables.hpp"

namespace amk {

struct LoadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr int kMaxBuffers = 8;  // buffer parameters of an op at most (qkv, sample)

// A task with its buffers resolved to addresses.  `at[i]` belongs to parameter i; null where the parameter is -1.
struct Task {
  int32_t op = 0, id = 0, queue = 0, position = 0;
  const int32_t* p = nullptr;
  const void* weight = nullptr;  // first byte of the weight tile in the tape
  QuantFormat quant;             // how the tile is quantised, if it is
  int64_t weight_k = 0;          // columns of the weight buffer
  uint8_t* at[kMaxBuffers] = {};
  // Of a task with tagged buffers: their elements, whose mirrors `at` names, and its accesses to them.
  std::vector<TaggedParam> tagged;  // [buffer parameters], or empty
  std::vector<TaggedAccess> tagged_accesses;
};

// One sequence geometry that a launch must fit: tokens [p0, p0 + min(n, steps * chunk)) inside ctx positions.
struct Geometry {
  int32_t pos_var, batch, chunk, ctx, certain;  // certain: some task appends every row, whatever n says
  bool operator==(const Geometry&) const = default;
};

// Everything the bodies share.
struct Machine {
  const Tables* tables = nullptr;
  const Kernels* kernels = nullptr;
  bool tape_bf16 = false;  // of the weights that are not quantised
  bool fast = false;  // numeric plan: matmul inputs and queries are rounded to bf16

  int64_t cols(int32_t buffer) const { return tables->buffers[size_t(buffer)].cols; }
};

// Checks the parameters of a task against the buffers and all steps and launch variables; throws LoadError.  After it, the body
// touches nothing outside its buffers.  `tile_bytes` receives the bytes of the weight tile (0: the op has none).
void check_task(const Machine& machine, int32_t task, int64_t* tile_bytes, std::vector<Geometry>* geometries);

// Floats of private scratch that the body needs.
int64_t scratch_floats(const Task& task);

// Number of buffer parameters of an op.
int buffer_params(int32_t op);

// Index of the weight buffer among the parameters of an op, or -1.
int weight_param(int32_t op);

// Runs one task.  `variables` are the flattened launch variables, `scratch` is 64-byte aligned.  Returns false and fills `fault`
// (kind, row, has, needs) when the data asks for something that does not exist.
// `port` serves a task with tagged buffers; false, with `port->aborted()`, when a value did not come.
bool run_body(const Machine& machine, const Task& task, int64_t step, std::span<const int64_t> variables, float* scratch,
              Fault* fault, TagPort* port);

}  // namespace amk
