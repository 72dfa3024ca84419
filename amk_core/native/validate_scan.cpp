// One cell of memory: its accesses in replay order, checked against the clocks.
//
// The replay order is a linear extension of must-order, so of two conflicting accesses only one order is possible, and since must-order
// is transitive it is enough to compare a read with the last write and a write with the reads since (or with the last write).
#include <algorithm>

#include "validate.hpp"

namespace amk::validate {

Checker::Checker(const Model& model, const Run& r, const Clocks& c, Report& report, i64 steps)
    : m(model), run(r), clocks(c), out(report), horizon(steps) {
  acc_of.resize(m.rects.size()), written.resize(m.rects.size());
  for (i32 b : run.order)
    for (i64 a = m.acc_off[b]; a < m.acc_off[b + 1]; ++a) {
      acc_of[m.acc[a].rect].push_back(i32(a));
      written[m.acc[a].rect] |= m.acc[a].write();
    }
  keeps.resize(m.n), elsewhere.resize(m.acc.size());
  for (i32 b = 0; b < m.n; ++b) {
    need_flow |= m.t.task_op[b] != 0;
    keeps[b] = m.t.task_op[b] == 0;
    for (i64 a = m.acc_off[b]; a < m.acc_off[b + 1]; ++a) {
      const auto& buf = m.t.buffers[m.rects[m.acc[a].rect].buffer];
      keeps[b] |= m.acc[a].write() && (buf.kind == kOutput || buf.kind == kKv || buf.kind == kToken || buf.lifetime != kStep);
    }
  }
  std::map<std::pair<i32, i32>, i32> index;
  auto group = [&](i32 buffer, i32 space) -> Group& {
    const auto [it, fresh] = index.try_emplace({m.group_of[buffer], space}, i32(groups.size()));
    if (fresh) groups.push_back({}), groups.back().space = space;
    return groups[it->second];
  };
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& rect = m.rects[x];
    Group& g = group(rect.buffer, rect.space);
    g.rects.push_back(x);
    g.moves |= rect.moves();
    g.tagged |= m.t.buffers[rect.buffer].tagged != 0;
    g.writes |= written[x];
  }
  for (i32 x : m.init) group(m.rects[x].buffer, m.rects[x].space).init.push_back(x);
}

void Checker::race(i32 a, i64 ia, i32 b, i64 ib, i64 lo, i64 hi, bool undecided) {
  const Access &x = m.acc[a], &y = m.acc[b];
  Finding f;
  f.rule = kRace, f.what = x.write() ? (y.write() ? "WAW" : "RAW") : "WAR", f.undecided = undecided;
  f.meet = !undecided, f.moves = m.rects[x.rect].moves() || m.rects[y.rect].moves();
  f.task_a = x.task, f.task_b = y.task, f.step_a = ia, f.step_b = ib;
  f.buffer = m.rects[y.rect].buffer;
  const i64 base = m.t.buffers[f.buffer].offset;
  f.lo = lo / 2 - base, f.hi = (hi + 1) / 2 - base;
  out.add(std::move(f));
}

void Checker::data(Rule rule, const char* what, i32 acc, i64 step, i32 other, i64 other_step, i64 lo, i64 hi, bool undecided) {
  Finding f;
  f.rule = rule, f.what = what, f.undecided = undecided;
  f.task_a = m.acc[acc].task, f.step_a = step;
  if (other >= 0) f.task_b = m.acc[other].task, f.step_b = other_step;
  f.buffer = m.rects[m.acc[acc].rect].buffer;
  const i64 base = m.t.buffers[f.buffer].offset;
  f.lo = lo / 2 - base, f.hi = (hi + 1) / 2 - base;
  out.add(std::move(f));
}

void Checker::scan(const std::vector<Item>& items, const Cell& cell, const ScanOptions& o) {
  std::vector<Item> writers, reads;
  auto ordered = [&](const Item& a, const Item& b) {
    return clocks.ordered(m.acc[a.acc].task, a.step, m.acc[b.acc].task, b.step);
  };
  auto eligible = [&](const Item& w, const Item& r) {  // what is read through a step buffer does not survive the step
    return w.step == r.step || !m.step_lifetime(m.rects[m.acc[r.acc].rect].buffer);
  };
  i32 generic = -1, before = -1;  // a write to these bytes through the generic proxy: so far, and in the step before
  if (o.second_pass)
    for (const Item& w : items)
      if (m.acc[w.acc].write() && !(m.acc[w.acc].flags & kAsync)) before = w.acc;
  const int passes = o.second_pass ? 2 : 1;
  for (int pass = 0; pass < passes; ++pass)
    for (const Item& raw : items) {
      const Item it{raw.acc, raw.step + pass};
      const Access& a = m.acc[it.acc];
      if (a.write()) {
        if (o.race) {
          for (const Item& r : reads)
            if (!ordered(r, it)) {
              race(r.acc, r.step, it.acc, it.step, cell.lo, cell.hi);
              break;
            }
          if (reads.empty() && !writers.empty() && !ordered(writers.back(), it))
            race(writers.back().acc, writers.back().step, it.acc, it.step, cell.lo, cell.hi);
        }
        writers.push_back(it);
        if (!(a.flags & kAsync)) generic = it.acc;
        reads.clear();
        if (pass == 1 && !a.maybe()) return;
        continue;
      }
      const bool after_last = !writers.empty() && ordered(writers.back(), it);
      auto after = [&](size_t k) { return k + 1 == writers.size() ? after_last : ordered(writers[k], it); };
      if (o.race && !writers.empty() && !after_last)
        race(writers.back().acc, writers.back().step, it.acc, it.step, cell.lo, cell.hi);
      reads.push_back(it);
      const bool async = (a.flags & kAsync) && !(m.t.task_fences[a.task] & 1);
      if (o.race && async && pass == 0) {
        if (generic >= 0)
          data(kProxy, "fence", it.acc, it.step, generic, it.step, cell.lo, cell.hi);
        else if (before >= 0)
          data(kProxy, "fence", it.acc, it.step + 1, before, it.step, cell.lo, cell.hi);
      }
      if (!o.data || (*o.skip_data)[it.acc]) continue;
      const i32 buffer = m.rects[a.rect].buffer;
      const bool step_buffer = m.step_lifetime(buffer);
      const bool initial_counts = o.initial && (it.step == 0 || !step_buffer) && !(o.second_pass && step_buffer);
      if (!a.maybe() && pass == 0) {
        bool ok = initial_counts;
        for (size_t k = writers.size(); !ok && k-- > 0;)
          ok = !m.acc[writers[k].acc].maybe() && eligible(writers[k], it) && after(k);
        // a race on the bytes is reported as such; here only what no order could repair
        if (!ok) data(kCover, o.initial ? "poison" : "read", it.acc, o.initial && step_buffer ? std::max<i64>(it.step, 1) : it.step, -1, 0, cell.lo, cell.hi);
      }
      bool found = false;
      for (size_t k = writers.size(); k-- > 0;) {
        const Item& w = writers[k];
        const Access& wa = m.acc[w.acc];
        if (!eligible(w, it)) break;
        if (!after(k)) continue;
        feeds(wa.task, a.task);
        if (foreign(wa, a)) {
          data(kFlow, m.rects[wa.rect].buffer != buffer ? "alias" : "value", it.acc, it.step, w.acc, w.step, cell.lo, cell.hi);
          found = true;
          break;
        }
        if (!wa.maybe() || a.maybe()) {
          found = true;
          break;
        }
      }
      if (!found && a.label >= 0 && a.maybe() && pass == 0 && !initial_counts) data(kFlow, "nothing", it.acc, it.step, -1, 0, cell.lo, cell.hi);
    }
}

namespace {
// For an inner one that stands still and holds something: an outer range that moves is written down as [0, 0).
bool contains(const Rect& outer, const Rect& inner) {
  return outer.buffer == inner.buffer && outer.rows.a <= inner.rows.a && outer.rows.b >= inner.rows.b && outer.cols.a <= inner.cols.a &&
         outer.cols.b >= inner.cols.b;
}
}  // namespace

// May something that moves reach the elements of a rectangle that stands still?  Tags are looked at elsewhere.
bool Checker::moved_into(const Group& g, i32 x) const {
  const Rect& rect = m.rects[x];
  return std::any_of(g.rects.begin(), g.rects.end(), [&](i32 y) {
    const Rect& other = m.rects[y];
    if (!other.moves()) return false;
    if (!(written[y] && !m.t.buffers[other.buffer].tagged) && std::find(g.init.begin(), g.init.end(), y) == g.init.end()) return false;
    return rect.buffer != other.buffer || meet(m, rect, other, 0).any || meet(m, other, rect, 0).any;
  });
}

// Everything about the accesses of a group that do not move.
void Checker::group_static(const Group& g) {
  bool sub_byte = false;
  std::vector<i32> rects;
  for (i32 x : g.rects)
    if (!m.rects[x].moves() && !m.t.buffers[m.rects[x].buffer].tagged && !acc_of[x].empty()) rects.push_back(x);
  if (rects.empty()) return;
  if (g.moves)
    for (i32 x : rects)
      if (moved_into(g, x))
        for (i32 a : acc_of[x]) elsewhere[a] = 1;
  for (i32 x : rects) sub_byte |= m.unit(m.rects[x].buffer) == 1;
  ScanOptions o;
  o.second_pass = clocks.unroll == 0 && horizon > 1;
  o.skip_data = &elsewhere;

  std::vector<Shape> shapes;
  Cells parts;
  auto add_rect = [&](i32 x, i32 id) {
    const Rect& r = m.rects[x];
    shapes.push_back({r.buffer, r.rows.a, r.rows.b, r.cols.a, r.cols.b, id});
  };
  const i32 first_init = i32(rects.size());
  auto undecided = [&] {
    gave_up = true;
    for (i32 x : rects)
      for (i32 a : acc_of[x]) return race(a, 0, a, 0, 0, 0, true);
  };
  if (!g.writes) {
    // Reads only: one initial range around each is the usual case.
    std::vector<i32> open;
    for (i32 x : rects) {
      const bool poisoned = m.step_lifetime(m.rects[x].buffer) && horizon > 1;
      if (poisoned || std::none_of(g.init.begin(), g.init.end(), [&](i32 i) { return contains(m.rects[i], m.rects[x]); })) open.push_back(x);
    }
    rects = std::move(open);
    if (rects.empty()) return;
  }
  for (size_t k = 0; k < rects.size(); ++k) add_rect(rects[k], i32(k));
  for (i32 x : g.init) add_rect(x, first_init);  // one that moves is written down as [0, 0)
  Bundles bundles(*this, rects);
  std::vector<char> has_write(rects.size(), 0);
  for (size_t k = 0; k < rects.size(); ++k) has_write[k] = !bundles.writes(i32(k)).empty();
  const int rounds = sub_byte ? 2 : 1;  // sub-byte neighbours share a byte for RACE and PROXY, not for what a read contains
  for (int round = 0; round < rounds; ++round) {
    o.race = round == 0, o.data = round == rounds - 1;
    if (!cells(m, shapes, sub_byte && round == 0, parts)) return undecided();
    std::vector<Item> items, merged;
    std::vector<i32> lists;
    auto less = [&](const Item& a, const Item& b) { return key(a.acc) < key(b.acc); };
    auto gather = [&](const Cell& cell, bool all) {  // accesses in replay order; those of long read lists only if all are wanted
      items.clear(), lists.clear();
      for (i32 id : cell.ids) {
        if (id == first_init) continue;
        const bool listed = !all && bundles.listed(id);
        if (listed) lists.push_back(id);
        const size_t mid = items.size();
        for (i32 a : listed ? bundles.writes(id) : acc_of[rects[id]]) items.push_back({a, 0});
        if (mid == 0 || mid == items.size()) continue;
        merged.resize(items.size());
        std::merge(items.begin(), items.begin() + i64(mid), items.begin() + i64(mid), items.end(), merged.begin(), less);
        items.swap(merged);
      }
    };
    for (const Cell& cell : parts) {
      o.initial = cell.ids.back() == first_init;
      bool writes = false, step_buffers = false;
      for (i32 id : cell.ids)
        if (id != first_init) writes |= has_write[id], step_buffers |= m.step_lifetime(m.rects[rects[id]].buffer);
      if (!writes && o.initial && (horizon == 1 || !step_buffers)) continue;
      if (clocks.unroll <= 1) {
        gather(cell, false);
        if (bundles.scan(items, lists, o)) continue;
      }
      gather(cell, true);
      const size_t one = items.size();
      for (i64 s = 1; s < clocks.unroll; ++s)
        for (size_t k = 0; k < one; ++k) items.push_back({items[k].acc, i32(s)});
      scan(items, cell, o);
    }
  }
}

}  // namespace amk::validate
