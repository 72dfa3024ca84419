// What the host finds after a launch.
#include <algorithm>
#include <numeric>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kWrittenOut = 1'000'000;  // ranges of one output written out over steps

}  // namespace

// What the host finds: every byte of an output is certainly written in some step, the last write in every step is made under the
// output's own name, and a row of a host ring is written in one step only.
void Checker::outputs() {
  for (i32 b = 0; b < i32(m.t.buffers.size()); ++b)
    if (m.t.buffers[b].kind == kOutput) {
      const bool own = m.t.pools[m.t.buffers[b].pool].per_queue != 0;  // each queue has one
      for (i32 space = own ? 0 : -1; space < (own ? m.q : 0); ++space) output_written(b, space), output_kept(b, space);
    }
}

void Checker::output_kept(i32 b, i32 space) {
  const auto& buf = m.t.buffers[b];
  std::vector<i32> writers;  // rectangles with writes that reach the output
  std::vector<i64> vars;
  bool moves = false, aliased = false;
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    if (m.group_of[r.buffer] != m.group_of[b] || r.space != space) continue;
    if (std::none_of(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) { return m.acc[a].write(); })) continue;
    bool exact = true;
    if (!touch(r, Rect{b, space, {0, buf.rows, -1}, {0, buf.cols, -1}}, exact)) continue;
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
  if (buf.lifetime == kHost && rewritten()) out.add(f);
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
        Cells parts;
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

void Checker::output_written(i32 b, i32 space) {
  const auto& buf = m.t.buffers[b];
  std::vector<Shape> shapes{{b, 0, buf.rows, 0, buf.cols, 0}};
  bool open = false;  // something moves in a way that is not written out here
  for (i32 x = 0; x < i32(m.rects.size()); ++x) {
    const Rect& r = m.rects[x];
    if (m.group_of[r.buffer] != m.group_of[b] || r.space != space) continue;
    if (std::none_of(acc_of[x].begin(), acc_of[x].end(), [&](i32 a) { return m.acc[a].write() && !m.acc[a].maybe(); })) continue;
    if (!r.moves()) {
      shapes.push_back({r.buffer, r.rows.a, r.rows.b, r.cols.a, r.cols.b, 1});
      continue;
    }
    const bool by_rows = r.rows.aff >= 0;
    const Range& fixed = by_rows ? r.cols : r.rows;
    const AffineRow& f = m.affine[by_rows ? r.rows.aff : r.cols.aff];
    const bool plain = fixed.aff < 0 && f.length_stride == 0 && f.length_var < 0;
    std::vector<i64> vars;
    collect_variables(m, r, vars);
    if (plain && f.mod == 0 && f.stride >= 0 && f.length >= f.stride) {  // one step after the other without a gap
      const i64 least = f.var < 0 ? 0 : m.t.variables[f.var].min, most = f.var < 0 ? 0 : m.t.variables[f.var].max;
      const i64 lo = f.add + most, hi = f.add + least + f.stride * (m.steps - 1) + f.length;
      shapes.push_back(by_rows ? Shape{r.buffer, lo, hi, fixed.a, fixed.b, 1} : Shape{r.buffer, fixed.a, fixed.b, lo, hi, 1});
      continue;
    }
    const i64 steps = plain && f.mod ? std::min(m.steps, f.mod / std::gcd(f.stride, f.mod)) : m.steps;
    if (!vars.empty() || steps > kWrittenOut) {
      open = true;
      continue;
    }
    for (i64 i = 0; i < steps; ++i) {
      const auto rows = range_at(m, r.rows, i, {}), cols = range_at(m, r.cols, i, {});
      shapes.push_back({r.buffer, rows.first, rows.second, cols.first, cols.second, 1});
    }
  }
  Cells parts;
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

}  // namespace amk::validate
