// Exhaustive-interleaving oracle: ground truth for small schedules.
//
// It walks every reachable state of a schedule, with the start and the end of a task as separate events, for every number of
// steps and every value of the launch variables, and labels what it sees.  It uses no clock, no must-order theory and no code of
// the validator: two accesses race iff they are seen to overlap, or are seen in both orders.
#include "oracle.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

namespace nb = nanobind;

namespace amk {

namespace oracle {

void Oracle::run() {
  structure();
  if (labels & (kRef | kCount)) return;
  if (t.steps > kMaxSteps) return give_up("steps");
  build_instances();
  if (n_inst > kMaxInstances) return give_up("instances");
  if (!assignments()) return give_up("launch variables");
  bounds();
  if (labels & kRef) return;
  if (int64_t(values_.size()) * n_inst > kMaxIntervals) return give_up("instances x launch variables");
  conflict_.assign(size_t(n_inst * n_inst), 0);
  stop_rule();
  for (const auto& v : values_)
    if (undecided.empty()) conflicts_of(v);
  if (!undecided.empty()) return;
  index_pairs();
  if (!explore(false)) return;
  if (!tag_waits_empty_ && !explore(true)) return;
  if (labels & (kLive | kRace)) return;
  linear_order();
  for (const auto& v : values_) data_flow(v);
  side_effects();
}

}  // namespace oracle

namespace {

using Answer = std::tuple<uint32_t, int64_t, std::string, std::vector<std::string>>;

Answer answer(nb::bytes tables, int64_t max_states, bool atomic) {
  std::vector<uint64_t> copy;
  const Tables t(aligned({tables.c_str(), tables.size()}, copy));
  oracle::Oracle o(t, max_states, atomic);
  {
    nb::gil_scoped_release release;
    o.run();
  }
  return {o.labels, o.states, o.undecided, o.notes};
}

}  // namespace

void bind_oracle(nb::module_& m) {
  m.def("oracle", &answer, nb::arg("tables"), nb::arg("max_states"), nb::arg("atomic"),
        "Label a small schedule by walking every interleaving: (label bits, states, why undecided or '', one note a label).");
}

}  // namespace amk
