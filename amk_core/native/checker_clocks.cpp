// V <= F(V): every clock of a certificate follows from those before it, and what clocks order.
#include <algorithm>

#include "checker_state.hpp"

namespace amk::checker {
namespace {

constexpr int64_t kDenseEntries = 1 << 28;   // above: binary search in the sparse rows

}  // namespace

void Checker::clocks() {
  const int64_t steps = std::max<int64_t>(1, z.unroll);
  n_rows = int64_t(z.row_off.size()) - 1;
  require(Wide(steps) * n == Wide(z.row.size()) && n_rows >= 0 && z.row_off[0] == 0 && z.row_off[n_rows] == int64_t(z.row_queue.size()) &&
              z.row_queue.size() == z.row_value.size(),
          "certificate: the clock table is cut off");
  for (int64_t k = 0; k < n_rows; ++k) {
    require(z.row_off[k] <= z.row_off[k + 1] && z.row_off[k + 1] <= int64_t(z.row_queue.size()), "certificate: the clock table is damaged");
    for (int64_t x = z.row_off[k]; x < z.row_off[k + 1]; ++x) {
      const int32_t r = z.row_queue[x];
      require(in(r, size_t(Q)) && (x == z.row_off[k] || z.row_queue[x - 1] < r) && len_[r] > 0, "certificate: a clock names a wrong queue");
      require(z.row_value[x] <= steps * len_[r] && z.row_value[x] > (z.unroll ? -1 : kNone), "certificate: a clock is out of range");
    }
  }
  for (int32_t k : z.row) require(in(k, size_t(n_rows)), "certificate: an instance has no clock");
  if (n_rows * Q <= kDenseEntries) {
    dense_.assign(size_t(n_rows * Q) + 1, kNone);
    for (int64_t k = 0; k < n_rows; ++k)
      for (int64_t x = z.row_off[k]; x < z.row_off[k + 1]; ++x) dense_[k * Q + z.row_queue[x]] = z.row_value[x];
  }
  sort_producers();
  for (int64_t q = 0; q < Q; ++q)
    for (int64_t i = 0; i < steps; ++i)
      for (int64_t j = 0; j < len_[q]; ++j) local_rule(q, i, j);
}

void Checker::local_rule(int64_t q, int64_t i, int64_t j) {
  const int32_t b = at(q, j), k = z.row[i * n + b];
  const bool first = j == 0 && (!z.unroll || i == 0);
  const int32_t before = at(q, j ? j - 1 : len_[q] - 1);
  const int64_t before_step = z.unroll && j == 0 ? i - 1 : i;
  const int32_t past = first && z.unroll ? 0 : z.row[before_step * n + before];
  if (!first && past == k) return;  // the same clock as the task before it
  const bool one_wait = t.wait_off[b + 1] - t.wait_off[b] == 1;
  const int64_t w0 = t.wait_off[b];
  const std::array<int64_t, 4> input{k, first ? -1 - past : past, one_wait ? t.wait_counter[w0] : -1,
                                     one_wait ? (i + t.wait_e[w0]) * t.counters[t.wait_counter[w0]] + t.wait_t[w0] : 0};
  auto& known = proved_[(k * 31 + (one_wait ? t.wait_counter[w0] : 0)) & (kMemo - 1)];
  if (one_wait && known == input) return;  // proved for another queue, with its own entry
  open_.clear();
  for (int64_t x = z.row_off[k]; x < z.row_off[k + 1]; ++x) {
    const int32_t r = z.row_queue[x], v = z.row_value[x];
    if (z.unroll && v == 0) continue;
    int64_t y = z.unroll && first ? kNone : plus(before, before_step, r);
    if (!z.unroll && first && y != kNone) y -= len_[r];
    if (r == q || y == kNone || v > y) open_.push_back(x);
  }
  for (const bool at_a_glance : {true, false})
    for (int64_t w = w0; w < t.wait_off[b + 1] && !open_.empty(); ++w) {
      const int32_t c = t.wait_counter[w];
      const int64_t since = z.unroll ? i + t.wait_e[w] : t.wait_e[w];
      if (z.unroll && since < 0) continue;
      const int64_t need = since * t.counters[c] + t.wait_t[w];
      const Reach reach = at_a_glance ? reached(c, z.unroll ? need : t.wait_t[w]) : Reach{};
      std::erase_if(open_, [&](int64_t x) {
        const int32_t r = z.row_queue[x], v = z.row_value[x];
        return at_a_glance ? follows(reach, r, v, t.wait_e[w]) : r != q && counted(c, need, r, v);
      });
    }
  if (open_.empty() && one_wait) known = input;
  for (int64_t x : open_)
    if (z.row_queue[x] != q) return error("certificate: the clock of task " + num(b) + " for queue " + num(z.row_queue[x]) + " does not follow");
}

// The rule itself: fewer than `need` of the counter's signals can be there while queue r has not come to v.
bool Checker::counted(int32_t c, int64_t need, int32_t r, int64_t v) const {
  Wide low = 0;
  for (int64_t step = 0; step < std::max<int64_t>(1, z.unroll); ++step)
    for (int64_t s = producer_off_[c]; s < producer_off_[c + 1]; ++s) {
      const auto [p, w] = producers_[s];
      const int64_t y = plus(p, step, r);
      if (y == kNone && !z.unroll) return false;
      low += z.unroll ? (y < v ? w : 0) : Wide(w) * ceil_div(v - y, len_[r]);
    }
  return low < need;
}

bool Checker::follows(const Reach& reach, int32_t r, int64_t v, int32_t e) const {
  if (!reach.most) return false;
  auto entry = [&](const int32_t* row, int32_t own) { return r == reach.queue ? own : row[r]; };
  if (!z.unroll && e) v += len_[r];
  if (v > entry(reach.most, reach.most_own) || (reach.least && v > reach.least[r])) return false;
  const int32_t lowest = entry(reach.all, reach.all_own);
  return z.unroll || (lowest != kNone && v - len_[r] <= lowest);
}

void Checker::sort_producers() {
  if (dense_.empty() || z.unroll > 1) return;
  sorted_.resize(t.counters.size());
  std::vector<char> waited(t.counters.size(), 0);
  for (size_t w = 0; w < t.wait_counter.size(); ++w) waited[t.wait_counter[w]] = 1;
  for (int32_t b : z.replay)
    for (int64_t s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s)
      if (auto& o = sorted_[t.sig_counter[s]]; waited[t.sig_counter[s]]) {
        o.queue = o.task.empty() || o.queue == queue_[b] ? queue_[b] : -1;
        o.sum.push_back((o.sum.empty() ? 0 : o.sum.back()) + t.sig_amount[s]), o.task.push_back(b);
      }
  for (auto& o : sorted_)
    for (size_t k = 1; k < o.task.size() && o.queue >= 0 && o.grows; ++k) {
      const int32_t *x = row_at(o.task[k - 1]), *y = row_at(o.task[k]);
      for (int64_t r = 0; r < Q && x != y; ++r) o.grows &= x[r] <= y[r] || r == o.queue;
    }
  for (size_t w = 0; w < t.wait_counter.size(); ++w)
    if (auto& o = sorted_[t.wait_counter[w]]; o.queue < 0) o.cut.push_back(t.wait_t[w]);
  for (auto& o : sorted_) {
    std::sort(o.cut.begin(), o.cut.end());
    o.cut.erase(std::unique(o.cut.begin(), o.cut.end()), o.cut.end());
    if (!o.cut.empty()) reach_several(o);
  }
}

void Checker::reach_several(Sorted& o) {
  const int64_t n_cuts = int64_t(o.cut.size()), count = int64_t(o.task.size());
  o.most.resize(n_cuts * Q), o.least.resize(n_cuts * Q);
  std::vector<int32_t> row(static_cast<size_t>(Q), kNone);
  auto first_beyond = [&](int64_t k) { return std::upper_bound(o.sum.begin(), o.sum.end(), o.cut[k]) - o.sum.begin(); };
  auto pass = [&](int64_t p, auto better) {  // a producer's row, its own entry its position
    const int32_t* v = row_at(o.task[p]);
    const int32_t own = queue_[o.task[p]], keep = row[own];
    for (int64_t r = 0; r < Q; ++r) row[r] = better(row[r], v[r]);
    row[own] = better(keep, pos_[o.task[p]] + 1);
  };
  int64_t p = 0;
  for (int64_t k = 0; k < n_cuts; ++k) {
    for (; p < first_beyond(k); ++p) pass(p, [](int32_t a, int32_t b) { return std::max(a, b); });
    std::copy(row.begin(), row.end(), o.most.begin() + k * Q);
  }
  row.assign(size_t(Q), INT32_MAX), p = count;
  for (int64_t k = n_cuts; k-- > 0;) {
    for (; p > first_beyond(k); --p) pass(p - 1, [](int32_t a, int32_t b) { return std::min(a, b); });
    std::copy(row.begin(), row.end(), o.least.begin() + k * Q);
  }
  for (; p > 0; --p) pass(p - 1, [](int32_t a, int32_t b) { return std::min(a, b); });
  o.all = std::move(row);
}

Reach Checker::reached(int32_t c, int64_t threshold) const {
  if (sorted_.empty() || sorted_[c].task.empty()) return {};
  const Sorted& o = sorted_[c];
  if (o.queue < 0) {
    const int64_t k = std::lower_bound(o.cut.begin(), o.cut.end(), threshold) - o.cut.begin();
    if (o.cut[k] < o.sum[0]) return {};  // the first signal alone is beyond it
    return {&o.most[k * Q], &o.least[k * Q], o.all.data()};
  }
  const int64_t k = std::upper_bound(o.sum.begin(), o.sum.end(), threshold) - o.sum.begin();
  if (!o.grows || k == 0) return {};
  auto own = [&](int64_t p) { return pos_[o.task[p]] + 1; };  // clocks grow: what the last of them has, all others have
  return {row_at(o.task[k - 1]), nullptr, row_at(o.task[0]), o.queue, own(k - 1), own(0)};
}

// a of step i is certainly over when b of step i + k starts (written out: for one i, else for all)
bool Checker::ordered(int32_t a, int32_t b, int64_t i, int64_t k) const {
  const int32_t qa = queue_[a];
  if (qa == queue_[b]) return k > 0 || pos_[a] < pos_[b];
  if (z.unroll) return value(z.row[(i + k) * n + b], qa) >= i * len_[qa] + pos_[a] + 1;
  const int32_t v = value(z.row[b], qa);
  return v != kNone && v + k * len_[qa] >= pos_[a] + 1;
}

void Checker::need(int32_t a, int32_t b, int64_t i, int64_t k, bool either) {
  if (!ordered(a, b, i, k) && !(either && ordered(b, a, i, k)))
    error("certificate: tasks " + num(a) + " and " + num(b) + (k ? " (" + num(k) + " steps later)" : "") + " conflict and are not ordered");
}

}  // namespace amk::checker
