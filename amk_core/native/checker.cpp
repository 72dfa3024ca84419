// The certificate checker: structure, replay, clocks, conflicts, in the order in which they are checked (checker_state.hpp).  It is what
// has to be trusted, and shares nothing with the search.
#include "checker.hpp"

#include <algorithm>
#include <numeric>

#include "checker_state.hpp"

namespace amk {
namespace checker {
namespace {

constexpr int64_t kMaxElement = int64_t{1} << 61;  // of a plain range
constexpr Wide kMaxReach = Wide(1) << 63;     // of an affine range: an element times the bits of a buffer then fits 128 bits
constexpr int64_t kMaxSteps = int64_t{1} << 31;
constexpr int64_t kMaxUnroll = 1 << 20;      // steps of written-out clocks

}  // namespace

void Checker::run() {
  try {
    structure();
    replay();
    clocks();
    conflicts();
  } catch (const Bad&) {
  }
}

void Checker::structure() {
  n = t.n_tasks, Q = t.n_queues;
  require(z.n_tasks == n && z.n_queues == Q, "certificate: it belongs to tables of another size");
  require(t.steps >= 1 && t.steps < kMaxSteps, "tables: no steps, or too many");
  require(z.unroll == 0 || (z.unroll >= t.steps && z.unroll <= kMaxUnroll), "certificate: its clocks do not reach over all steps");
  queue_.assign(size_t(n), -1), pos_.resize(size_t(n)), len_.resize(size_t(Q));
  require(t.queue_task.size() == size_t(n), "tables: the queues do not hold every task once");
  for (int64_t q = 0; q < Q; ++q) {
    len_[q] = t.queue_off[q + 1] - t.queue_off[q];
    for (int64_t j = 0; j < len_[q]; ++j) {
      const int32_t b = t.queue_task[t.queue_off[q] + j];
      require(in(b, queue_.size()) && queue_[b] < 0, "tables: the queues do not hold every task once");
      queue_[b] = int32_t(q), pos_[b] = int32_t(j);
    }
  }
  std::vector<int64_t> fan(t.counters.size() + 1, 0);
  std::vector<Wide> sum(t.counters.size(), 0);
  for (size_t s = 0; s < t.sig_counter.size(); ++s) {
    require(in(t.sig_counter[s], t.counters.size()) && t.sig_amount[s] >= 1, "tables: a signal is damaged");
    ++fan[t.sig_counter[s] + 1], sum[t.sig_counter[s]] += t.sig_amount[s];
  }
  for (size_t c = 0; c < sum.size(); ++c)
    require(sum[c] == t.counters[c] && sum[c] * t.steps < (Wide(1) << 31), "tables: a counter does not add up, or wraps");
  std::partial_sum(fan.begin(), fan.end(), fan.begin());
  producer_off_ = fan;
  producers_.resize(t.sig_counter.size());
  for (int64_t b = 0; b < n; ++b)
    for (int64_t s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s) producers_[fan[t.sig_counter[s]]++] = {int32_t(b), t.sig_amount[s]};
  for (size_t w = 0; w < t.wait_counter.size(); ++w)
    require(in(t.wait_counter[w], t.counters.size()) && (t.wait_e[w] == 0 || t.wait_e[w] == -1) && t.wait_t[w] >= 1 &&
                t.wait_t[w] <= t.counters[t.wait_counter[w]],
            "tables: a wait is damaged");
  for (size_t a = 0; a < t.acc_buffer.size(); ++a)
    require(in(t.acc_buffer[a], t.buffers.size()) && t.acc_raff[a] < int64_t(t.affine.size()) && t.acc_caff[a] < int64_t(t.affine.size()) &&
                std::max({t.acc_r0[a], t.acc_r1[a], t.acc_c0[a], t.acc_c1[a]}) < kMaxElement &&
                std::min({t.acc_r0[a], t.acc_r1[a], t.acc_c0[a], t.acc_c1[a]}) > -kMaxElement,
            "tables: an access is damaged");
  for (const auto& b : t.buffers)
    require(in(b.pool, t.pools.size()) && b.rows > 0 && b.cols > 0 && b.bits > 0 && b.offset >= 0 && b.offset < (int64_t{1} << 60) &&
                Wide(b.rows) * b.cols * b.bits < (Wide(1) << 60),
            "tables: a buffer is damaged");
  auto size = [](Wide v) { return v < 0 ? -v : v; };
  auto reach = [&](int64_t base, int64_t var, int64_t stride) {
    const Wide v = var < 0 ? Wide(0) : std::max(size(t.variables[var].min), size(t.variables[var].max));
    return size(base) + v + size(stride) * (t.steps - 1);
  };
  for (const auto& a : t.affine)
    require(a.var >= -1 && a.length_var >= -1 && a.var < int64_t(t.variables.size()) && a.length_var < int64_t(t.variables.size()) && a.mod >= 0 &&
                (a.mod || reach(a.add, a.var, a.stride) < kMaxReach) && reach(a.length, a.length_var, a.length_stride) < kMaxReach,
            "tables: an affine range is damaged");
}

void Checker::replay() {
  require(z.replay.size() == size_t(n), "certificate: replay does not list every task once");
  rank_.assign(size_t(n), -1);
  std::vector<int64_t> head(size_t(Q), 0), count(t.counters.size(), 0);
  for (int64_t k = 0; k < n; ++k) {
    const int32_t b = z.replay[k];
    require(in(b, rank_.size()) && rank_[b] < 0 && pos_[b] == head[queue_[b]], "certificate: replay leaves the order of a queue");
    for (int64_t w = t.wait_off[b]; w < t.wait_off[b + 1]; ++w)
      if (t.wait_e[w] == 0 && count[t.wait_counter[w]] < t.wait_t[w]) {
        error("certificate: replay stops at task " + num(b) + ", which waits for counter " + num(t.wait_counter[w]));
        throw Bad{};
      }
    for (int64_t s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s) count[t.sig_counter[s]] += t.sig_amount[s];
    ++head[queue_[b]];
    rank_[b] = int32_t(k);
  }
}

}  // namespace checker

std::vector<std::string> check_certificate(const Tables& tables, const CertificateView& certificate) {
  if (certificate.row_off.empty()) return {"certificate: the clock table is cut off"};
  checker::Checker c(tables, certificate);
  c.run();
  return c.errors;
}

}  // namespace amk
