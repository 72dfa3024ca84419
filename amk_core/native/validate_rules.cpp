// The rules where ranges move with steps and variables, and the rules that are not about one cell.
#include <algorithm>
#include <numeric>
#include <set>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kAccessPairs = 40'000'000;   // ordered() calls on moving pairs
constexpr i64 kConcreteWork = 8'000'000;   // accesses over steps and assignments of the variables
constexpr i64 kAssignments = 4096;
constexpr i64 kSampleSteps = 6;
constexpr i64 kWrittenOut = 100'000;       // ranges of one output written out over steps
constexpr i64 kTagSteps = 64;
constexpr i64 kAliasValues = 256;          // assignments tried for two moving ranges of different buffers
constexpr i64 kAliasChecks = 200'000;      // such trials in all

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

}  // namespace

namespace {
// Two buffers that lay their elements over each other one to one.
bool same_grid(const Model& m, i32 x, i32 y) {
  const auto &a = m.t.buffers[x], &b = m.t.buffers[y];
  return x == y || (a.offset == b.offset && a.bits == b.bits && a.cols == b.cols);
}
std::pair<i64, i64> byte_bounds(const Model& m, const Rect& r) {
  const auto rows = m.bounds(r.rows), cols = m.bounds(r.cols);
  const i64 p = m.pitch(r.buffer), u = m.unit(r.buffer), base = m.t.buffers[r.buffer].offset * 2;
  return {(base + rows.first * p + cols.first * u) & ~i64{1}, (base + (rows.second - 1) * p + cols.second * u + 1) & ~i64{1}};
}
void collect_variables(const Model& m, const Rect& r, std::vector<i64>& vars) {
  for (const Range* range : {&r.rows, &r.cols})
    if (range->aff >= 0)
      for (i64 v : {m.affine[range->aff].var, m.affine[range->aff].length_var})
        if (v >= 0 && std::find(vars.begin(), vars.end(), v) == vars.end()) vars.push_back(v);
}
i128 count_assignments(const Model& m, const std::vector<i64>& vars) {
  i128 total = 1;
  for (i64 v : vars) total = std::min<i128>(i128(1) << 60, total * (i128(m.t.variables[v].max) - m.t.variables[v].min + 1));
  return total;
}
// f(values) for every assignment of some variables; false: too many, or f gave up.
template <class F>
bool assignments_of(const Model& m, const std::vector<i64>& vars, i64 most, F f) {
  if (count_assignments(m, vars) > most) return false;
  std::vector<i64> values(m.t.variables.size(), 0);
  for (i64 v : vars) values[v] = m.t.variables[v].min;
  while (true) {
    if (!f(values)) return false;
    size_t k = 0;
    while (k < vars.size() && ++values[vars[k]] > m.t.variables[vars[k]].max) values[vars[k]] = m.t.variables[vars[k]].min, ++k;
    if (k == vars.size()) return true;
  }
}
}  // namespace

// Do x(i) and y(j) share a byte for some values of the variables?  Buffers may differ; small cases are written out.
bool Checker::overlap_at(const Rect& x, const Rect& y, i64 i, i64 j, bool& exact) {
  if (same_grid(m, x.buffer, y.buffer) && m.unit(x.buffer) > 1) return meet_at(m, x, y, i, j - i, exact);
  exact = true;
  std::vector<i64> vars;
  collect_variables(m, x, vars), collect_variables(m, y, vars);
  if (x.moves() || y.moves()) alias_checks += i64(std::min<i128>(count_assignments(m, vars), kAliasValues));
  bool shared = false;
  std::vector<Cell> parts;
  exact = alias_checks <= kAliasChecks && assignments_of(m, vars, kAliasValues, [&](const std::vector<i64>& values) {
    const auto xr = range_at(m, x.rows, i, values), xc = range_at(m, x.cols, i, values);
    const auto yr = range_at(m, y.rows, j, values), yc = range_at(m, y.cols, j, values);
    if (!cells(m, {{x.buffer, xr.first, xr.second, xc.first, xc.second, 0}, {y.buffer, yr.first, yr.second, yc.first, yc.second, 1}}, true, parts))
      return false;
    shared |= std::any_of(parts.begin(), parts.end(), [](const Cell& c) { return c.ids.size() == 2; });
    return true;
  });
  if (shared) exact = true;
  return shared || !exact;
}

// meet() for rectangles of aliasing buffers too.
Meet Checker::meet_any(const Rect& x, const Rect& y, i64 k_min) {
  const auto a = byte_bounds(m, x), b = byte_bounds(m, y);
  if (a.first >= b.second || b.first >= a.second || k_min >= m.steps) return {};
  if (same_grid(m, x.buffer, y.buffer) && m.unit(x.buffer) > 1) return meet(m, x, y, k_min);
  if (m.steps > kTagSteps) return {true, false, k_min, 0};
  for (i64 k = k_min; k < m.steps; ++k)
    for (i64 i = 0; i + k < m.steps; ++i) {
      bool exact = true;
      if (overlap_at(x, y, i, i + k, exact)) return {true, exact, k, i};
    }
  return {};
}

// Do two rectangles share a byte in some step?
bool Checker::touch(const Rect& x, const Rect& y, bool& exact) {
  exact = true;
  const auto a = byte_bounds(m, x), b = byte_bounds(m, y);
  if (a.first >= b.second || b.first >= a.second) return false;
  if (!x.moves() && !y.moves()) return overlap_at(x, y, 0, 0, exact);
  const Meet there = meet_any(x, y, 0);
  if (there.any && there.exact) return true;
  const Meet back = meet_any(y, x, 0);
  exact = back.any ? back.exact : !there.any;
  return there.any || back.any;
}

void Checker::group_moving(const Group& g) {
  std::vector<i32> live;
  for (i32 x : g.rects)
    if (!acc_of[x].empty() && !m.t.buffers[m.rects[x].buffer].tagged) live.push_back(x);
  std::vector<char> has_write(m.rects.size(), 0);
  for (i32 x : live)
    for (i32 a : acc_of[x]) has_write[x] |= m.acc[a].write();
  // RACE between pairs of which at least one moves.
  std::vector<std::pair<std::pair<i64, i64>, i32>> by_start;
  for (i32 x : live) by_start.push_back({byte_bounds(m, m.rects[x]), x});
  std::sort(by_start.begin(), by_start.end());
  using Span = std::pair<i64, i64>;
  std::unordered_map<i32, std::pair<Span, Span>> box;  // rows and columns over all steps and values
  for (i32 x : g.rects) box[x] = {m.bounds(m.rects[x].rows), m.bounds(m.rects[x].cols)};
  auto apart = [](const Span& a, const Span& b) { return a.first >= b.second || b.first >= a.second; };
  auto modular = [&](const Rect& r) {
    return (r.rows.aff >= 0 && m.affine[r.rows.aff].mod) || (r.cols.aff >= 0 && m.affine[r.cols.aff].mod);
  };
  i64 pairs = 0;
  const i64 seen_steps = clocks.unroll ? clocks.unroll : 0;
  std::map<std::array<i64, 3>, Meet> memo;  // moduli are enumerated, so asked once
  auto meeting = [&](i32 x, i32 y, i64 k) {
    const Rect &p = m.rects[x], &r = m.rects[y];
    if (p.buffer == r.buffer && (apart(box[x].first, box[y].first) || apart(box[x].second, box[y].second))) return Meet{};
    if (!modular(p) && !modular(r)) return meet_any(p, r, k);
    const auto [it, fresh] = memo.try_emplace({x, y, k});
    if (fresh) it->second = meet_any(p, r, k);
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
  for (size_t p = 0; p < by_start.size(); ++p)
    for (size_t r = p; r < by_start.size() && by_start[r].first.first < by_start[p].first.second; ++r) {
      const i32 x = by_start[p].second, y = by_start[r].second;
      if ((!m.rects[x].moves() && !m.rects[y].moves()) || (!has_write[x] && !has_write[y])) continue;
      const Meet now = meeting(x, y, 0);
      if (!now.any) {
        // a later x may still meet an earlier y
      } else if (now.k == 0 || !now.exact) {
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
      if (horizon < 2) continue;
      const Meet ahead = meeting(x, y, 1);
      const Meet behind = x == y ? Meet{} : meeting(y, x, 1);
      if (ahead.any)
        for (i32 a : acc_of[x])
          for (i32 b : acc_of[y]) check(a, b, ahead);
      if (behind.any)
        for (i32 b : acc_of[y])
          for (i32 a : acc_of[x]) check(b, a, behind);
    }
  // What the reads contain.
  std::vector<char> wanted(m.acc.size(), 0);
  bool any = false;
  for (i32 x : live) {
    const Rect& rect = m.rects[x];
    bool tainted = rect.moves();
    if (!tainted)
      for (i32 y : g.rects) {
        if (!m.rects[y].moves() || tainted) continue;
        bool relevant = std::find(g.init.begin(), g.init.end(), y) != g.init.end() || has_write[y];
        tainted = relevant && (rect.buffer != m.rects[y].buffer || meet(m, rect, m.rects[y], 0).any || meet(m, m.rects[y], rect, 0).any);
      }
    if (!tainted) continue;
    for (i32 y : live) {
      auto unfenced = [&](i32 a, i32 w) {
        return (m.acc[a].flags & kAsync) && !(m.acc[w].flags & kAsync) && !(m.t.task_fences[m.acc[a].task] & 1);
      };
      auto matters = [&](i32 a, i32 w) {
        return !m.acc[a].write() && m.acc[w].write() && ((need_flow && !keeps[m.acc[w].task]) || unfenced(a, w));
      };
      if (!has_write[y] || std::none_of(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) {
            return std::any_of(acc_of[y].begin(), acc_of[y].end(), [&](i32 w) { return matters(a, w); });
          }))
        continue;
      const Meet at = meeting(y, x, 0);
      if (!at.any) continue;
      const bool later = at.k > 0 || meeting(y, x, 1).any;
      for (i32 a : acc_of[x])
        for (i32 w : acc_of[y]) {
          if (!matters(a, w) || (!later && key(w) > key(a))) continue;
          feeds(m.acc[w].task, m.acc[a].task);
          if (unfenced(a, w)) data(kProxy, "fence", a, at.i + at.k, w, at.i, byte_bounds(m, rect).first, byte_bounds(m, rect).second);
        }
    }
    for (i32 a : acc_of[x]) {
      if (m.acc[a].write()) continue;
      bool flow_ok = true;
      if (!covered(g, a, flow_ok) || !flow_ok) wanted[a] = 1, any = true;
    }
  }
  if (any) concrete(g, wanted);
}

// Is every byte of this read certainly there, whatever the step and the variables?  Sound; a "no" is not a proof of the opposite.
bool Checker::covered(const Group& g, i32 access, bool& flow_ok) {
  const Access& read = m.acc[access];
  const Rect& rect = m.rects[read.rect];
  const bool persistent = !m.step_lifetime(rect.buffer);
  flow_ok = true;
  if (read.label >= 0)
    for (i32 y : g.rects) {
      for (i32 w : acc_of[y]) {
        if (!m.acc[w].write() || (m.acc[w].label == read.label && m.rects[y].buffer == rect.buffer)) continue;
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
  std::vector<i32> sources = g.init;
  for (i32 y : g.rects) sources.push_back(y);
  std::sort(sources.begin(), sources.end());
  sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
  for (i32 y : sources) {
    const Rect& s = m.rects[y];
    const Range& other = by_rows ? s.cols : s.rows;
    if (s.buffer != rect.buffer || other.aff >= 0) continue;
    for (i64 at : {other.a, other.b})
      if (at > fixed.a && at < fixed.b) cuts.push_back(at);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  const i64 last = horizon - 1;
  std::vector<Source> have;
  for (size_t c = 0; c + 1 < cuts.size(); ++c) {
    have.clear();
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
        if (!wa.write() || (wa.maybe() && !read.maybe()) || (wa.task == read.task)) {
          if (!wa.write() || wa.task != read.task || (wa.maybe() && !read.maybe())) continue;
        }
        i64 lag = -1;
        if (clocks.unroll) {  // ordered in every step, at the same distance
          for (i64 k = 0; k < std::min<i64>(2, clocks.unroll) && lag < 0; ++k) {
            bool all = !(k == 0 && wa.task == read.task);
            for (i64 i = 0; all && i + k < clocks.unroll; ++i) all = clocks.ordered(wa.task, i, read.task, i + k);
            if (all) lag = k;
          }
        } else
          lag = wa.task == read.task ? 1 : clocks.lag(wa.task, read.task);
        if (lag < 0) continue;
        const bool family = persistent && range.aff >= 0 && m.affine[range.aff].stride > 0 && m.affine[range.aff].length_var < 0 &&
                            m.affine[range.aff].length_stride == 0 && m.affine[range.aff].length >= m.affine[range.aff].stride;
        if (family) {
          // the union over steps 0 .. i - lag
          const AffineRow& f = m.affine[range.aff];
          Source s{start_of(range), start_of(range)};
          s.from.ci = 0;
          s.to.c += i128(f.stride) * (1 - lag);
          if (lag == 0) s.to.c += f.length - f.stride;
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
        if (gain > reach || (best < 0 && gain >= 0)) best = i32(k), reach = gain;
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
void Checker::concrete(const Group& g, const std::vector<char>& wanted) {
  const i64 span = clocks.unroll ? clocks.unroll : std::min(horizon, kSampleSteps);
  std::vector<i64> vars;
  std::vector<i32> rects;
  i64 accesses = 1;
  auto use = [&](i32 x) {
    rects.push_back(x);
    for (const Range* r : {&m.rects[x].rows, &m.rects[x].cols})
      if (r->aff >= 0)
        for (i64 v : {m.affine[r->aff].var, m.affine[r->aff].length_var})
          if (v >= 0 && std::find(vars.begin(), vars.end(), v) == vars.end()) vars.push_back(v);
  };
  std::vector<i32> all = g.rects;
  for (i32 x : g.init)
    if (std::find(all.begin(), all.end(), x) == all.end()) all.push_back(x);
  for (i32 x : all)
    if (!m.t.buffers[m.rects[x].buffer].tagged) use(x), accesses += i64(acc_of[x].size());
  i128 total = 1;
  for (i64 v : vars) total = std::min<i128>(i128(1) << 80, total * (i128(m.t.variables[v].max) - m.t.variables[v].min + 1));
  const bool every_value = total <= kAssignments && total * span * accesses <= kConcreteWork;
  const bool complete = every_value && span == horizon;
  std::vector<std::vector<i64>> assignments;
  std::vector<i64> values(m.t.variables.size(), 0);
  for (size_t v = 0; v < values.size(); ++v) values[v] = m.t.variables[v].min;
  if (every_value) {
    while (true) {
      assignments.push_back(values);
      size_t k = 0;
      while (k < vars.size() && ++values[vars[k]] > m.t.variables[vars[k]].max) values[vars[k]] = m.t.variables[vars[k]].min, ++k;
      if (k == vars.size()) break;
    }
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
  std::vector<char> skip(m.acc.size(), 0);
  for (size_t a = 0; a < skip.size(); ++a) skip[a] = !wanted[a];
  ScanOptions o;
  o.race = false, o.skip_data = &skip;
  const i64 before = out.count[kCover] + out.count[kFlow] + out.count[kProxy];
  bool gave_up = i64(accesses) * span * i64(assignments.size()) > 4 * kConcreteWork;
  for (size_t at = 0; at < assignments.size() && !gave_up; ++at) {
    std::vector<Shape> shapes;
    std::vector<std::pair<i32, i32>> what;  // rect, step (-1: every step)
    auto add = [&](i32 x, i64 step, i32 id) {
      const auto r = range_at(m, m.rects[x].rows, step, assignments[at]), c = range_at(m, m.rects[x].cols, step, assignments[at]);
      shapes.push_back({m.rects[x].buffer, r.first, r.second, c.first, c.second, id});
    };
    for (i32 x : rects) {
      if (acc_of[x].empty()) continue;
      for (i64 s = 0; s < (m.rects[x].moves() ? span : 1); ++s) {
        add(x, s, i32(what.size()));
        what.push_back({x, m.rects[x].moves() ? i32(s) : -1});
      }
    }
    const i32 first_init = i32(what.size());
    for (i32 x : g.init) add(x, 0, first_init);
    std::vector<Cell> parts;
    if (!cells(m, shapes, false, parts)) {
      gave_up = true;
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
    if (out.count[kCover] + out.count[kFlow] + out.count[kProxy] > before) return;
  }
  if (complete && !gave_up) return;
  for (size_t a = 0; a < wanted.size(); ++a)
    if (wanted[a]) {
      const auto where = byte_bounds(m, m.rects[m.acc[a].rect]);
      bool flow_ok = true;
      const bool there = covered(g, i32(a), flow_ok);
      data(there ? kFlow : kCover, "undecided", i32(a), 0, -1, 0, where.first, where.second, true);
      return;
    }
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
        i64 p = f.mod && !f.length_stride ? (f.stride ? f.mod / std::gcd(f.stride, f.mod) : 1) : m.steps;
        period = p > m.steps || period > m.steps ? m.steps : std::lcm(period, p);
      }
  }
  if (rects.empty()) return;
  const i64 window = std::min<i64>(horizon, std::min<i64>(period, kTagSteps) * 2 + 1);
  if (variables || (window < horizon && period > kTagSteps / 2)) {
    const auto where = byte_bounds(m, m.rects[rects[0]]);
    data(kTag, "undecided", acc_of[rects[0]][0], 0, -1, 0, where.first, where.second, true);
    return;
  }
  const i64 span = clocks.unroll ? std::min(clocks.unroll, horizon) : window;
  std::vector<Shape> shapes;
  std::vector<std::pair<i32, i32>> what;
  const std::vector<i64> none(m.t.variables.size(), 0);
  for (i32 x : rects)
    for (i64 s = 0; s < (m.rects[x].moves() ? span : 1); ++s) {
      const auto r = range_at(m, m.rects[x].rows, s, none), c = range_at(m, m.rects[x].cols, s, none);
      shapes.push_back({m.rects[x].buffer, r.first, r.second, c.first, c.second, i32(what.size())});
      what.push_back({x, m.rects[x].moves() ? i32(s) : -1});
    }
  const i32 first_init = i32(what.size());
  for (i32 x : g.init)
    if (!m.rects[x].moves()) shapes.push_back({m.rects[x].buffer, m.rects[x].rows.a, m.rects[x].rows.b, m.rects[x].cols.a, m.rects[x].cols.b, first_init});
  std::vector<Cell> parts;
  if (!cells(m, shapes, false, parts)) {
    data(kTag, "undecided", acc_of[rects[0]][0], 0, -1, 0, 0, 0, true);
    return;
  }
  std::vector<Item> writers, readers;
  // counter-only order in either direction of the replay: within a step the reader may stand behind the writer
  auto before = [&](i32 a, i64 i, i32 b, i64 j) { return (i < j || (i == j && run.index[a] <= run.index[b])) && clocks.ordered(a, i, b, j); };
  for (const Cell& cell : parts) {
    writers.clear(), readers.clear();
    const bool initial = cell.ids.back() == first_init;
    for (i32 id : cell.ids) {
      if (id == first_init) continue;
      const auto [x, step] = what[id];
      for (i32 a : acc_of[x])
        for (i64 s = step < 0 ? 0 : step; s < (step < 0 ? span : step + 1); ++s) (m.acc[a].write() ? writers : readers).push_back({a, i32(s)});
    }
    const auto by_step = [](const Item& a, const Item& b) { return a.step < b.step; };
    std::sort(writers.begin(), writers.end(), by_step);
    bool broken = false;
    std::vector<char> was_read(writers.size(), 0);
    for (size_t k = 0; k < writers.size(); ++k) {
      const Access& w = m.acc[writers[k].acc];
      if (k && writers[k - 1].step == writers[k].step && m.acc[writers[k - 1].acc].task != w.task)
        data(kTag, "two writers", writers[k].acc, writers[k].step, writers[k - 1].acc, writers[k].step, cell.lo, cell.hi), broken = true;
      if (broken) break;
    }
    if (broken) continue;
    for (const Item& r : readers) {
      const Access& ra = m.acc[r.acc];
      const i64 tag = r.step - ((ra.flags & kPrevEpoch) ? 1 : 0);
      size_t next = 0;
      while (next < writers.size() && writers[next].step <= tag) ++next;
      const bool arrives = next > 0 && writers[next - 1].step == tag;
      bool produced = false;
      for (size_t k = next; k-- > 0 && writers[k].step == tag;) produced |= !m.acc[writers[k].acc].maybe();
      if (!ra.maybe() && (tag < 0 ? !initial : !produced)) data(kCover, tag < 0 ? "read" : "tag", r.acc, r.step, -1, 0, cell.lo, cell.hi);
      if (arrives) {
        const Access& wa = m.acc[writers[next - 1].acc];
        if (!ra.maybe())
          for (size_t k = next; k-- > 0 && writers[k].step == tag;) was_read[k] = 1;
        feeds(wa.task, ra.task);
        if (ra.label >= 0 && (wa.label != ra.label || m.rects[wa.rect].buffer != m.rects[ra.rect].buffer))
          data(kFlow, "value", r.acc, r.step, writers[next - 1].acc, tag, cell.lo, cell.hi);
      }
      std::vector<i32> later;  // writers of this address that come after, each once: what follows on a queue is ordered by it
      for (; next < writers.size(); ++next) {
        const i32 w = m.acc[writers[next].acc].task;
        if (std::find(later.begin(), later.end(), w) != later.end()) continue;
        later.push_back(w);
        if (!before(ra.task, r.step, w, writers[next].step))
          data(kTag, "overwrite", r.acc, r.step, writers[next].acc, writers[next].step, cell.lo, cell.hi);
      }
    }
    for (size_t k = 0; k < writers.size(); ++k) {
      size_t next = k + 1;
      while (next < writers.size() && writers[next].step == writers[k].step) ++next;
      if (!was_read[k] && next < writers.size() &&
          !before(m.acc[writers[k].acc].task, writers[k].step, m.acc[writers[next].acc].task, writers[next].step))
        data(kTag, "overwrite", writers[k].acc, writers[k].step, writers[next].acc, writers[next].step, cell.lo, cell.hi);
    }
  }
}

void Checker::readonly() {
  std::vector<std::vector<i32>> readonly_of;
  for (i32 b = 0; b < i32(m.t.buffers.size()); ++b) {
    if (!m.readonly_[b]) continue;
    if (readonly_of.size() <= size_t(m.group_of[b])) readonly_of.resize(m.group_of[b] + 1);
    readonly_of[m.group_of[b]].push_back(b);
  }
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    i32 writer = -1;
    for (i64 a = 0; writer < 0 && a < i64(acc_of[x].size()); ++a)
      if (m.acc[acc_of[x][a]].write()) writer = acc_of[x][a];
    if (writer < 0 || size_t(m.group_of[r.buffer]) >= readonly_of.size()) continue;
    for (i32 b : readonly_of[m.group_of[r.buffer]]) {
      const auto& buf = m.t.buffers[b];
      bool hit = b == r.buffer, exact = true;
      if (!hit) {
        const auto span = byte_bounds(m, r);
        hit = span.first < (buf.offset * 2 + buf.rows * m.pitch(b) + 1) && buf.offset * 2 < span.second;
        if (hit) hit = touch(r, Rect{b, r.space, {0, buf.rows, -1}, {0, buf.cols, -1}}, exact);
      }
      if (hit) {
        const auto span = byte_bounds(m, r);
        Finding f;
        f.rule = kRo, f.what = b == r.buffer ? "write" : "alias", f.task_a = m.acc[writer].task, f.buffer = b, f.undecided = !exact;
        f.lo = std::max<i64>(0, span.first / 2 - buf.offset), f.hi = std::min<i64>((span.second + 1) / 2 - buf.offset, (buf.rows * m.pitch(b) + 1) / 2);
        out.add(std::move(f));
        break;
      }
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
  const auto& buf = m.t.buffers[buffer];
  bool writes = false;
  for (const Access& a : m.acc) {
    if (!a.write()) continue;
    const Rect& r = m.rects[a.rect];
    if (r.buffer == buffer && a.task == task && !a.maybe()) writes = true;
    if (a.task == task) continue;
    if (m.group_of[r.buffer] != m.group_of[buffer]) continue;
    bool exact = true;
    if (touch(r, Rect{buffer, r.space, {0, buf.rows, -1}, {0, buf.cols, -1}}, exact)) add("writer", a.task, 0);
  }
  if (!writes) add("unwritten", -1, 0);
  if (horizon < 2) return;
  for (i32 k = 0; k < m.q; ++k) {
    if (!m.len[k]) continue;
    const i32 first = m.t.queue_task[m.t.queue_off[k]];
    for (i64 i = 0; i + 1 < (clocks.unroll ? clocks.unroll : 2); ++i)
      if (!clocks.decided(run, task, i, first)) {
        add("order", first, i);
        break;
      }
  }
}

// What the host finds: every byte of an output is certainly written in some step, the last write in every step is made under the
// output's own name, and a row of a host ring is written in one step only.
void Checker::outputs() {
  for (i32 b = 0; b < i32(m.t.buffers.size()); ++b)
    if (m.t.buffers[b].kind == kOutput) {
      output_written(b);
      output_kept(b);
    }
}

void Checker::output_kept(i32 b) {
  const auto& buf = m.t.buffers[b];
  std::vector<i32> writers;  // rectangles with writes that reach the output
  std::vector<i64> vars;
  bool moves = false, aliased = false;
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    if (m.group_of[r.buffer] != m.group_of[b] || r.space >= 0) continue;
    if (std::none_of(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) { return m.acc[a].write(); })) continue;
    bool exact = true;
    if (!touch(r, Rect{b, -1, {0, buf.rows, -1}, {0, buf.cols, -1}}, exact)) continue;
    writers.push_back(x);
    moves |= r.moves(), aliased |= r.buffer != b;
    collect_variables(m, r, vars);
  }
  Finding f;
  f.buffer = b;
  auto rewritten = [&] {
    auto ring = [&](i32 x) {
      const Rect& r = m.rects[x];
      return (r.rows.aff >= 0 && m.affine[r.rows.aff].stride != 0) || (r.cols.aff >= 0 && m.affine[r.cols.aff].stride != 0);
    };
    for (i32 x : writers)
      for (i32 y : writers) {
        if (!ring(x) && !ring(y)) continue;
        const Meet at = meet_any(m.rects[x], m.rects[y], 1);
        if (!at.any) continue;
        f.rule = kCover, f.what = "ring", f.undecided = !at.exact;
        f.task_a = m.acc[acc_of[x][0]].task, f.task_b = m.acc[acc_of[y][0]].task, f.step_a = at.i, f.step_b = at.i + at.k;
        return true;
      }
    return false;
  };
  if (buf.lifetime == kHost && horizon > 1 && rewritten()) out.add(f);
  if (!aliased) return;
  f = Finding{};
  f.rule = kFlow, f.what = "output", f.buffer = b;
  const i64 span = moves ? horizon : 1;
  if (span > kTagSteps || !assignments_of(m, vars, kAliasValues, [&](const std::vector<i64>& values) {
        std::vector<Shape> shapes{{b, 0, buf.rows, 0, buf.cols, 0}};
        std::vector<std::pair<i32, i32>> what{{-1, 0}};
        for (i32 x : writers)
          for (i64 s = 0; s < (m.rects[x].moves() ? span : 1); ++s) {
            const auto r = range_at(m, m.rects[x].rows, s, values), c = range_at(m, m.rects[x].cols, s, values);
            shapes.push_back({m.rects[x].buffer, r.first, r.second, c.first, c.second, i32(what.size())});
            what.push_back({x, m.rects[x].moves() ? i32(s) : -1});
          }
        std::vector<Cell> parts;
        if (!cells(m, shapes, true, parts)) return false;
        for (const Cell& cell : parts) {
          if (cell.ids[0] != 0) continue;
          for (i64 s = 0; s < span; ++s) {
            i32 last = -1;  // of step s
            for (size_t k = 1; k < cell.ids.size(); ++k) {
              const auto [x, step] = what[cell.ids[k]];
              if (step >= 0 && step != s) continue;
              for (i32 a : acc_of[x])
                if (m.acc[a].write() && (last < 0 || key(a) > key(last))) last = a;
            }
            if (last < 0 || m.rects[m.acc[last].rect].buffer == b || f.task_a >= 0) continue;
            f.task_a = m.acc[last].task, f.step_a = s;
            f.lo = cell.lo / 2 - buf.offset, f.hi = (cell.hi + 1) / 2 - buf.offset;
          }
        }
        return true;
      })) {
    f.undecided = f.task_a < 0;
    out.add(f);
  } else if (f.task_a >= 0) {
    out.add(f);
  }
}

void Checker::output_written(i32 b) {
  const auto& buf = m.t.buffers[b];
  std::vector<Shape> shapes{{b, 0, buf.rows, 0, buf.cols, 0}};
  bool open = false;  // something moves in a way that is not written out here
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    if (m.group_of[r.buffer] != m.group_of[b]) continue;
    if (std::none_of(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) { return m.acc[a].write() && !m.acc[a].maybe(); })) continue;
    if (!r.moves()) {
      shapes.push_back({r.buffer, r.rows.a, r.rows.b, r.cols.a, r.cols.b, 1});
      continue;
    }
    auto add = [&](std::pair<i64, i64> rows, std::pair<i64, i64> cols) {
      if (rows.first < rows.second && cols.first < cols.second) shapes.push_back({r.buffer, rows.first, rows.second, cols.first, cols.second, 1});
    };
    const bool one = r.rows.aff < 0 || r.cols.aff < 0;
    const Range& moving = r.rows.aff >= 0 ? r.rows : r.cols;
    const Range& fixed = r.rows.aff >= 0 ? r.cols : r.rows;
    const AffineRow& f = m.affine[moving.aff];
    auto place = [&](i64 lo, i64 hi) {
      if (r.rows.aff >= 0)
        add({lo, hi}, {fixed.a, fixed.b});
      else
        add({fixed.a, fixed.b}, {lo, hi});
    };
    const i64 vmin = f.var >= 0 ? m.t.variables[f.var].min : 0, vmax = f.var >= 0 ? m.t.variables[f.var].max : 0;
    const bool plain = one && f.length_stride == 0 && f.length_var < 0;
    const i64 gcd = f.mod ? (f.stride ? std::gcd(f.stride, f.mod) : f.mod) : 0;
    const bool variables = [&] {
      for (const Range* range : {&r.rows, &r.cols})
        if (range->aff >= 0 && (m.affine[range->aff].var >= 0 || m.affine[range->aff].length_var >= 0)) return true;
      return false;
    }();
    if (plain && f.mod == 0 && f.stride >= 0 && (f.length >= f.stride || m.steps == 1))
      place(f.add + vmax, f.add + vmin + f.stride * (m.steps - 1) + f.length);
    else if (plain && f.mod && f.var < 0 && m.steps >= f.mod / gcd && f.length >= gcd)
      place(f.add % gcd, f.mod - gcd + f.add % gcd + f.length);
    else if (!variables) {
      i64 steps = m.steps;
      if (plain && f.mod) steps = std::min(steps, f.mod / gcd);
      if (steps > kWrittenOut)
        open = true;
      else
        for (i64 i = 0; i < steps; ++i) add(range_at(m, r.rows, i, {}), range_at(m, r.cols, i, {}));
    } else
      open = true;
  }
  std::vector<Cell> parts;
  Finding f;
  f.rule = kCover, f.what = "output", f.buffer = b, f.undecided = open;
  if (!cells(m, shapes, false, parts)) {
    f.undecided = true;
    out.add(std::move(f));
    return;
  }
  for (const Cell& c : parts)
    if (c.ids.size() == 1 && c.ids[0] == 0) {
      f.lo = c.lo / 2 - buf.offset, f.hi = (c.hi + 1) / 2 - buf.offset;
      out.add(std::move(f));
      break;
    }
}


// Every task of a real op reaches something that outlives its step.
void Checker::reach() {
  // A launch without outputs (a prefill) is run for what it leaves behind, and may compute a whole layer for that.
  if (!need_flow || std::none_of(m.t.buffers.begin(), m.t.buffers.end(), [](const BufferRow& b) { return b.kind == kOutput; })) return;
  std::vector<i64> from(m.n + 1, 0);  // writers of each reader
  for (const auto& e : flow) ++from[e.second + 1];
  std::partial_sum(from.begin(), from.end(), from.begin());
  std::vector<i32> writer(flow.size());
  auto at = from;
  for (const auto& e : flow) writer[at[e.second]++] = e.first;
  std::vector<char> useful(keeps.begin(), keeps.end());
  std::vector<i32> todo;
  for (i32 b = 0; b < m.n; ++b)
    if (useful[b]) todo.push_back(b);
  while (!todo.empty()) {
    const i32 b = todo.back();
    todo.pop_back();
    for (i64 k = from[b]; k < from[b + 1]; ++k)
      if (!useful[writer[k]]) useful[writer[k]] = 1, todo.push_back(writer[k]);
  }
  for (i32 b = 0; b < m.n; ++b)
    if (!useful[b]) {
      Finding f;
      f.rule = kCover, f.what = "dead", f.task_a = b;
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
    for (i64 a = m.acc_off[b]; a < m.acc_off[b + 1]; ++a)
      if (m.acc[a].write() && (m.acc[a].flags & kAsync)) {
        const auto where = byte_bounds(m, m.rects[m.acc[a].rect]);
        data(kProxy, m.t.task_fences[b] & 4 ? "read wait" : "wait_group", i32(a), 0, -1, 0, where.first, where.second);
        break;
      }
  }
  if (run.complete) {
    outputs();
    reach();
  }
}

}  // namespace amk::validate
