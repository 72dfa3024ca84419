// At which steps, and for which values of the launch variables, two accesses meet in a byte.
#include <algorithm>

#include "checker_state.hpp"

namespace amk::checker {
namespace {

constexpr int64_t kExactValues = 256;        // launch variables are enumerated up to here, above bounded by their ends
constexpr int64_t kMaxLag = 1 << 14;         // distances in steps that are tried one by one
constexpr int64_t kMaxRows = 1 << 16;        // rows of a range whose bytes are told apart; above, all between the first and the last is taken

}  // namespace

Line Checker::line(int64_t lo, int64_t hi, int32_t aff) const {
  Line l;
  if (aff < 0) {
    l.a = {lo, -1, 0, 0, hi > lo ? hi - lo : 0, -1, 0};
    return l;
  }
  l.a = t.affine[aff];
  l.moves = l.a.var >= 0 || l.a.stride || l.a.mod || l.a.length_var >= 0 || l.a.length_stride;
  if (!l.moves && l.a.length < 0) l.a.length = 0;
  return l;
}

Span Checker::at_step(const AffineRow& a, int64_t i, const std::map<int64_t, int64_t>& v) const {
  auto get = [&](int64_t x) { return x < 0 ? 0 : v.at(x); };
  Wide lo = Wide(a.add) + get(a.var) + Wide(a.stride) * i;
  if (a.mod) lo = ((lo % a.mod) + a.mod) % a.mod;
  return {lo, lo + a.length + get(a.length_var) + Wide(a.length_stride) * i};
}

// f(values) for every value of the given variables until it returns true; -1: too many
template <class F>
int Checker::any_value(std::initializer_list<int64_t> vars, F f) const {
  std::map<int64_t, int64_t> v;
  Wide count = 1;
  for (int64_t x : vars)
    if (x >= 0 && v.emplace(x, t.variables[x].min).second) {
      count *= std::max<Wide>(1, Wide(t.variables[x].max) - t.variables[x].min + 1);
      if (count > kExactValues) return -1;
    }
  for (;;) {
    if (f(v)) return 1;
    auto it = v.begin();
    for (; it != v.end() && it->second >= t.variables[it->first].max; ++it) it->second = t.variables[it->first].min;
    if (it == v.end()) return 0;
    ++it->second;
  }
}

// max over the variables of end(from, step fi) - start(to, step ti), for ranges without modulus
Wide Checker::reach(const AffineRow& from, int64_t fi, const AffineRow& to, int64_t ti) const {
  Wide sum = Wide(from.add) + (Wide(from.stride) + from.length_stride) * fi + from.length - to.add - Wide(to.stride) * ti;
  std::array<std::pair<int64_t, int64_t>, 3> terms{{{from.var, 1}, {from.length_var, 1}, {to.var, -1}}};
  for (size_t x = 0; x < 3; ++x)
    for (size_t y = x + 1; y < 3; ++y)
      if (terms[x].first == terms[y].first) terms[x].second += terms[y].second, terms[y].second = 0;
  for (auto [v, c] : terms)
    if (v >= 0 && c) sum += Wide(c) * (c > 0 ? t.variables[v].max : t.variables[v].min);
  return sum;
}

// False only when x in step i and y in step i + k stay apart for every 0 <= i <= last: both bounds are linear in i.
bool Checker::may_meet(const AffineRow& x, const AffineRow& y, int64_t xi, int64_t yi, int64_t last) const {
  if (x.mod || y.mod) return true;
  return std::max(reach(x, xi, y, yi), reach(x, xi + last, y, yi + last)) > 0 &&
         std::max(reach(y, yi, x, xi), reach(y, yi + last, x, xi + last)) > 0;
}

// Whether two ranges can meet, x in step i and y in step j; never false when they can.
bool Checker::meet(const AffineRow& x, int64_t i, const AffineRow& y, int64_t j) const {
  const int exact = any_value({x.var, x.length_var, y.var, y.length_var}, [&](const auto& v) {
    const Span a = at_step(x, i, v), b = at_step(y, j, v);
    return a.lo < a.hi && b.lo < b.hi && a.lo < b.hi && b.lo < a.hi;
  });
  if (exact >= 0) return exact;
  if (x.mod || y.mod) return true;
  return reach(x, i, y, j) > 0 && reach(y, j, x, i) > 0;
}

bool Checker::meet_bytes(const Acc& a, int64_t i, const Acc& b, int64_t j) const {  // different buffers
  const int exact = any_value({a.rows.a.var, a.rows.a.length_var, a.cols.a.var, a.cols.a.length_var, b.rows.a.var, b.rows.a.length_var,
                               b.cols.a.var, b.cols.a.length_var},
                              [&](const auto& v) {
                                std::vector<Span> x = bytes(a, i, v), y = bytes(b, j, v);
                                for (const auto& s : x)
                                  for (const auto& r : y)
                                    if (s.lo < r.hi && r.lo < s.hi) return true;
                                return false;
                              });
  return exact != 0;
}

std::vector<Span> Checker::bytes(const Acc& a, int64_t i, const std::map<int64_t, int64_t>& v) const {
  const auto& b = t.buffers[a.buffer];
  const Span r = at_step(a.rows.a, i, v), c = at_step(a.cols.a, i, v);
  std::vector<Span> out;
  if (r.lo >= r.hi || c.lo >= c.hi) return out;
  auto add = [&](Wide first, Wide last) { out.push_back({b.offset + first / 8, b.offset + (last + 7) / 8}); };
  if ((c.lo <= 0 && c.hi >= b.cols) || r.hi - r.lo > kMaxRows)
    add((r.lo * b.cols + c.lo) * b.bits, ((r.hi - 1) * b.cols + c.hi) * b.bits);
  else
    for (Wide row = r.lo; row < r.hi; ++row) add((row * b.cols + c.lo) * b.bits, (row * b.cols + c.hi) * b.bits);
  return out;
}

bool Checker::overlap(const Acc& a, int64_t i, const Acc& b, int64_t j) const {
  if (a.buffer != b.buffer || t.buffers[a.buffer].bits < 8) return meet_bytes(a, i, b, j);
  return meet(a.cols.a, i, b.cols.a, j) && meet(a.rows.a, i, b.rows.a, j);
}

// False only when a in step i and b in step i + k stay apart for all i and every distance from k on: linear, so corners tell.
bool Checker::far(const Acc& a, const Acc& b, int64_t k) const {
  if (a.buffer != b.buffer || t.buffers[a.buffer].bits < 8) return true;
  auto apart = [&](const AffineRow& x, const AffineRow& y) {
    if (x.mod || y.mod) return false;
    const std::array<std::pair<int64_t, int64_t>, 3> corners{{{0, k}, {0, t.steps - 1}, {t.steps - 1 - k, t.steps - 1}}};
    auto all = [&](auto f) { return std::all_of(corners.begin(), corners.end(), f); };
    return all([&](auto c) { return reach(x, c.first, y, c.second) <= 0; }) || all([&](auto c) { return reach(y, c.second, x, c.first) <= 0; });
  };
  return !apart(a.rows.a, b.rows.a) && !apart(a.cols.a, b.cols.a);
}

bool Checker::alike(const AffineRow& x, const AffineRow& y) {
  return !x.mod && !y.mod && x.stride == y.stride && !x.length_stride && !y.length_stride;
}

Lags Checker::lags(const Acc& a, const Acc& b) const {
  Lags l;
  auto some = [&](int64_t k, bool swap) {
    const int64_t last = t.steps - 1 - k, ai = swap ? k : 0, bi = swap ? 0 : k;
    const bool elements = a.buffer == b.buffer && t.buffers[a.buffer].bits >= 8;
    if (elements && !(may_meet(a.rows.a, b.rows.a, ai, bi, last) && may_meet(a.cols.a, b.cols.a, ai, bi, last))) return false;
    // More steps than are tried: one speaks for all where both move alike, and other ranges are taken to meet.
    const bool all = t.steps <= kExactSteps;
    if (!all && !(elements && alike(a.rows.a, b.rows.a) && alike(a.cols.a, b.cols.a))) return true;
    for (int64_t i = 0; i <= (all ? last : 0); ++i)
      if (overlap(a, ai + i, b, bi + i)) return true;
    return false;
  };
  l.now = some(0, false);
  for (int64_t k = 1; k < t.steps && l.forward < 0; ++k)
    if (k < kMaxLag ? some(k, false) : far(a, b, k)) l.forward = k;
    else if (k >= kMaxLag) break;
  for (int64_t k = 1; k < t.steps && l.backward < 0; ++k)
    if (k < kMaxLag ? some(k, true) : far(b, a, k)) l.backward = k;
    else if (k >= kMaxLag) break;
  return l;
}

Lags Checker::lags_of(const Acc& a, const Acc& b) {
  const bool plain = a.buffer == b.buffer && !a.cols.moves && !b.cols.moves && t.buffers[a.buffer].bits >= 8;
  if (!plain) return lags(a, b);
  const Wide ac = a.cols.a.add, bc = b.cols.a.add;
  if (ac >= bc + b.cols.a.length || bc >= ac + a.cols.a.length) return {};
  if (a.cols.a.length <= 0 || b.cols.a.length <= 0) return {};
  auto [it, fresh] = lag_memo_.try_emplace(uint64_t(uint32_t(a.row_class)) << 32 | uint32_t(b.row_class));
  if (fresh) it->second = lags(a, b);  // columns meet: the answer depends on the rows alone
  return it->second;
}

}  // namespace amk::checker
