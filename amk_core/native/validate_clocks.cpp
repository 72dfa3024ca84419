// What clocks say: order, lag, the exact grant of a wait, and how many steps may be written out.
#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "validate_rows.hpp"

namespace amk::validate {
namespace {

constexpr i64 kUnrolledCells = 40'000'000;  // clock entries, for clocks written out over steps
constexpr i64 kUnrolledTasks = 200'000;
constexpr i64 kUnrolledWork = 100'000'000;

i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

i32 grant(const Model& m, const Run& run, const Clocks& c, i32 counter, i64 tau, i32 r, Picks& pick) {
  const i64 from = m.prod_off[counter], to = m.prod_off[counter + 1];
  pick.clear();
  if (c.unroll) {
    for (i64 i = 0; i < c.unroll; ++i)
      for (i64 p = from; p < to; ++p)
        if (run.index[m.prod_task[p]] >= 0) pick.push_back({c.plus(i, m.prod_task[p], r), m.prod_amount[p]});
    std::sort(pick.begin(), pick.end());
    i64 sum = 0;
    for (const auto& [v, w] : pick)
      if ((sum += w) >= tau) return v;
    return 0;
  }
  // sum of w * ceil((v - y) / L) <= tau - 1.  With y = L a + b: find the whole part of v, then the largest rest that still fits.
  const i64 len = m.len[r], n = m.total[counter];
  i64 whole = 0;
  for (i64 p = from; p < to; ++p) {
    const i32 y = c.plus(0, m.prod_task[p], r);
    if (y <= kNever) return kNever;
    const i64 a = floor_div(y, len);
    whole += m.prod_amount[p] * a;
    pick.push_back({i32(y - a * len), m.prod_amount[p]});
  }
  const i64 budget = tau - 1 + whole;
  const i64 a = floor_div(budget, n), rest = budget - a * n;
  std::sort(pick.begin(), pick.end());
  i64 sum = 0;
  for (const auto& [b, w] : pick)
    if ((sum += w) > rest) {
      const i64 v = a * len + b;
      return v < lowest(m, r) ? kNever : i32(std::min<i64>(v, len));
    }
  return kNever;
}

void grants(const Model& m, const Run& run, const Clocks& c, i32 counter, i64 tau, std::vector<i32>& out, Picks& pick) {
  for (i32 r = 0; r < m.q; ++r) out[r] = grant(m, run, c, counter, tau, r, pick);
}

i64 Clocks::lag(i32 a, i32 b) const {
  const i32 qa = m->queue_of[a];
  const i64 v = qa == m->queue_of[b] ? m->pos_of[b] : value[row[b] + qa];
  if (v <= kNever) return -1;
  return (m->pos_of[a] - v + m->len[qa]) / m->len[qa];
}

bool Clocks::decided(const Run& run, i32 a, i64 i, i32 b) const {
  const i32 qa = m->queue_of[a], qb = m->queue_of[b];
  const i32 last = m->t.queue_task[m->t.queue_off[qb] + m->len[qb] - 1];
  const i64 need = i * m->len[qa] + m->pos_of[a] + 1;
  if (plus(i, last, qa) >= need) return true;
  Picks pick;
  for (i64 w = m->t.wait_off[b]; w < m->t.wait_off[b + 1]; ++w) {
    const i32 c = m->t.wait_counter[w];
    if (grant(*m, run, *this, c, i * m->total[c] + m->t.wait_t[w], qa, pick) >= need) return true;
  }
  return false;
}

i64 affordable_steps(const Model& m) {
  if (m.n == 0) return 1;
  i64 joins = 1, waits = 1;
  std::set<std::tuple<i32, i64, i32>> distinct;
  for (i32 b = 0; b < m.n; ++b)
    for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w) {
      const i32 c = m.t.wait_counter[w];
      const i64 producers = m.prod_off[c + 1] - m.prod_off[c];
      if (distinct.emplace(c, m.t.wait_t[w], m.t.wait_e[w]).second) joins += producers;
      waits += producers;
    }
  const i64 tasks = m.n, width = m.q;
  const i64 work = i64(std::sqrt(double(kUnrolledWork) / (double(joins) * double(width) + double(waits))));
  return std::min({kUnrolledTasks / tasks, kUnrolledCells / (tasks * width), work, m.steps});
}

}  // namespace amk::validate
