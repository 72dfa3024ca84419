// Overlap of rectangles of different buffers, and over the values of launch variables.
#include <algorithm>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kAliasChecks = 200'000;      // such trials in all
constexpr i128 kManyAssignments = i128(1) << 60;  // more than anybody tries

// Two buffers that lay their elements over each other one to one.
bool same_grid(const Model& m, i32 x, i32 y) {
  const auto &a = m.t.buffers[x], &b = m.t.buffers[y];
  return x == y || (a.offset == b.offset && a.bits == b.bits && a.cols == b.cols);
}

}  // namespace

std::pair<i64, i64> byte_bounds(const Model& m, const Rect& r) {
  auto rows = m.bounds(r.rows), cols = m.bounds(r.cols);
  // A modulus may be far larger than the buffer, in which the range is known to stay.
  rows.second = std::min(rows.second, m.t.buffers[r.buffer].rows), cols.second = std::min(cols.second, m.t.buffers[r.buffer].cols);
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
  for (i64 v : vars) total = std::min(kManyAssignments, total * (i128(m.t.variables[v].max) - m.t.variables[v].min + 1));
  return total;
}

// Do x(i) and y(j) share a byte for some values of the variables?  Buffers may differ; small cases are written out.  Sets exact to
// whether a "yes" is certain.
bool Checker::overlap_at(const Rect& x, const Rect& y, i64 i, i64 j, bool& exact) {
  if (same_grid(m, x.buffer, y.buffer) && m.unit(x.buffer) > 1) {
    exact = true;
    return meet_at(m, x, y, i, j - i);
  }
  std::vector<i64> vars;
  collect_variables(m, x, vars), collect_variables(m, y, vars);
  if (x.moves() || y.moves()) alias_checks += i64(std::min<i128>(count_assignments(m, vars), kAliasValues));
  bool shared = false;
  Cells parts;
  exact = alias_checks <= kAliasChecks && assignments_of(m, vars, kAliasValues, [&](const std::vector<i64>& values) {
    const auto xr = range_at(m, x.rows, i, values), xc = range_at(m, x.cols, i, values);
    const auto yr = range_at(m, y.rows, j, values), yc = range_at(m, y.cols, j, values);
    if (!cells(m, {{x.buffer, xr.first, xr.second, xc.first, xc.second, 0}, {y.buffer, yr.first, yr.second, yc.first, yc.second, 1}}, true, parts))
      return false;
    shared = std::any_of(parts.begin(), parts.end(), [](const Cell& c) { return c.ids.size() == 2; });
    return !shared;
  });
  if (shared) exact = true;
  return shared || !exact;
}

// meet() for rectangles of aliasing buffers too.
Meet Checker::meet_any(const Rect& x, const Rect& y, i64 k_min) {
  const auto a = byte_bounds(m, x), b = byte_bounds(m, y);
  if (a.first >= b.second || b.first >= a.second) return {};
  if (same_grid(m, x.buffer, y.buffer) && m.unit(x.buffer) > 1) return meet(m, x, y, k_min);
  if (m.steps > kTagSteps) return {true, false, k_min, 0};
  for (i64 k = k_min; k < m.steps; ++k)
    for (i64 i = 0; i + k < m.steps; ++i) {
      bool exact;
      if (overlap_at(x, y, i, i + k, exact)) return {true, exact, k, i};
    }
  return {};
}

// Do two rectangles share a byte in some step?  Sets exact, with "yes", to whether that is certain.
bool Checker::touch(const Rect& x, const Rect& y, bool& exact) {
  const auto a = byte_bounds(m, x), b = byte_bounds(m, y);
  if (a.first >= b.second || b.first >= a.second) return false;
  if (!x.moves() && !y.moves()) return overlap_at(x, y, 0, 0, exact);
  Meet at = meet_any(x, y, 0);
  if (!at.any || !at.exact)
    if (const Meet back = meet_any(y, x, 0); back.any) at = back;
  exact = at.exact;
  return at.any;
}

}  // namespace amk::validate
