// Data flow of a schedule without races and deadlocks.
#include <set>

#include "oracle.hpp"

namespace amk::oracle {

void Oracle::linear_order() {
  std::vector<int64_t> event(static_cast<size_t>(t.n_queues), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t q = 0; q < t.n_queues; ++q)
      while (event[size_t(q)] < 2 * total(q) && enabled(base_[size_t(q)] + event[size_t(q)] / 2, event, true)) {
        order_.push_back(base_[size_t(q)] + event[size_t(q)] / 2);
        event[size_t(q)] += 2;
        moved = true;
      }
  }
}

void Oracle::data_flow(const std::vector<int64_t>&) {
  const Scene& s = scenes_[scene_at_++];
  struct Byte {
    uint64_t certain = 0;  // steps in which a certain write has ended
    bool initial = false, generic = false;
    std::vector<int> history;  // uses that wrote, oldest first
  };
  std::vector<Byte> mem(static_cast<size_t>(s.n_segments));
  for (auto [lo, hi] : s.initial)
    for (int g = lo; g < hi; ++g) mem[size_t(g)].initial = true;
  std::vector<std::vector<int>> of(static_cast<size_t>(n_inst));
  for (size_t u = 0; u < s.uses.size(); ++u) of[size_t(s.uses[u].instance)].push_back(int(u));
  for (int64_t k : order_) {
    const int64_t i = step_[size_t(k)], task = task_[size_t(k)];
    for (int u : of[size_t(k)])
      if (const Use& x = s.uses[size_t(u)]; !(x.flags & kWrite))
        for (auto [lo, hi] : x.segments)
          for (int g = lo; g < hi; ++g) read(s, x, mem[size_t(g)], i, task);
    for (int u : of[size_t(k)])
      if (const Use& x = s.uses[size_t(u)]; x.flags & kWrite)
        for (auto [lo, hi] : x.segments)
          for (int g = lo; g < hi; ++g) {
            Byte& m = mem[size_t(g)];
            if (!(x.flags & kMaybe)) m.certain |= uint64_t{1} << i;
            if (!(x.flags & kAsync)) m.generic = true;
            m.history.push_back(u);
          }
    proxy_release(k);
  }
  for (size_t b = 0; b < t.buffers.size(); ++b)
    if (t.buffers[b].kind == kOutput)
      for (auto [lo, hi] : s.extents[b])
        for (int g = lo; g < hi; ++g) output(s, int64_t(b), mem[size_t(g)]);
}

// What the host finds in a byte of an output buffer when a launch of any number of steps has ended.
template <class Byte>
void Oracle::output(const Scene& s, int64_t b, const Byte& m) {
  if (!m.certain) mark(kCover, "output buffer " + num(b) + " is not written everywhere");
  auto step = [&](int u) { return step_[size_t(s.uses[size_t(u)].instance)]; };
  for (int64_t steps = 1; steps <= t.steps; ++steps) {
    int last = -1;
    for (int u : m.history)
      if (step(u) < steps) last = u;
    if (last >= 0 && s.uses[size_t(last)].buffer != b) mark(kFlow, "output buffer " + num(b) + " is overwritten under another name");
  }
  if (t.buffers[size_t(b)].lifetime != kHost) return;
  std::set<int64_t> steps;
  bool ring = false;
  for (int u : m.history) steps.insert(step(u)), ring |= s.uses[size_t(u)].moves;
  if (ring && steps.size() > 1) mark(kCover, "a row of the host ring " + num(b) + " is written again");
}

template <class Byte>
void Oracle::read(const Scene& s, const Use& x, const Byte& m, int64_t i, int64_t task) {
  const auto& buffer = t.buffers[size_t(x.buffer)];
  const bool per_step = buffer.lifetime == kStep;
  const int64_t from = x.flags & kPrevEpoch && buffer.tagged ? i - 1 : i;  // the tag names the step
  bool covered;
  if (buffer.tagged)
    covered = from < 0 ? m.initial : (m.certain >> from & 1) != 0;
  else if (per_step)
    covered = (m.certain >> i & 1) || (i == 0 && m.initial);
  else
    covered = m.certain || m.initial;
  if (!covered && !(x.flags & kMaybe)) mark(kCover, "task " + num(task) + " step " + num(i) + " reads what nobody wrote");
  bool found = false;
  for (size_t k = m.history.size(); k-- > 0;) {
    const Use& w = s.uses[size_t(m.history[k])];
    const int64_t ws = step_[size_t(w.instance)], writer = task_[size_t(w.instance)];
    if (buffer.tagged ? ws != from : (per_step && ws != i)) continue;
    found = true;
    feeds_.insert({writer, task});
    if (x.label >= 0 && (w.label != x.label || w.buffer != x.buffer))
      mark(kFlow, "task " + num(task) + " step " + num(i) + " reads a value of task " + num(writer));
    if (!(w.flags & kMaybe) || x.flags & kMaybe) break;  // what may not have been written leaves what was there before
  }
  if (x.label >= 0 && !found && x.flags & kMaybe && !(buffer.tagged ? from < 0 && m.initial : m.initial && (!per_step || i == 0)))
    mark(kFlow, "task " + num(task) + " step " + num(i) + " reads no value at all");
  if (x.flags & kAsync && m.generic && !(t.task_fences[size_t(task)] & 1))
    mark(kProxy, "task " + num(task) + " reads generic writes through the async proxy without a fence");
}

void Oracle::proxy_release(int64_t k) {
  const auto b = size_t(task_[size_t(k)]);
  bool async_write = false;
  for (int64_t a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a)
    async_write |= (t.acc_flags[size_t(a)] & kAsync) && (t.acc_flags[size_t(a)] & kWrite);
  const bool followed = pos_[size_t(k)] + 1 < total(queue_[size_t(k)]), signals = t.sig_off[b + 1] > t.sig_off[b];
  if (async_write && (followed || signals) && !(t.task_fences[b] & 2))
    mark(kProxy, "task " + num(int64_t(b)) + " releases bulk stores that are not complete");
}

// Every real op must reach something that outlives its step, or an opaque task.  A launch without output buffers (a prefill) is run for
// what it leaves behind, and may compute a whole layer for that.
void Oracle::side_effects() {
  bool outputs = false;
  for (const auto& b : t.buffers) outputs |= b.kind == kOutput;
  if (!outputs) return;
  std::set<int64_t> useful;
  for (int64_t b = 0; b < t.n_tasks; ++b) {
    bool out = t.task_op[size_t(b)] == 0;
    for (int64_t a = t.acc_off[size_t(b)]; a < t.acc_off[size_t(b) + 1]; ++a) {
      const auto& buffer = t.buffers[size_t(t.acc_buffer[size_t(a)])];
      const bool stays = buffer.kind == kOutput || buffer.kind == kKv || buffer.kind == kToken || buffer.lifetime != kStep;
      out |= (t.acc_flags[size_t(a)] & kWrite) && stays;
    }
    if (out) useful.insert(b);
  }
  for (bool grown = true; grown;) {
    grown = false;
    for (auto [w, r] : feeds_)
      if (useful.count(r)) grown |= useful.insert(w).second;
  }
  for (int64_t b = 0; b < t.n_tasks; ++b)
    if (!useful.count(b)) mark(kCover, "task " + num(b) + " reaches no output");
}

}  // namespace amk::oracle
