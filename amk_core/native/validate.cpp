// The order of the parts: load, run, clocks, rules, and written-out steps where periodic clocks complain.
#include <algorithm>

#include "validate_rows.hpp"

namespace amk::validate {
namespace {

constexpr i64 kWitnessWork = 20'000'000;  // tasks run to find witnesses, for one verdict
constexpr i64 kWitnessAhead = 20'000;     // tasks of a run in which queues may be steps ahead of the two that are held back
constexpr i64 kWitnessSteps = 4;          // first steps of a pair that are tried where every step is meant
constexpr i64 kFirstSteps = 8;  // steps written out before more are tried

// Findings that other clocks could change; `clipped`: these say less than is known.
bool needs_clocks(const Finding& f, bool clipped) {
  return f.undecided || f.rule == kRace || f.rule == kFlow || f.what == "order" || f.what == "overwrite" || f.what == "fence" ||
         (f.rule == kCover && f.what != "output" && (f.what != "dead" || clipped));
}

// Where the periodic clocks complain and writing out some steps does not settle it.
Report merge_undecided(Report periodic, bool clipped) {
  for (Finding& f : periodic.findings) f.undecided |= needs_clocks(f, clipped);
  return periodic;
}

bool definite(const Report& r) {
  return std::any_of(r.findings.begin(), r.findings.end(), [](const Finding& f) { return !f.undecided; });
}

// What the periodic clocks complain of and the first steps do not show: a rule may be broken in a later step only.  Bytes that are
// raced for have no certain writer, and broken tags no certain value: nothing is asked behind those.
std::vector<Finding> unseen(const Report& periodic, bool clipped, const Report& exact) {
  std::vector<Finding> out;
  for (const Finding& f : periodic.findings) {
    if (!needs_clocks(f, clipped) || exact.count[f.rule] > 0) continue;
    if ((f.rule == kCover && (exact.count[kRace] || exact.count[kTag])) || (f.rule == kFlow && exact.count[kRace])) continue;
    out.push_back(f), out.back().undecided = true;
  }
  return out;
}

// A run that shows a race proves it, whatever the clocks left open.
void witnesses(const Model& m, Verdict& v) {
  i64 work = 0;
  std::vector<i64> done, count;
  // A queue that runs ahead may bring what a task waits for: more and more of that is allowed.
  auto reach = [&](i32 a, i64 ia, i32 b, i64 ib) {
    const i64 least = std::max(ia, ib) + 1;
    for (i64 ahead = 0; work < kWitnessWork; ahead = ahead ? 2 * ahead : 1) {
      const i64 steps = std::min(least + ahead, m.steps);
      if (ahead && steps * m.n > kWitnessAhead) return false;
      work += steps * m.n;
      if (withheld(m, a, ia, b, ib, steps, done, count)) return true;
      if (steps == m.steps) return false;
    }
    return false;
  };
  for (size_t k = 0; k < v.report.findings.size(); ++k) {
    Finding& f = v.report.findings[k];
    if (f.rule != kRace || !f.meet) continue;
    const i64 distance = f.step_b - f.step_a;
    auto runs = [&](i64 i) { return i + distance < m.steps && reach(i32(f.task_a), i, i32(f.task_b), i + distance); };
    bool both = runs(f.step_a);
    for (i64 i = 0; !both && f.undecided && !f.moves && i < kWitnessSteps; ++i)  // bytes that stand still are met in every step
      if ((both = runs(i))) f.step_a = i, f.step_b = i + distance;
    if (!both) continue;
    f.undecided = false;
    // what b waits for and has: the first wait on a counter that a signals
    for (i64 w = m.t.wait_off[f.task_b]; w < m.t.wait_off[f.task_b + 1]; ++w)
      for (i64 s = m.t.sig_off[f.task_a]; s < m.t.sig_off[f.task_a + 1]; ++s)
        if (m.t.sig_counter[s] == m.t.wait_counter[w]) {
          f.counter = m.t.wait_counter[w], f.need = m.t.wait_t[w], f.have = m.total[f.counter];
        }
    if (f.counter < 0 && m.t.sig_off[f.task_a] < m.t.sig_off[f.task_a + 1])
      f.counter = m.t.sig_counter[m.t.sig_off[f.task_a]], f.need = 0, f.have = m.total[f.counter];
    v.witness.push_back({k, done});
  }
}

}  // namespace

Verdict decide(const Tables& t) {
  Verdict v;
  Model m(t);
  if (!m.load(v.report)) return v;
  const TagWaits tags = tag_waits(m);
  v.run = greedy(m, tags);
  if (!v.run.complete) deadlock(m, tags, v.run, v.report);
  const i64 horizon = v.run.complete ? m.steps : 1;
  if (horizon == 1) {
    m.steps = 1;  // of a run that ends, only the reached prefix of the first step is judged
    v.clocks = unrolled_clocks(m, v.run, 1);
    Checker(m, v.run, v.clocks, v.report, 1).all();
    if (v.clocks.clipped) v.report = merge_undecided(std::move(v.report), true);
    witnesses(m, v);
  } else {
    v.clocks = periodic_clocks(m, v.run);
    Report periodic;
    Checker(m, v.run, v.clocks, periodic, horizon).all();
    v.report = periodic;
    const bool clipped = v.clocks.clipped;
    const bool clocked = std::any_of(periodic.findings.begin(), periodic.findings.end(), [&](const Finding& f) { return needs_clocks(f, clipped); });
    const i64 most = clocked ? affordable_steps(m) : 0;
    bool settled = !clocked, whole = settled;
    // A violation usually shows within a few steps; only a proof that there is none needs all of them.
    for (i64 steps = std::min(most, kFirstSteps); steps >= 2 && !whole; steps = std::min(most, steps * 4)) {
      Clocks written = unrolled_clocks(m, v.run, steps);
      Report exact;
      Checker(m, v.run, written, exact, steps).all();
      if (written.clipped) exact = merge_undecided(std::move(exact), true);
      const bool complete = steps == horizon && !written.clipped;
      if (complete || definite(exact)) {
        std::vector<Finding> rest;
        if (!complete) rest = unseen(periodic, clipped, exact);
        settled = true, whole = rest.empty();
        v.report = std::move(exact), v.clocks = std::move(written);
        for (Finding& f : rest) v.report.add(std::move(f));
      }
      if (steps == most) break;
    }
    if (!settled) v.report = merge_undecided(std::move(periodic), clipped);
    if (clocked) witnesses(m, v);
    v.clocks.m = nullptr;
  }
  v.accepted = v.report.empty();
  return v;
}

// Rows in the order of their first use; all tasks behind one barrier share one.
Sparse sparse(const Clocks& c) {
  Sparse s;
  const i32 none = c.unroll ? 0 : kNever;
  const i64 width = std::max(1, c.q);
  s.row.resize(c.row.size());
  std::vector<i32> number(c.value.size() / width + 1, -1);
  std::vector<i64> rows;
  for (size_t x = 0; x < c.row.size(); ++x) {
    i32& id = number[c.row[x] / width];
    if (id < 0) id = i32(rows.size()), rows.push_back(c.row[x]);
    s.row[x] = id;
  }
  s.off.assign(rows.size() + 1, 0);
  for (size_t k = 0; k < rows.size(); ++k) {
    const i32* v = c.value.data() + rows[k];
    s.off[k + 1] = s.off[k] + std::count_if(v, v + c.q, [&](i32 x) { return x > none; });
  }
  const size_t entries = size_t(s.off.back());
  reserve_large(s.queue, entries), reserve_large(s.value, entries);
  s.queue.resize(entries), s.value.resize(entries);
  for (size_t k = 0; k < rows.size(); ++k) {
    const i32* v = c.value.data() + rows[k];
    i64 at = s.off[k];
    for (i32 r = 0; r < c.q; ++r)
      if (v[r] > none) s.queue[at] = r, s.value[at++] = v[r];
  }
  return s;
}

}  // namespace amk::validate
