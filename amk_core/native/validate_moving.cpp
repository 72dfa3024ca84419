// RACE and COVER where ranges move: pairs of rectangles, induction over steps, and small cases written out.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kAccessPairs = 40'000'000;   // ordered() calls on moving pairs
constexpr i64 kConcreteWork = 8'000'000;   // accesses over steps and assignments of the variables
constexpr i64 kAssignments = 4096;
constexpr i64 kSampleSteps = 6;

// A linear form in the step and in variables: c + ci * i + sum of coef * variable.
struct Form {
  i128 c = 0, ci = 0;
  std::vector<std::pair<i64, i64>> vars;
  Form plus(i64 var) const {
    Form f = *this;
    if (var >= 0) f.vars.push_back({var, 1});
    return f;
  }
};

// The least value of b - a over all steps and values.
i128 least_difference(const Model& m, const Form& b, const Form& a, i64 last) {
  i128 out = b.c - a.c + std::min<i128>(0, (b.ci - a.ci) * last);
  std::map<i64, i64> coef;
  for (auto [v, k] : b.vars) coef[v] += k;
  for (auto [v, k] : a.vars) coef[v] -= k;
  for (auto [v, k] : coef) out += k > 0 ? i128(k) * m.t.variables[v].min : i128(k) * m.t.variables[v].max;
  return out;
}

struct Source {
  Form from, to;
};

// A rectangle that somebody uses, with where it may be over all steps and values.
struct Live {
  i32 rect;
  std::pair<i64, i64> bytes, rows, cols;
  std::vector<i32> reads, writes;  // in replay order
};

}  // namespace

void Checker::group_moving(const Group& g) {
  std::vector<Live> live;
  for (i32 x : g.rects) {
    const Rect& r = m.rects[x];
    if (acc_of[x].empty() || m.t.buffers[r.buffer].tagged) continue;
    live.push_back({x, byte_bounds(m, r), m.bounds(r.rows), m.bounds(r.cols), {}, {}});
    for (i32 a : acc_of[x]) (m.acc[a].write() ? live.back().writes : live.back().reads).push_back(a);
  }
  // RACE between pairs of which at least one moves.
  std::vector<i32> by_start(live.size());
  std::iota(by_start.begin(), by_start.end(), 0);
  std::sort(by_start.begin(), by_start.end(), [&](i32 p, i32 r) { return std::tie(live[p].bytes, p) < std::tie(live[r].bytes, r); });
  i64 pairs = 0;
  const i64 seen_steps = clocks.unroll;
  std::unordered_map<size_t, Meet> memo;  // moduli are enumerated, so asked once
  auto meeting = [&](i32 p, i32 r, i64 k) {
    const Live &x = live[p], &y = live[r];
    const i32 buffer = m.rects[x.rect].buffer;
    const bool plane = buffer == m.rects[y.rect].buffer && m.unit(buffer) > 1;  // neighbours share no byte
    if (disjoint(x.bytes, y.bytes) || (plane && (disjoint(x.rows, y.rows) || disjoint(x.cols, y.cols)))) return Meet{};
    const auto [it, fresh] = memo.try_emplace((size_t(p) * live.size() + size_t(r)) * 2 + size_t(k));
    if (fresh) it->second = meet_any(m.rects[x.rect], m.rects[y.rect], k);
    return it->second;
  };
  auto check = [&](i32 a, i32 b, const Meet& at) {  // a in step i, b in step i + k
    if (pairs < 0) return;
    if (++pairs > kAccessPairs) {
      pairs = -1;
      race(a, 0, b, 0, 0, 0, true);
      return;
    }
    const Access &x = m.acc[a], &y = m.acc[b];
    if (!x.write() && !y.write()) return;
    const auto where = byte_bounds(m, m.rects[y.rect]);
    if (!seen_steps) {
      if (!clocks.ordered(x.task, 0, y.task, at.k)) race(a, at.i, b, at.i + at.k, where.first, where.second, !at.exact);
      return;
    }
    // Written out: the order may differ from step to step, so ask at each where they meet.
    for (i64 i = 0; i + at.k < seen_steps; ++i)
      if (!clocks.ordered(x.task, i, y.task, i + at.k)) {
        // does this very step meet, and at which distance?
        bool exact = at.exact;
        i64 k = at.k;
        if (exact) {
          while (i + k < seen_steps && !overlap_at(m.rects[x.rect], m.rects[y.rect], i, i + k, exact)) ++k, ++pairs;
          if (i + k >= seen_steps || clocks.ordered(x.task, i, y.task, i + k)) continue;
        }
        race(a, i, b, i + k, where.first, where.second, !exact);
        return;
      }
  };
  for (size_t at = 0; at < by_start.size(); ++at)
    for (size_t to = at; to < by_start.size() && live[by_start[to]].bytes.first < live[by_start[at]].bytes.second; ++to) {
      const i32 p = by_start[at], r = by_start[to], x = live[p].rect, y = live[r].rect;
      if ((!m.rects[x].moves() && !m.rects[y].moves()) || (!written[x] && !written[y])) continue;
      const Meet now = meeting(p, r, 0);  // where they do not, a later x may still meet an earlier y
      if (now.any && (now.k == 0 || !now.exact)) {
        const bool self = x == y;
        for (i32 a : acc_of[x])
          for (i32 b : acc_of[y]) {
            if (self && a >= b) continue;
            if (key(a) < key(b))
              check(a, b, now);
            else
              check(b, a, now);
          }
      }
      const Meet ahead = meeting(p, r, 1);
      const Meet behind = p == r ? Meet{} : meeting(r, p, 1);
      if (ahead.any)
        for (i32 a : acc_of[x])
          for (i32 b : acc_of[y]) check(a, b, ahead);
      if (behind.any)
        for (i32 b : acc_of[y])
          for (i32 a : acc_of[x]) check(b, a, behind);
    }
  // What the reads contain.
  std::vector<i32> wanted;
  auto unfenced = [&](i32 a) { return (m.acc[a].flags & kAsync) && !(m.t.task_fences[m.acc[a].task] & 1); };
  auto feeding = [&](const Live& y) { return std::any_of(y.writes.begin(), y.writes.end(), [&](i32 w) { return !keeps[m.acc[w].task]; }); };
  std::vector<char> feeds(live.size());
  std::transform(live.begin(), live.end(), feeds.begin(), feeding);
  for (i32 p = 0; p < i32(live.size()); ++p) {
    const Live& x = live[p];
    const bool moved = m.rects[x.rect].moves() || moved_into(g, x.rect);
    const bool bare = std::any_of(x.reads.begin(), x.reads.end(), unfenced);
    for (i32 r = 0; r < i32(live.size()); ++r) {
      const Live& y = live[r];
      if (!moved && !m.rects[y.rect].moves()) continue;  // two that stand still are scanned
      if (!feeds[r] && !bare) continue;
      const Meet at = meeting(r, p, 0);
      if (!at.any) continue;
      const Meet again = at.k > 0 ? at : meeting(r, p, 1);
      for (i32 a : x.reads)
        for (i32 w : y.writes) {
          const Meet& from = key(w) < key(a) ? at : again;
          if (!from.any) continue;
          if (moved && !keeps[m.acc[w].task]) wanted.push_back(a);  // whether it reads this one last is seen where it is written out
          if (unfenced(a) && !(m.acc[w].flags & kAsync)) data(kProxy, "fence", a, from.i + from.k, w, from.i, x.bytes.first, x.bytes.second, !from.exact);
        }
    }
    for (i32 a : x.reads) {
      bool flow_ok = true;
      if (moved && (!covered(g, a, flow_ok) || !flow_ok)) wanted.push_back(a);
    }
  }
  if (!wanted.empty()) concrete(g, wanted);
}

// Is every byte of this read certainly there, whatever the step and the variables?  Sound; a "no" is not a proof of the opposite.
bool Checker::covered(const Group& g, i32 access, bool& flow_ok) {
  const Access& read = m.acc[access];
  const Rect& rect = m.rects[read.rect];
  const bool persistent = !m.step_lifetime(rect.buffer);
  if (read.label >= 0)
    for (i32 y : g.rects) {
      for (i32 w : acc_of[y]) {
        if (!m.acc[w].write() || !foreign(m.acc[w], read)) continue;
        if (flow_ok && meet_any(m.rects[y], rect, 0).any) flow_ok = false;
      }
    }
  if (read.maybe() && read.label < 0) return true;
  const bool by_rows = rect.cols.aff < 0;
  if (!by_rows && rect.rows.aff >= 0) return false;
  const Range& moving = by_rows ? rect.rows : rect.cols;
  const Range& fixed = by_rows ? rect.cols : rect.rows;
  auto start_of = [&](const Range& r) {
    Form f;
    if (r.aff < 0)
      f.c = r.a;
    else
      f.c = m.affine[r.aff].add, f.ci = m.affine[r.aff].stride, f = f.plus(m.affine[r.aff].var);
    return f;
  };
  auto end_of = [&](const Range& r) {
    Form f = start_of(r);
    if (r.aff < 0)
      f.c = r.b;
    else
      f.c += m.affine[r.aff].length, f.ci += m.affine[r.aff].length_stride, f = f.plus(m.affine[r.aff].length_var);
    return f;
  };
  Form need_from = start_of(moving), need_to = end_of(moving);
  if (moving.aff >= 0 && m.affine[moving.aff].mod) {  // wherever it wraps to
    const auto [lo, hi] = m.bounds(moving);
    need_from = Form{}, need_to = Form{};
    need_from.c = lo, need_to.c = hi;
  }
  // Atoms of the other dimension.
  std::vector<i64> cuts{fixed.a, fixed.b};
  for (i32 y : g.rects) {
    const Range& other = by_rows ? m.rects[y].cols : m.rects[y].rows;
    for (i64 at : {other.a, other.b}) cuts.push_back(std::clamp(at, fixed.a, fixed.b));
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const i64 last = horizon - 1;
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    std::vector<Source> have;
    auto spans = [&](const Rect& s) {
      const Range& other = by_rows ? s.cols : s.rows;
      return s.buffer == rect.buffer && other.aff < 0 && other.a <= cuts[c] && other.b >= cuts[c + 1];
    };
    if (persistent || horizon == 1)
      for (i32 y : g.init) {
        const Rect& s = m.rects[y];
        const Range& range = by_rows ? s.rows : s.cols;
        if (spans(s) && !(range.aff >= 0 && m.affine[range.aff].mod)) have.push_back({start_of(range), end_of(range)});
      }
    for (i32 y : g.rects) {
      const Rect& s = m.rects[y];
      const Range& range = by_rows ? s.rows : s.cols;
      if (!spans(s) || (range.aff >= 0 && m.affine[range.aff].mod)) continue;
      for (i32 w : acc_of[y]) {
        const Access& wa = m.acc[w];
        if (!wa.write() || (wa.maybe() && !read.maybe())) continue;
        const bool own = wa.task == read.task;  // a task reads before it writes
        i64 lag = -1;
        if (clocks.unroll) {  // ordered in every step, at the same distance
          for (i64 k = own; k < 2 && lag < 0; ++k) {
            bool all = true;
            for (i64 i = 0; all && i + k < clocks.unroll; ++i) all = clocks.ordered(wa.task, i, read.task, i + k);
            if (all) lag = k;
          }
        } else
          lag = own ? 1 : clocks.lag(wa.task, read.task);
        if (lag < 0) continue;
        const bool family = persistent && range.aff >= 0 && m.affine[range.aff].stride > 0 && m.affine[range.aff].length_var < 0 &&
                            m.affine[range.aff].length_stride == 0 && m.affine[range.aff].length >= m.affine[range.aff].stride;
        if (family) {
          // the union over steps 0 .. i - lag
          const AffineRow& f = m.affine[range.aff];
          Source s{start_of(range), start_of(range)};
          s.from.ci = 0;
          s.to.c += lag == 0 ? i128(f.length) : i128(f.stride) * (1 - lag);
          have.push_back(s);
        } else if (lag == 0)
          have.push_back({start_of(range), end_of(range)});
      }
    }
    Form at = need_from;
    std::vector<char> used(have.size(), 0);
    bool done = false;
    while (!(done = least_difference(m, at, need_to, last) >= 0)) {
      i32 best = -1;
      i128 reach = -1;
      for (size_t k = 0; k < have.size(); ++k) {
        if (used[k] || least_difference(m, at, have[k].from, last) < 0) continue;
        const i128 gain = least_difference(m, have[k].to, at, last);
        if (gain > reach) best = i32(k), reach = gain;
      }
      if (best < 0) break;
      used[best] = 1;
      at = have[best].to;
    }
    if (!done) return false;
  }
  return true;
}

// The group written out over steps and assignments of its variables: exact where that is all of them.
void Checker::concrete(const Group& g, const std::vector<i32>& wanted) {
  const i64 span = clocks.unroll ? clocks.unroll : std::min(horizon, kSampleSteps);
  std::vector<i64> vars;
  std::vector<i32> rects;
  i64 accesses = 1;
  for (i32 x : g.rects)
    if (!m.t.buffers[m.rects[x].buffer].tagged) rects.push_back(x), accesses += i64(acc_of[x].size());
  for (i32 x : rects) collect_variables(m, m.rects[x], vars);
  for (i32 x : g.init) collect_variables(m, m.rects[x], vars);
  const i128 total = count_assignments(m, vars);
  const bool every_value = total <= kAssignments && total * span * accesses <= kConcreteWork;
  const bool complete = every_value && span == horizon;
  std::vector<std::vector<i64>> assignments;
  std::vector<i64> values(m.t.variables.size(), 0);
  for (i64 v : vars) values[v] = m.t.variables[v].min;
  if (every_value) {
    assignments_of(m, vars, kAssignments, [&](const std::vector<i64>& each) { return assignments.push_back(each), true; });
  } else {
    assignments.push_back(values);
    auto top = values;
    for (i64 v : vars) top[v] = m.t.variables[v].max;
    assignments.push_back(top);
    for (size_t k = 0; k < vars.size() && k < 4; ++k) {
      auto one = values;
      one[vars[k]] = m.t.variables[vars[k]].max;
      assignments.push_back(one);
      one[vars[k]] = m.t.variables[vars[k]].min + 1;
      assignments.push_back(one);
    }
  }
  std::vector<char> skip(m.acc.size(), 1);
  for (i32 a : wanted) skip[a] = 0;
  ScanOptions o;
  o.race = false, o.skip_data = &skip;
  const i64 before = out.count[kCover] + out.count[kFlow];
  bool too_much = i64(accesses) * span * i64(assignments.size()) > 4 * kConcreteWork;
  for (size_t at = 0; at < assignments.size() && !too_much; ++at) {
    std::vector<Shape> shapes;
    std::vector<std::pair<i32, i32>> what;  // rect, step (-1: every step)
    auto add = [&](i32 x, i64 step, i32 id) {
      const auto r = range_at(m, m.rects[x].rows, step, assignments[at]), c = range_at(m, m.rects[x].cols, step, assignments[at]);
      shapes.push_back({m.rects[x].buffer, r.first, r.second, c.first, c.second, id});
    };
    for (i32 x : rects)
      for (i64 s = 0; s < (m.rects[x].moves() ? span : 1); ++s) {
        add(x, s, i32(what.size()));
        what.push_back({x, m.rects[x].moves() ? i32(s) : -1});
      }
    const i32 first_init = i32(what.size());
    for (i32 x : g.init) add(x, 0, first_init);
    Cells parts;
    if (!cells(m, shapes, false, parts)) {
      too_much = true;
      break;
    }
    std::vector<Item> items;
    for (const Cell& cell : parts) {
      items.clear();
      o.initial = cell.ids.back() == first_init;
      for (i32 id : cell.ids) {
        if (id == first_init) continue;
        const auto [x, step] = what[id];
        for (i32 a : acc_of[x])
          for (i64 s = step < 0 ? 0 : step; s < (step < 0 ? span : step + 1); ++s) items.push_back({a, i32(s)});
      }
      std::sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return a.step != b.step ? a.step < b.step : key(a.acc) < key(b.acc); });
      scan(items, cell, o);
    }
    if (out.count[kCover] + out.count[kFlow] > before) return void(gave_up = true);
  }
  if (complete && !too_much) return;
  gave_up = true;
  const i32 first = *std::min_element(wanted.begin(), wanted.end());
  const auto [lo, hi] = byte_bounds(m, m.rects[m.acc[first].rect]);
  bool flow_ok = true;
  const bool there = covered(g, first, flow_ok);
  data(there ? kFlow : kCover, "undecided", first, 0, -1, 0, lo, hi, true);
}

}  // namespace amk::validate
