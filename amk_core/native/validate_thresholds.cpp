// What is waited for and who brings it: the thresholds of all counters, their producers, and what is known at first.
#include <algorithm>
#include <numeric>
#include <utility>

#include "validate_search.hpp"

namespace amk::validate {
namespace {

constexpr i64 kMaxQueues = 1 << 12;      // of periodic clocks, whose independence is cubic in them: four times what a target has

}  // namespace

bool Search::prepare() {
  if (!unroll && q > kMaxQueues) return false;
  c.row.assign(reps() * m.n, 0), tick_.assign(reps() * m.n, 0), evaluated_.assign(reps() * m.n, 0);
  rows_.reserve(std::min<i64>(kMaxCells / q, reps() * m.n + 4096));
  std::fill_n(rows_.fresh(), q, none());
  rows_.commit();  // row 0: nothing is known
  scratch_.resize(q);
  list_thresholds();
  list_producers();
  if (unroll) return true;
  floor_.resize(q);
  for (i32 r = 0; r < q; ++r) floor_[r] = lowest(m, r);
  std::copy(m.len.begin(), m.len.end(), rows_.fresh());
  most_.assign(m.total.size(), rows_.commit());
  find_needs();
  return start();
}

// The distinct (counter, threshold) that are waited for; written out, thresholds count from the first step.
void Search::list_thresholds() {
  const i64 counters = i64(m.total.size()), waits = i64(m.t.wait_counter.size());
  std::vector<i64> off(counters + 1, 0);
  std::vector<std::pair<i64, i64>> of;  // (tau, step * waits + wait), by counter
  job_.assign(reps() * waits, -1);
  auto each = [&](auto f) {
    for (i64 i = 0; i < reps(); ++i)
      for (i64 w = 0; w < waits; ++w) {
        const i64 step = unroll ? i + m.t.wait_e[w] : 0;
        if (step >= 0) f(m.t.wait_counter[w], step * m.total[m.t.wait_counter[w]] + m.t.wait_t[w], i * waits + w);
      }
  };
  each([&](i32 counter, i64, i64) { ++off[counter + 1]; });
  std::partial_sum(off.begin(), off.end(), off.begin());
  of.resize(off[counters]);
  auto at = off;
  each([&](i32 counter, i64 tau, i64 k) { of[at[counter]++] = {tau, k}; });
  threshold_off_.assign(1, 0);
  for (i64 k = 0; k < counters; ++k) {
    const auto first = of.begin() + off[k], last = of.begin() + off[k + 1];
    if (!std::is_sorted(first, last, [](const auto& a, const auto& b) { return a.first < b.first; })) std::sort(first, last);
    for (auto it = first; it != last; ++it) {
      if (it == first || it->first != (it - 1)->first) {
        thresholds_.push_back({});
        thresholds_.back().counter = i32(k), thresholds_.back().tau = it->first;
      }
      job_[it->second] = i32(thresholds_.size()) - 1;
      if (!unroll && m.t.wait_e[it->second] == -1) thresholds_.back().asked_before = true;
    }
    threshold_off_.push_back(i32(thresholds_.size()));
  }
}

void Search::list_producers() {
  const size_t counters = m.total.size();
  made_off_.assign(counters + 1, 0), single_.assign(counters, -2);
  auto each = [&](auto f) {
    for (i32 b : run.order)
      for (i64 s = m.t.sig_off[b]; s < m.t.sig_off[b + 1]; ++s) f(b, m.t.sig_counter[s], m.t.sig_amount[s]);
  };
  each([&](i32 b, i32 counter, i64) {
    ++made_off_[counter + 1];
    i32& one = single_[counter];
    one = one == -2 || one == m.queue_of[b] ? m.queue_of[b] : -1;
  });
  std::partial_sum(made_off_.begin(), made_off_.end(), made_off_.begin());
  made_by_.resize(made_off_[counters]), made_amount_.resize(made_off_[counters]);
  auto at = made_off_;
  each([&](i32 b, i32 counter, i64 amount) { made_by_[at[counter]] = b, made_amount_[at[counter]++] = amount; });
}

// Periodic: a queue that can run on for ever while r stands still has no clock for r.
void Search::find_needs() {
  words_ = (q + 63) / 64;
  needs_.assign(q * words_, 0);
  std::vector<uint64_t> prod(m.total.size() * words_, 0);
  auto set = [](uint64_t* bits, i32 k) { bits[k / 64] |= uint64_t{1} << (k % 64); };
  for (size_t k = 0; k < m.total.size(); ++k)
    for (i64 p = m.prod_off[k]; p < m.prod_off[k + 1]; ++p) set(&prod[k * words_], m.queue_of[m.prod_task[p]]);
  for (i32 k = 0; k < q; ++k) set(&needs_[k * words_], k);
  for (i32 b = 0; b < m.n; ++b)
    for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w)
      for (i64 j = 0; j < words_; ++j) needs_[m.queue_of[b] * words_ + j] |= prod[m.t.wait_counter[w] * words_ + j];
  for (i32 mid = 0; mid < q; ++mid)
    for (i32 k = 0; k < q; ++k)
      if (needs_[k * words_ + mid / 64] >> (mid % 64) & 1)
        for (i64 j = 0; j < words_; ++j) needs_[k * words_ + j] |= needs_[mid * words_ + j];
  for (i32 k = 0; k < q; ++k)
    for (i32 r = 0; r < q; ++r) all_connected_ &= !m.len[k] || !m.len[r] || knows(&needs_[k * words_], r);
  if (all_connected_) return;
  common_.assign(m.total.size() * words_, ~uint64_t{0});
  for (size_t k = 0; k < m.total.size(); ++k)
    for (i64 p = m.prod_off[k]; p < m.prod_off[k + 1]; ++p)
      for (i64 j = 0; j < words_; ++j) common_[k * words_ + j] &= needs_[m.queue_of[m.prod_task[p]] * words_ + j];
}

// What is known from the step before, at first: no more than had run when the greedy run got there.
bool Search::start() {
  wrap_.assign(q, 0), wrap_of_.assign(q, -1);
  std::vector<i32> at(q, 0);
  std::vector<i32> next(threshold_off_.begin(), threshold_off_.end() - 1);
  std::vector<i64> weight(m.total.size(), 0);
  auto a_step_back = [&](i32* v) {
    for (i32 r = 0; r < q; ++r) v[r] = m.len[r] ? at[r] - m.len[r] : kNever;
  };
  for (i32 b : run.order) {
    const i32 k = m.queue_of[b];
    if (m.pos_of[b] + 1 == m.len[k]) {
      i32* v = rows_.fresh();
      a_step_back(v), mask(v, needs_, k);
      v[k] = kNever;
      wrap_[k] = rows_.commit();
    }
    ++at[k];
    for (i64 s = m.t.sig_off[b]; s < m.t.sig_off[b + 1]; ++s) {
      const i32 counter = m.t.sig_counter[s];
      weight[counter] += m.t.sig_amount[s];
      for (i32& j = next[counter]; j < threshold_off_[counter + 1] && thresholds_[j].tau <= weight[counter]; ++j)
        if (thresholds_[j].asked_before) {
          i32* v = rows_.fresh();
          a_step_back(v), mask(v, common_, counter);
          thresholds_[j].before = rows_.commit();
          if (rows_.size() * q > kMaxCells) return false;
        }
    }
  }
  return true;
}

}  // namespace amk::validate
