// Ranges that move with the step and with launch variables: where do two of them meet?
#include <algorithm>
#include <numeric>
#include <tuple>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kDistances = 1 << 16;      // step distances tried one by one
constexpr i64 kEnumeration = 1 << 21;    // points of an enumeration (moduli)
constexpr i128 kTooMany = i128(1) << 60;  // values: more than are tried
constexpr i64 kAllMeetings = 300'000'000;  // points and distances of all pairs together: seconds

struct Constraint {  // c + ci * i + ck * k >= 1
  i128 c, ci, ck;
};

AffineRow form(const Model& m, const Range& r) {
  if (r.aff >= 0) return m.affine[r.aff];
  return {r.a, -1, 0, 0, r.b - r.a, -1, 0};
}

using Forms = std::array<AffineRow, 4>;  // rows of x and y, columns of x and y

Forms forms(const Model& m, const Rect& x, const Rect& y) { return {form(m, x.rows), form(m, y.rows), form(m, x.cols), form(m, y.cols)}; }
bool modular(const Forms& f) {
  return std::any_of(f.begin(), f.end(), [](const AffineRow& r) { return r.mod != 0; });
}

void variables_of(const AffineRow& r, std::vector<i64>& out) {
  for (i64 v : {r.var, r.length_var})
    if (v >= 0 && std::find(out.begin(), out.end(), v) == out.end()) out.push_back(v);
}

// Overlap of x(i) and y(i + k) in one dimension as linear constraints, each variable at its best value.
bool linear(const Model& m, const AffineRow& x, const AffineRow& y, std::vector<Constraint>& out) {
  Constraint a{i128(x.length) + x.add - y.add, i128(x.length_stride) + x.stride - y.stride, -i128(y.stride)};
  Constraint b{i128(y.length) + y.add - x.add, i128(y.length_stride) + y.stride - x.stride, i128(y.length_stride) + y.stride};
  Constraint lx{x.length, x.length_stride, 0}, ly{y.length, y.length_stride, y.length_stride};
  bool exact = true;
  std::vector<i64> vars;
  variables_of(x, vars), variables_of(y, vars);
  for (i64 v : vars) {
    const int in_a = (x.var == v) + (x.length_var == v) - (y.var == v), in_b = (y.var == v) + (y.length_var == v) - (x.var == v);
    const i128 lo = m.t.variables[v].min, hi = m.t.variables[v].max;
    auto best = [&](int coef) { return std::max(coef * lo, coef * hi); };
    a.c += best(in_a), b.c += best(in_b);
    if (x.length_var == v) lx.c += hi;
    if (y.length_var == v) ly.c += hi;
    if (in_a * in_b < -1) exact = false;  // start and length of one, against each other; where only a start moves (-1), all is hit
  }
  out.insert(out.end(), {a, b, lx, ly});
  return exact;
}

i128 floor_div(i128 a, i128 b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

// The first step for which all constraints hold at distance k.
std::optional<i64> feasible(const std::vector<Constraint>& cs, i64 k, i64 last) {
  i128 lo = 0, hi = last - k;
  for (const auto& c : cs) {
    const i128 rest = c.c + c.ck * k - 1;  // rest + ci * i >= 0
    if (c.ci > 0)
      lo = std::max(lo, -floor_div(rest, c.ci));
    else if (c.ci < 0)
      hi = std::min(hi, floor_div(rest, -c.ci));
    else if (rest < 0)
      return {};
  }
  if (lo > hi) return {};
  return i64(lo);
}

}  // namespace

std::pair<i64, i64> range_at(const Model& m, const Range& r, i64 step, const std::vector<i64>& values) {
  if (r.aff < 0) return {r.a, r.b};
  const AffineRow& f = m.affine[r.aff];
  i128 start = i128(f.add) + i128(f.stride) * step + (f.var >= 0 ? values[f.var] : 0);
  if (f.mod) {
    start %= f.mod;
    if (start < 0) start += f.mod;
  }
  const i128 length = i128(f.length) + i128(f.length_stride) * step + (f.length_var >= 0 ? values[f.length_var] : 0);
  return {i64(start), i64(start + length)};
}

namespace {

// The variables of some ranges, and for each how many values have to be tried (a value matters only up to the modulus it is taken in).
struct Values {
  std::vector<i64> vars, width;
  i128 points = 1;
  Values(const Model& m, const Forms& f) {
    for (const auto& r : f) variables_of(r, vars);
    for (i64 v : vars) {
      i64 w = m.t.variables[v].max - m.t.variables[v].min + 1, mod = 1;
      bool only_modular = true;
      for (const auto& r : f) {
        only_modular &= r.length_var != v && (r.var != v || r.mod != 0);
        if (r.var == v && r.mod) mod = i64(std::min(i128(mod) / std::gcd(mod, r.mod) * r.mod, kTooMany));
      }
      if (only_modular) w = std::min(w, mod);
      width.push_back(w);
      points = std::min(points * w, kTooMany);
    }
  }
  template <class F>
  bool any(const Model& m, std::vector<i64>& values, F f) const {
    std::vector<i64> at(vars.size(), 0);
    while (true) {
      for (size_t v = 0; v < vars.size(); ++v) values[vars[v]] = m.t.variables[vars[v]].min + at[v];
      if (f()) return true;
      size_t v = 0;
      while (v < vars.size() && ++at[v] == width[v]) at[v++] = 0;
      if (v == vars.size()) return false;
    }
  }
};

bool all_constraints(const Model& m, const Forms& f, std::vector<Constraint>& cs) {
  std::vector<i64> row_vars, col_vars;
  bool exact = linear(m, f[0], f[1], cs);
  exact &= linear(m, f[2], f[3], cs);
  variables_of(f[0], row_vars), variables_of(f[1], row_vars), variables_of(f[2], col_vars), variables_of(f[3], col_vars);
  for (i64 v : row_vars) exact &= std::find(col_vars.begin(), col_vars.end(), v) == col_vars.end();
  return exact;
}

}  // namespace

bool meet_at(const Model& m, const Rect& x, const Rect& y, i64 i, i64 k) {
  const Forms f = forms(m, x, y);
  if (!modular(f)) {
    std::vector<Constraint> cs;
    all_constraints(m, f, cs);
    return std::all_of(cs.begin(), cs.end(), [&](const Constraint& c) { return c.c + c.ci * i + c.ck * k >= 1; });
  }
  std::vector<i64> values(m.t.variables.size());
  return Values(m, f).any(m, values, [&] {
    return !disjoint(range_at(m, x.rows, i, values), range_at(m, y.rows, i + k, values)) &&
           !disjoint(range_at(m, x.cols, i, values), range_at(m, y.cols, i + k, values));
  });
}

Meet meet(const Model& m, const Rect& x, const Rect& y, i64 k_min) {
  const i64 last = m.steps - 1;
  if (disjoint(m.bounds(x.rows), m.bounds(y.rows)) || disjoint(m.bounds(x.cols), m.bounds(y.cols))) return {};
  if (!x.moves() && !y.moves()) return {.any = true, .k = k_min};
  const Forms f = forms(m, x, y);
  if (!modular(f)) {
    std::vector<Constraint> cs;
    const bool exact = all_constraints(m, f, cs);
    for (const auto& c : cs) {  // cannot hold anywhere in the box
      const i128 most = c.c + std::max<i128>(0, c.ci * last) + std::max(c.ck * k_min, c.ck * last);
      if (most < 1) return {};
    }
    for (i64 k = k_min; k <= last && k < k_min + kDistances; ++k) {
      if (++m.meetings > kAllMeetings) return {true, false, k_min, 0};
      if (const auto i = feasible(cs, k, last)) return {true, exact, k, *i};
    }
    if (last < k_min + kDistances) return {};
    return {true, false, k_min, 0};
  }
  // Moduli: enumerate steps, distances and values; everything repeats after the common period.
  i128 period = 1;
  for (const auto& r : f) {
    i128 p = 1;
    if (r.length_stride || (r.stride && !r.mod))
      p = m.steps;
    else if (r.mod)
      p = r.mod / std::gcd(r.stride, r.mod);
    period = std::min<i128>(m.steps, period / std::gcd(i64(period), i64(p)) * p);
  }
  const Values v(m, f);
  if (v.points * period * period > kEnumeration || m.meetings > kAllMeetings) return {true, false, k_min, 0};
  std::vector<i64> values(m.t.variables.size());
  for (i64 k = k_min; k < k_min + i64(period); ++k)
    for (i64 i = 0; i + k <= last && i < i64(period); ++i)
      if (v.any(m, values, [&] {
            ++m.meetings;
            return !disjoint(range_at(m, x.rows, i, values), range_at(m, y.rows, i + k, values)) &&
                   !disjoint(range_at(m, x.cols, i, values), range_at(m, y.cols, i + k, values));
          }))
        return {true, true, k, i};
  return {};
}

}  // namespace amk::validate
