// Many reads of one rectangle between two writes, looked at as one.
//
// A broadcast (one writer, every queue reads) would cost reads times cells in the scan.  A bundle keeps, per queue, the weakest
// clock of its readers and the farthest of them, so that "all of them follow this write" and "this write follows all of them" are
// one comparison, or one per queue.  Bundles only prove that a cell is in order; what they cannot prove is scanned access by access.
#include <algorithm>

#include "validate_rows.hpp"

namespace amk::validate {
namespace {

constexpr size_t kArena = size_t{1} << 24;  // numbers kept in bundles at once

}  // namespace

Bundles::Bundles(Checker& checker, const std::vector<i32>& rects) : c(checker), m(checker.m), lists_(rects.size()) {
  for (size_t k = 0; k < rects.size(); ++k) {
    const auto& list = c.acc_of[rects[k]];
    for (i32 a : list)
      if (m.acc[a].write()) lists_[k].writes.push_back(a);
    if (list.size() < lists_[k].writes.size() + kLeast) continue;
    lists_[k].acc.reserve(list.size() - lists_[k].writes.size()), lists_[k].index.reserve(list.size() - lists_[k].writes.size());
    for (i32 a : list)
      if (!m.acc[a].write()) lists_[k].acc.push_back(a), lists_[k].index.push_back(c.run.index[m.acc[a].task]);
  }
}

// Reads [lo, hi) of list k.
Bundle& Bundles::get(i32 k, i32 lo, i32 hi) {
  if (arena_.size() > kArena) all_.clear(), arena_.clear(), by_key_.clear();
  const auto [it, fresh] = by_key_.try_emplace({k, lo, hi}, i32(all_.size()));
  if (fresh) all_.push_back({k, lo, hi}), build(all_.back());
  return all_[it->second];
}

void Bundles::build(Bundle& b) {
  const i32 q = m.q;
  b.low = arena_.size(), b.high = b.low + size_t(q);
  arena_.resize(arena_.size() + size_t(q) * 2, INT32_MAX);
  i32 *low = arena_.data() + b.low, *high = arena_.data() + b.high;
  std::fill(high, high + q, 0);
  const auto& list = lists_[b.list].acc;
  b.label = m.acc[list[b.lo]].label;
  for (i32 at = b.lo; at < b.hi; ++at) {
    const Access& a = m.acc[list[at]];
    const i32 own = m.queue_of[a.task], pos = m.pos_of[a.task] + 1;
    b.mixed |= a.label != b.label;
    (a.maybe() ? b.maybe : b.certain) = true;
    b.async |= (a.flags & kAsync) && !(m.t.task_fences[a.task] & 1);
    const i32 least = std::min(low[own], pos);
    lower_row(low, c.clocks.value.data() + c.clocks.row[a.task], q);
    low[own] = least;
    high[own] = std::max(high[own], pos);
  }
}

// Every read of the bundle, `later` steps after a, certainly starts after a is over.
bool Bundles::after(const Bundle& b, i32 a, i64 later) const {
  const i32 qa = m.queue_of[a];
  return i64{arena_[b.low + size_t(qa)]} + later * m.len[qa] >= m.pos_of[a] + 1;
}

// w, `later` steps after them and later in the replay, certainly starts after every read of the bundle is over.
bool Bundles::before(const Bundle& b, i32 w, i64 later) const {
  const i32 own = m.queue_of[w];
  const i32 *v = c.clocks.value.data() + c.clocks.row[w], *high = arena_.data() + b.high;
  for (i32 r = 0; r < m.q; ++r)
    if (r != own && high[r] > 0 && v[r] + later * m.len[r] < high[r]) return false;
  return true;
}

// Data flows from w to every read of the bundle.
void Bundles::feed(Bundle& b, i32 w) {
  if (!c.need_flow || c.keeps[w]) return;
  if (b.node < 0) {
    b.node = m.n + c.flow_nodes++;
    const auto& list = lists_[b.list].acc;
    for (i32 at = b.lo; at < b.hi; ++at) c.flow.push_back({b.node, m.acc[list[at]].task});
  }
  if (b.fed != w) c.flow.push_back({w, b.node});
  b.fed = w;
}

// The scan of one cell; `items` are the accesses that are in no list, `lists` the others.  True: nothing is wrong with the cell.
// False: perhaps something is.
bool Bundles::scan(const std::vector<Item>& items, const std::vector<i32>& lists, const Checker::ScanOptions& o) {
  auto ordered = [&](const Item& a, const Item& b) { return c.clocks.ordered(m.acc[a.acc].task, a.step, m.acc[b.acc].task, b.step); };
  Item last{-1, 0};
  bool doubtful = false;  // the last write is a maybe
  reads_.clear(), open_.clear();
  // A read, or reads that agree in everything but their task: is the data there, from the right writer?
  auto content = [&](i32 acc, bool async, i32 step, bool follows, bool& fed) {
    const Access& a = m.acc[acc];
    const i32 buffer = m.rects[a.rect].buffer;
    const bool step_buffer = m.step_lifetime(buffer);
    if (!follows || async) return false;
    if (!o.data || (*o.skip_data)[acc]) return true;
    if (last.acc < 0) return o.initial && !(o.second_pass && step_buffer);
    if (doubtful && !a.maybe()) return false;
    if (step == 1 && step_buffer) return true;
    if (a.label < 0 && !c.need_flow) return true;
    fed = true;
    const Access& w = m.acc[last.acc];
    return a.label < 0 || (w.label == a.label && m.rects[w.rect].buffer == buffer);
  };
  auto one = [&](const Item& it) {
    const Access& a = m.acc[it.acc];
    bool fed = false;
    if (!content(it.acc, (a.flags & kAsync) && !(m.t.task_fences[a.task] & 1), it.step, last.acc < 0 || ordered(last, it), fed)) return false;
    if (fed) c.feeds(m.acc[last.acc].task, a.task);
    reads_.push_back(it);
    return true;
  };
  auto many = [&](i32 k, i32 lo, i32 hi, i32 step) {
    const auto& list = lists_[k].acc;
    if (size_t(hi - lo) < kLeast) {
      for (i32 at = lo; at < hi; ++at)
        if (!one({list[at], step})) return false;
      return true;
    }
    Bundle& b = get(k, lo, hi);
    bool fed = false;
    if (b.mixed || (doubtful && b.certain)) return false;
    if (!content(list[lo], b.async, step, last.acc < 0 || after(b, m.acc[last.acc].task, step - last.step), fed)) return false;
    if (fed) feed(b, m.acc[last.acc].task);
    open_.push_back({k, lo, hi, step});
    return true;
  };
  auto write = [&](const Item& it) {
    if (o.race) {
      for (const Item& r : reads_)
        if (!ordered(r, it)) return false;
      for (const Open& r : open_)
        if (!before(get(r.list, r.lo, r.hi), m.acc[it.acc].task, it.step - r.step)) return false;
      if (last.acc >= 0 && !ordered(last, it)) return false;
    }
    last = it, doubtful = m.acc[it.acc].maybe();
    reads_.clear(), open_.clear();
    return true;
  };
  const i32 passes = o.second_pass ? 2 : 1;
  for (i32 pass = 0; pass < passes; ++pass) {
    at_.assign(lists.size(), 0);
    auto up_to = [&](i32 index) {  // the listed reads that run no later than that
      for (size_t k = 0; k < lists.size(); ++k) {
        const auto& order = lists_[lists[k]].index;
        const i32 lo = at_[k], hi = i32(std::upper_bound(order.begin() + lo, order.end(), index) - order.begin());
        if (hi > lo && !many(lists[k], lo, hi, pass)) return false;
        at_[k] = hi;
      }
      return true;
    };
    for (const Item& raw : items) {
      const Item it{raw.acc, raw.step + pass};
      const Access& a = m.acc[it.acc];
      if (!a.write()) {
        // reads between the same two writes may come in any order
        if (!one(it)) return false;
        continue;
      }
      if (!up_to(c.run.index[a.task]) || !write(it)) return false;
      if (pass == 1) return true;  // the rest is as in the first pass
    }
    if (!up_to(INT32_MAX)) return false;
  }
  return true;
}

}  // namespace amk::validate
