// LIVE: one greedy run of one step decides deadlock for every number of steps (proofs/OneStep.v).
#include <algorithm>
#include <queue>

#include "validate.hpp"

namespace amk::validate {

constexpr size_t kChain = 64;  // blocked heads that are told

// A tagged read waits for every writer (in this step) of the elements it reads.  One that may happen counts: where it does, its
// writers do, and where nothing may happen fewer waits stand in the way.
TagWaits tag_waits(const Model& m) {
  TagWaits out;
  if (std::none_of(m.t.buffers.begin(), m.t.buffers.end(), [](const BufferRow& b) { return b.tagged; })) return out;
  out.of_task.resize(m.n), out.signalled_by.resize(m.n);
  std::vector<std::vector<i32>> writers(m.t.buffers.size());
  for (i32 a = 0; a < i32(m.acc.size()); ++a)
    if (m.acc[a].write()) writers[m.rects[m.acc[a].rect].buffer].push_back(a);
  std::unordered_map<i32, i32> counter;  // rect -> virtual counter
  for (const Access& r : m.acc) {
    const Rect& rect = m.rects[r.rect];
    if (r.write() || (r.flags & kPrevEpoch) || !m.t.buffers[rect.buffer].tagged) continue;
    auto [it, fresh] = counter.try_emplace(r.rect, i32(out.need.size()));
    if (fresh) {
      out.need.push_back(0);
      for (i32 w : writers[rect.buffer]) {
        const Meet meeting = meet(m, m.rects[m.acc[w].rect], rect, 0);
        if (!meeting.any || meeting.k != 0) continue;
        ++out.need.back();
        out.signalled_by[m.acc[w].task].push_back(it->second);
      }
    }
    out.of_task[r.task].push_back(it->second);
  }
  return out;
}

Run greedy(const Model& m, const TagWaits& tags) {
  Run run;
  run.index.assign(m.n, -1), run.head.assign(m.q, 0), run.count.assign(m.total.size(), 0);
  std::vector<i32> missing = tags.need;
  std::vector<std::vector<i32>> tag_blocked(tags.need.size());
  using Entry = std::pair<i64, i32>;  // threshold, queue
  std::vector<std::priority_queue<Entry, std::vector<Entry>, std::greater<>>> blocked(m.total.size());
  std::vector<i32> ready;
  for (i32 k = 0; k < m.q; ++k)
    if (m.len[k]) ready.push_back(k);
  run.order.reserve(m.n);
  // Round robin keeps the replay close to a real run; the verdict does not depend on it.
  std::vector<i32> next;
  while (!ready.empty()) {
    next.clear();
    for (size_t at = 0; at < ready.size(); ++at) {
      const i32 k = ready[at];
      const i32 b = m.t.queue_task[m.t.queue_off[k] + run.head[k]];
      bool go = true;
      for (i64 w = m.t.wait_off[b]; go && w < m.t.wait_off[b + 1]; ++w)
        if (m.t.wait_e[w] == 0 && run.count[m.t.wait_counter[w]] < m.t.wait_t[w]) {
          blocked[m.t.wait_counter[w]].push({m.t.wait_t[w], k});
          go = false;
        }
      if (!tags.of_task.empty())
        for (i32 v : tags.of_task[b])
          if (go && missing[v] > 0) tag_blocked[v].push_back(k), go = false;
      if (!go) continue;
      run.index[b] = i32(run.order.size());
      run.order.push_back(b);
      ++run.head[k];
      for (i64 s = m.t.sig_off[b]; s < m.t.sig_off[b + 1]; ++s) {
        const i32 c = m.t.sig_counter[s];
        run.count[c] += m.t.sig_amount[s];
        auto& heap = blocked[c];
        while (!heap.empty() && heap.top().first <= run.count[c]) next.push_back(heap.top().second), heap.pop();
      }
      if (!tags.signalled_by.empty())
        for (i32 v : tags.signalled_by[b])
          if (--missing[v] == 0) next.insert(next.end(), tag_blocked[v].begin(), tag_blocked[v].end()), tag_blocked[v].clear();
      if (run.head[k] < m.len[k]) next.push_back(k);
    }
    ready.swap(next);
  }
  run.complete = i64(run.order.size()) == m.n;
  return run;
}

void deadlock(const Model& m, const TagWaits& tags, const Run& run, Report& out) {
  auto head = [&](i32 k) { return m.t.queue_task[m.t.queue_off[k] + run.head[k]]; };
  std::vector<i32> missing = tags.need;
  if (!tags.signalled_by.empty())
    for (i32 b : run.order)
      for (i32 v : tags.signalled_by[b]) --missing[v];
  i32 k = 0;
  while (run.head[k] == m.len[k]) ++k;
  std::vector<i32> seen_at(m.q, -1);
  std::vector<std::array<i64, 6>> path;
  // Follow blocked head -> a producer that never ran -> the head of its queue, until a queue repeats.
  while (seen_at[k] < 0) {
    seen_at[k] = i32(path.size());
    const i32 b = head(k);
    i64 w = m.t.wait_off[b];
    while (w < m.t.wait_off[b + 1] && (m.t.wait_e[w] != 0 || run.count[m.t.wait_counter[w]] >= m.t.wait_t[w])) ++w;
    if (w < m.t.wait_off[b + 1]) {
      const i32 c = m.t.wait_counter[w];
      path.push_back({k, run.head[k], b, c, m.t.wait_t[w], run.count[c]});
      i64 p = m.prod_off[c];
      while (run.index[m.prod_task[p]] >= 0) ++p;  // one of them did not run: the count is too low
      k = m.queue_of[m.prod_task[p]];
    } else {
      const i32 v = *std::find_if(tags.of_task[b].begin(), tags.of_task[b].end(), [&](i32 x) { return missing[x] > 0; });
      path.push_back({k, run.head[k], b, -1, tags.need[v], tags.need[v] - missing[v]});
      auto writes = [&](i32 p) { return std::find(tags.signalled_by[p].begin(), tags.signalled_by[p].end(), v) != tags.signalled_by[p].end(); };
      i32 p = 0;
      while (run.index[p] >= 0 || !writes(p)) ++p;
      k = m.queue_of[p];
    }
  }
  Finding f;
  f.rule = kLive, f.what = "deadlock";
  const size_t from = size_t(seen_at[k]);
  for (size_t i = from; i < path.size() && i < from + kChain; ++i) f.chain.insert(f.chain.end(), path[i].begin(), path[i].end());
  f.task_a = path[from][2];
  f.task_b = path.size() > from + 1 ? path[from + 1][2] : -1;
  f.counter = path[from][3], f.need = path[from][4], f.have = path[from][5];
  out.add(std::move(f));
}

bool withheld(const Model& m, i32 a, i64 ia, i32 b, i64 ib, i64 steps, std::vector<i64>& done, std::vector<i64>& count) {
  done.assign(m.q, 0), count.assign(m.total.size(), 0);
  auto limit = [&](i32 k) {
    i64 most = steps * m.len[k];
    if (k == m.queue_of[a]) most = std::min(most, ia * m.len[k] + m.pos_of[a]);
    if (k == m.queue_of[b]) most = std::min(most, ib * m.len[k] + m.pos_of[b]);
    return most;
  };
  auto enabled = [&](i32 k) {
    const i64 step = done[k] / m.len[k];
    const i32 x = m.t.queue_task[m.t.queue_off[k] + done[k] % m.len[k]];
    for (i64 w = m.t.wait_off[x]; w < m.t.wait_off[x + 1]; ++w) {
      const i64 i = step + m.t.wait_e[w];
      if (count[m.t.wait_counter[w]] < i * m.total[m.t.wait_counter[w]] + m.t.wait_t[w]) return false;
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (i32 k = 0; k < m.q; ++k)
      while (done[k] < limit(k) && enabled(k)) {
        const i32 x = m.t.queue_task[m.t.queue_off[k] + done[k]++ % m.len[k]];
        for (i64 s = m.t.sig_off[x]; s < m.t.sig_off[x + 1]; ++s) count[m.t.sig_counter[s]] += m.t.sig_amount[s];
        moved = true;
      }
  }
  return enabled(m.queue_of[a]) && enabled(m.queue_of[b]);  // a queue short of its task is not: it would have run on
}

}  // namespace amk::validate
