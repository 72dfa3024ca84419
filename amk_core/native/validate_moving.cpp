// RACE and COVER where ranges move: pairs of rectangles, induction over steps, and small cases written out.
#include <algorithm>

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

}  // namespace

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
    if (p.buffer == r.buffer && m.unit(p.buffer) > 1 && (apart(box[x].first, box[y].first) || apart(box[x].second, box[y].second))) return Meet{};
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
    bool tainted = rect.moves(), near = tainted;  // something that moves may reach its elements, or bytes that they share with others
    if (!tainted)
      for (i32 y : g.rects) {
        if (!m.rects[y].moves() || tainted) continue;
        const bool relevant = std::find(g.init.begin(), g.init.end(), y) != g.init.end() || has_write[y];
        near |= has_write[y] && m.unit(rect.buffer) == 1 && (meeting(x, y, 0).any || meeting(y, x, 0).any);
        tainted = relevant && (rect.buffer != m.rects[y].buffer || meet(m, rect, m.rects[y], 0).any || meet(m, m.rects[y], rect, 0).any);
      }
    if (!tainted && !near) continue;
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
          if (tainted) feeds(m.acc[w].task, m.acc[a].task);
          if (unfenced(a, w)) data(kProxy, "fence", a, at.i + at.k, w, at.i, byte_bounds(m, rect).first, byte_bounds(m, rect).second);
        }
    }
    for (i32 a : acc_of[x]) {
      if (m.acc[a].write() || !tainted) continue;
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
  const i64 before = out.count[kCover] + out.count[kFlow];
  bool too_much = i64(accesses) * span * i64(assignments.size()) > 4 * kConcreteWork;
  for (size_t at = 0; at < assignments.size() && !too_much; ++at) {
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
    if (out.count[kCover] + out.count[kFlow] > before) return;
  }
  if (complete && !too_much) return;
  gave_up = true;
  for (size_t a = 0; a < wanted.size(); ++a)
    if (wanted[a]) {
      const auto where = byte_bounds(m, m.rects[m.acc[a].rect]);
      bool flow_ok = true;
      const bool there = covered(g, i32(a), flow_ok);
      data(there ? kFlow : kCover, "undecided", i32(a), 0, -1, 0, where.first, where.second, true);
      return;
    }
}

}  // namespace amk::validate
