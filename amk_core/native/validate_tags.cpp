// TAG: values that carry their epoch.
#include <algorithm>
#include <numeric>

#include "validate.hpp"

namespace amk::validate {

namespace {

// Of writers by step: how many wrote a tag up to this one.
size_t up_to(const std::vector<Item>& writers, i64 tag) {
  return size_t(std::upper_bound(writers.begin(), writers.end(), tag, [](i64 t, const Item& w) { return t < w.step; }) - writers.begin());
}

i64 tag_of(const Access& read, i64 step) { return read.flags & kPrevEpoch ? step - 1 : step; }

}  // namespace

// All reads of a list, in every step: does each find its tag, from the writer it wants, and is it over before the next writer starts?
// False: perhaps not.
bool Checker::together(Bundles& bundles, i32 list, const std::vector<Item>& writers, i64 span, bool initial, std::vector<char>& was_read) {
  const auto& reads = bundles.reads(list);
  Bundle& b = bundles.get(list, 0, i32(reads.size()));
  const Access& first = m.acc[reads[0]];
  if (b.mixed || b.maybe || b.async || std::any_of(reads.begin(), reads.end(), [&](i32 a) { return m.acc[a].flags != first.flags; })) return false;
  for (i64 s = 0; s < span; ++s) {
    const i64 tag = tag_of(first, s);
    const size_t next = up_to(writers, tag);
    if (next > 0 && writers[next - 1].step == tag) {
      const Access& w = m.acc[writers[next - 1].acc];
      if (w.maybe() || foreign(w, first)) return false;
      bundles.feed(b, w.task);
      for (size_t k = next; k-- > 0 && writers[k].step == tag;) was_read[k] = 1;
    } else if (tag >= 0 || !initial) {
      return false;
    }
    for (size_t k = next; k < writers.size(); ++k) {
      const i32 w = m.acc[writers[k].acc].task;
      if (k > next && w == m.acc[writers[k - 1].acc].task) continue;  // what follows on a queue is ordered by it
      if (writers[k].step == s && bundles.last(list) > run.index[w]) return false;  // in the queue of a read, behind the writer
      if (!bundles.before(b, w, std::min<i64>(writers[k].step - s, 1))) return false;
    }
  }
  return true;
}

// A tag proves that one element arrived; the only order there is comes from counters.
void Checker::tagged(const Group& g) {
  std::vector<i32> rects;
  bool variables = false, exact = true;
  i64 period = 1;
  for (i32 x : g.rects) {
    const Rect& r = m.rects[x];
    if (acc_of[x].empty()) continue;
    if (!m.t.buffers[r.buffer].tagged) {
      for (i32 y : g.rects)
        if (m.t.buffers[m.rects[y].buffer].tagged && !acc_of[y].empty()) {
          if (touch(r, m.rects[y], exact)) {
            const auto where = byte_bounds(m, r);
            data(kTag, "alias", acc_of[x][0], 0, acc_of[y][0], 0, where.first, where.second, !exact);
            break;
          }
        }
      continue;
    }
    for (i32 y : rects)
      if (m.rects[y].buffer != r.buffer && touch(r, m.rects[y], exact)) {
        const auto where = byte_bounds(m, r);
        data(kTag, "alias", acc_of[x][0], 0, acc_of[y][0], 0, where.first, where.second, !exact);
        break;
      }
    rects.push_back(x);
    for (const Range* range : {&r.rows, &r.cols})
      if (range->aff >= 0) {
        const AffineRow& f = m.affine[range->aff];
        variables |= f.var >= 0 || f.length_var >= 0;
        const i64 p = f.mod && !f.length_stride ? f.mod / std::gcd(f.stride, f.mod) : m.steps;
        period = std::min(m.steps, std::lcm(period, std::min(p, m.steps)));
      }
  }
  if (rects.empty()) return;
  const i64 window = std::min<i64>(horizon, std::min<i64>(period, kTagSteps) * 2 + 1);
  auto undecided = [&] {
    const auto [lo, hi] = byte_bounds(m, m.rects[rects[0]]);
    gave_up = true;
    data(kTag, "undecided", acc_of[rects[0]][0], 0, -1, 0, lo, hi, true);
  };
  if (variables || (window < horizon && period > kTagSteps / 2)) return undecided();
  const i64 span = clocks.unroll ? std::min(clocks.unroll, horizon) : window;
  std::vector<Shape> shapes;
  std::vector<std::pair<i32, i32>> what;
  const std::vector<i64> none(m.t.variables.size(), 0);
  // Reads of one rectangle that stands still are looked at together; what is not clearly in order is looked at one by one.
  Bundles bundles(*this, rects);
  std::vector<i32> list_of;  // per shape: position of its rectangle, if it stands still and is much read
  for (size_t k = 0; k < rects.size(); ++k) {
    const i32 x = rects[k];
    for (i64 s = 0; s < (m.rects[x].moves() ? span : 1); ++s) {
      const auto r = range_at(m, m.rects[x].rows, s, none), c = range_at(m, m.rects[x].cols, s, none);
      shapes.push_back({m.rects[x].buffer, r.first, r.second, c.first, c.second, i32(what.size())});
      what.push_back({x, m.rects[x].moves() ? i32(s) : -1});
      list_of.push_back(m.rects[x].moves() || !bundles.listed(i32(k)) ? -1 : i32(k));
    }
  }
  const i32 first_init = i32(what.size());
  for (i32 x : g.init)  // one that moves is written down as [0, 0)
    shapes.push_back({m.rects[x].buffer, m.rects[x].rows.a, m.rects[x].rows.b, m.rects[x].cols.a, m.rects[x].cols.b, first_init});
  Cells parts;
  if (!cells(m, shapes, false, parts)) return undecided();
  std::vector<Item> writers, readers;
  std::vector<char> was_read;
  std::vector<i32> later, lists;
  const bool bundled = clocks.unroll == 0;
  for (const Cell& cell : parts) {
    writers.clear(), readers.clear(), lists.clear();
    const bool initial = cell.ids.back() == first_init;
    for (i32 id : cell.ids) {
      if (id == first_init) continue;
      const auto [x, step] = what[id];
      const i32 list = list_of[id];
      if (bundled && list >= 0) lists.push_back(list);
      for (i32 a : bundled && list >= 0 ? bundles.writes(list) : acc_of[x])
        for (i64 s = step < 0 ? 0 : step; s < (step < 0 ? span : step + 1); ++s) (m.acc[a].write() ? writers : readers).push_back({a, i32(s)});
    }
    const auto by_step = [](const Item& a, const Item& b) { return a.step < b.step; };
    std::sort(writers.begin(), writers.end(), by_step);
    bool broken = false;
    was_read.assign(writers.size(), 0);
    for (size_t k = 1; k < writers.size() && !broken; ++k) {
      broken = writers[k - 1].step == writers[k].step && m.acc[writers[k - 1].acc].task != m.acc[writers[k].acc].task;
      if (broken) data(kTag, "two writers", writers[k].acc, writers[k].step, writers[k - 1].acc, writers[k].step, cell.lo, cell.hi);
    }
    if (broken) continue;
    for (i32 list : lists) {
      if (!together(bundles, list, writers, span, initial, was_read))
        for (i32 a : bundles.reads(list))
          for (i64 s = 0; s < span; ++s) readers.push_back({a, i32(s)});
    }
    for (const Item& r : readers) {
      const Access& ra = m.acc[r.acc];
      const i64 tag = tag_of(ra, r.step);
      size_t next = up_to(writers, tag);
      const bool arrives = next > 0 && writers[next - 1].step == tag;
      if ((ra.flags & kAsync) && !(m.t.task_fences[ra.task] & 1))
        for (size_t k = next; k-- > 0;)
          if (!(m.acc[writers[k].acc].flags & kAsync)) {
            data(kProxy, "fence", r.acc, r.step, writers[k].acc, writers[k].step, cell.lo, cell.hi);
            break;
          }
      bool produced = false;
      for (size_t k = next; k-- > 0 && writers[k].step == tag;) produced |= !m.acc[writers[k].acc].maybe();
      if (!ra.maybe() && (tag < 0 ? !initial : !produced)) data(kCover, tag < 0 ? "read" : "tag", r.acc, r.step, -1, 0, cell.lo, cell.hi);
      if (arrives) {
        if (!ra.maybe())
          for (size_t k = next; k-- > 0 && writers[k].step == tag;) was_read[k] = 1;
        for (size_t k = next; k-- > 0 && writers[k].step == tag;) {
          const Access& wa = m.acc[writers[k].acc];
          feeds(wa.task, ra.task);
          if (foreign(wa, ra)) {
            data(kFlow, "value", r.acc, r.step, writers[k].acc, tag, cell.lo, cell.hi);
            break;
          }
          if (!wa.maybe() || ra.maybe()) break;
        }
      } else if (ra.label >= 0 && ra.maybe() && !(tag < 0 && initial)) {
        data(kFlow, "nothing", r.acc, r.step, -1, 0, cell.lo, cell.hi);
      }
      later.clear();  // writers of this address that come after, each once: what follows on a queue is ordered by it
      for (; next < writers.size(); ++next) {
        const i32 w = m.acc[writers[next].acc].task;
        if (std::find(later.begin(), later.end(), w) != later.end()) continue;
        later.push_back(w);
        if (!clocks.ordered(ra.task, r.step, w, writers[next].step))
          data(kTag, "overwrite", r.acc, r.step, writers[next].acc, writers[next].step, cell.lo, cell.hi);
      }
    }
    for (size_t k = 0; k < writers.size(); ++k) {
      size_t next = k + 1;
      while (next < writers.size() && writers[next].step == writers[k].step) ++next;
      if (!was_read[k] && next < writers.size() &&
          !clocks.ordered(m.acc[writers[k].acc].task, writers[k].step, m.acc[writers[next].acc].task, writers[next].step))
        data(kTag, "overwrite", writers[k].acc, writers[k].step, writers[next].acc, writers[next].step, cell.lo, cell.hi);
    }
  }
}

}  // namespace amk::validate
