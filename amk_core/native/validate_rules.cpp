// The rules that are not about one cell: RO, STOP, completion of bulk stores, reach; and the order of all of them.
#include <algorithm>
#include <numeric>

#include "validate.hpp"

namespace amk::validate {

namespace {
Rect whole(const Model& m, i32 buffer, i32 space) {
  return {buffer, space, {.b = m.t.buffers[buffer].rows}, {.b = m.t.buffers[buffer].cols}};
}
}  // namespace

void Checker::readonly() {
  std::vector<std::vector<i32>> readonly_of(m.t.buffers.size());  // by group
  for (i32 b = 0; b < i32(m.t.buffers.size()); ++b)
    if (m.readonly_[b]) readonly_of[m.group_of[b]].push_back(b);
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    const auto writer = std::find_if(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) { return m.acc[a].write(); });
    if (writer == acc_of[x].end()) continue;
    for (i32 b : readonly_of[m.group_of[r.buffer]]) {
      const auto& buf = m.t.buffers[b];
      bool exact = true;
      if (b != r.buffer && !touch(r, whole(m, b, r.space), exact)) continue;
      const auto span = byte_bounds(m, r), all = byte_bounds(m, whole(m, b, r.space));
      Finding f;
      f.rule = kRo, f.what = b == r.buffer ? "write" : "alias", f.task_a = m.acc[*writer].task, f.buffer = b, f.undecided = !exact;
      f.lo = std::max(span.first, all.first) / 2 - buf.offset, f.hi = std::min(span.second, all.second) / 2 - buf.offset;
      out.add(std::move(f));
      break;
    }
  }
}

void Checker::stop() {
  if (m.t.stop_buffer < 0) return;
  const i32 buffer = i32(m.t.stop_buffer), task = i32(m.t.stop_task);
  auto add = [&](const char* what, i64 other, i64 step) {
    Finding f;
    f.rule = kStop, f.what = what, f.task_a = task, f.task_b = other, f.step_a = step, f.step_b = step + 1, f.buffer = buffer;
    out.add(std::move(f));
  };
  bool writes = false;
  for (const Access& a : m.acc) {
    if (!a.write()) continue;
    const Rect& r = m.rects[a.rect];
    if (r.buffer == buffer && a.task == task && !a.maybe()) writes = true;
    if (a.task == task) continue;
    if (m.group_of[r.buffer] != m.group_of[buffer]) continue;
    bool exact;  // it need not be certain
    if (touch(r, whole(m, buffer, r.space), exact)) add("writer", a.task, 0);
  }
  if (!writes) add("unwritten", -1, 0);
  if (horizon < 2) return;
  for (i32 k = 0; k < m.q; ++k) {
    if (!m.len[k]) continue;
    const i32 first = m.t.queue_task[m.t.queue_off[k]];
    if (!clocks.decided(run, task, 0, first)) add("order", first, 0);  // a later step knows as much as the first one
  }
}

// Every task of a real op reaches something that outlives its step.
void Checker::reach() {
  // A launch without outputs (a prefill) is run for what it leaves behind, and may compute a whole layer for that.
  if (std::none_of(m.t.buffers.begin(), m.t.buffers.end(), [](const BufferRow& b) { return b.kind == kOutput; })) return;
  const i32 nodes = m.n + flow_nodes;
  std::vector<i64> from(nodes + 1);  // writers of each reader
  for (const auto& e : flow) ++from[e.second + 1];
  std::partial_sum(from.begin(), from.end(), from.begin());
  std::vector<i32> writer(flow.size());
  auto at = from;
  for (const auto& e : flow) writer[at[e.second]++] = e.first;
  std::vector<char> useful(keeps.begin(), keeps.end());
  useful.resize(nodes);
  std::vector<i32> todo;
  for (i32 b = 0; b < m.n; ++b)
    if (useful[b]) todo.push_back(b);
  while (!todo.empty()) {
    const i32 b = todo.back();
    todo.pop_back();
    for (i64 k = from[b]; k < from[b + 1]; ++k)
      if (!useful[writer[k]]) useful[writer[k]] = true, todo.push_back(writer[k]);
  }
  for (i32 b = 0; b < m.n; ++b)
    if (!useful[b]) {
      Finding f;
      f.rule = kCover, f.what = "dead", f.task_a = b, f.undecided = gave_up;
      out.add(std::move(f));
    }
}

void Checker::all() {
  for (const Group& g : groups) {
    group_static(g);
    if (g.moves) group_moving(g);
    if (g.tagged) tagged(g);
  }
  for (i32 b = 0; b < i32(m.t.buffers.size()); ++b) {
    const auto& buf = m.t.buffers[b];
    if (!buf.tagged || (buf.bits == 64 && buf.offset % 8 == 0)) continue;
    Finding f;
    f.rule = kTag, f.what = "alignment", f.buffer = b, f.hi = (buf.rows * m.pitch(b) + 1) / 2;
    out.add(std::move(f));
  }
  readonly();
  stop();
  for (i32 b = 0; b < m.n; ++b) {  // bulk stores complete before anybody may follow
    if (m.t.task_fences[b] & 2 || run.index[b] < 0) continue;
    const bool followed = m.t.sig_off[b + 1] > m.t.sig_off[b] || horizon > 1 || m.pos_of[b] + 1 < m.len[m.queue_of[b]];
    if (!followed) continue;
    for (i64 a = m.t.acc_off[b]; a < m.t.acc_off[b + 1]; ++a)  // of no bytes too
      if ((m.t.acc_flags[a] & kWrite) && (m.t.acc_flags[a] & kAsync)) {
        Finding f;
        f.rule = kProxy, f.what = m.t.task_fences[b] & 4 ? "read wait" : "wait_group", f.task_a = b, f.buffer = m.t.acc_buffer[a];
        out.add(std::move(f));
        break;
      }
  }
  if (run.complete) {
    outputs();
    reach();
  }
}

}  // namespace amk::validate
