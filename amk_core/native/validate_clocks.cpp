// Must-order as vector clocks: the greatest fixpoint of the local rule of certificate.py, found from above.
//
// A task without waits has the clock of the task before it (its own component apart), so it shares that row.  The component of a row
// for the task's own queue is not used (it is implied by the position), which lets rows of one barrier be equal on all queues.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kMaxCells = i64{1} << 28;     // clock entries held at once
constexpr i64 kUnrolledCells = 40'000'000;  // the same, for clocks written out over steps
constexpr i64 kMaxQueues = 1 << 12;         // of periodic clocks, whose independence is cubic in them: four times what a target has
constexpr i64 kUnrolledTasks = 200'000;
constexpr i64 kUnrolledWork = 100'000'000;
constexpr int kMaxRounds = 256;             // 24 sufficed for 49 000 random loops

struct Job {  // one distinct wait: (counter, threshold, epoch), or with an absolute threshold when unrolled
  i32 counter;
  i64 tau;
  i64 computed = -1, changed = 0;
};

i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// Below this a periodic clock orders nothing in a launch of at most `steps`.
i32 lowest(const Model& m, i32 r) { return i32(std::max<i64>(-(m.steps - 1) * m.len[r], -(1 << 28))); }

using Picks = std::vector<std::pair<i32, i64>>;  // clock, weight

// The largest clock for queue r that a wait grants: count(counter) >= tau (periodic: relative to the step).
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

struct Search {
  const Model& m;
  const Run& run;
  Clocks c;
  const i64 unroll;
  const i32 q;
  std::vector<i64> changed;      // per row: when it last changed
  std::vector<i64> computed;     // per row
  std::vector<i64> owner_row;    // rows by instance order
  std::vector<Job> jobs;
  std::vector<i32> job_value;    // [jobs, q]
  std::vector<std::vector<i32>> waits_of;  // per instance: jobs
  std::vector<i32> floor_;       // periodic: lowest()
  i64 now = 1;
  Picks pick;

  Search(const Model& model, const Run& r, i64 u) : m(model), run(r), unroll(u), q(model.q) {
    c.unroll = u, c.n = m.n, c.q = q, c.m = &m;
  }

  i64 reps() const { return unroll ? unroll : 1; }
  const i32* row(i64 instance) const { return c.value.data() + c.row[instance]; }

  void prepare() {
    const i64 instances = reps() * m.n;
    c.row.assign(instances, -1), waits_of.resize(instances);
    std::map<std::tuple<i32, i64>, i32> index;
    i64 rows = 0;
    std::vector<i64> last(q, -1);
    std::vector<char> owns(instances, 0);
    for (i64 i = 0; i < reps(); ++i)
      for (i32 b : run.order) {
        const i64 x = i * m.n + b;
        for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w) {
          const i32 ctr = m.t.wait_counter[w];
          const i64 step = unroll ? i + m.t.wait_e[w] : m.t.wait_e[w];
          if (unroll && step < 0) continue;
          const i64 tau = step * m.total[ctr] + m.t.wait_t[w];
          const auto [it, fresh] = index.try_emplace({ctr, tau}, i32(jobs.size()));
          if (fresh) jobs.push_back({ctr, tau});
          waits_of[x].push_back(it->second);
        }
        owns[x] = !waits_of[x].empty() || last[m.queue_of[b]] < 0;
        if (owns[x]) ++rows;
        last[m.queue_of[b]] = x;
      }
    if ((rows + i64(jobs.size())) * q > kMaxCells || (!unroll && q > kMaxQueues)) {
      c.clipped = true;
      c.value.assign(q, unroll ? 0 : kNever);
      std::fill(c.row.begin(), c.row.end(), 0);
      jobs.clear();
      return;
    }
    c.value.resize(rows * q);
    job_value.resize(jobs.size() * i64(q));
    changed.assign(rows, 0), computed.assign(rows, -1);
    // Start: how far every queue is when the task starts in the greedy run, an upper bound of any guarantee.
    std::vector<i32> at(q, 0);
    i64 next = 0;
    std::fill(last.begin(), last.end(), -1);
    for (i64 i = 0; i < reps(); ++i)
      for (i32 b : run.order) {
        const i64 x = i * m.n + b;
        const i32 k = m.queue_of[b];
        if (owns[x]) {
          c.row[x] = next;
          std::copy(at.begin(), at.end(), c.value.begin() + next);
          next += q;
        } else {
          c.row[x] = c.row[last[k]];
        }
        last[k] = x;
        ++at[k];
      }
    for (i64 x = 0; x < instances; ++x)
      if (c.row[x] < 0) c.row[x] = 0;  // never reached
    if (!unroll) forget_independent();
  }

  // Periodic: a queue that can run on for ever while r stands still has no clock for r.
  void forget_independent() {
    const i64 words = (q + 63) / 64;
    std::vector<uint64_t> needs(q * words, 0);
    std::vector<uint64_t> prod(m.total.size() * words, 0);
    for (size_t k = 0; k < m.total.size(); ++k)
      for (i64 p = m.prod_off[k]; p < m.prod_off[k + 1]; ++p) {
        const i32 r = m.queue_of[m.prod_task[p]];
        prod[k * words + r / 64] |= uint64_t{1} << (r % 64);
      }
    for (i32 k = 0; k < q; ++k) needs[k * words + k / 64] |= uint64_t{1} << (k % 64);
    for (i32 b = 0; b < m.n; ++b)
      for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w)
        for (i64 j = 0; j < words; ++j) needs[m.queue_of[b] * words + j] |= prod[m.t.wait_counter[w] * words + j];
    for (i32 mid = 0; mid < q; ++mid)
      for (i32 k = 0; k < q; ++k)
        if (needs[k * words + mid / 64] >> (mid % 64) & 1)
          for (i64 j = 0; j < words; ++j) needs[k * words + j] |= needs[mid * words + j];
    floor_.resize(q);
    for (i32 r = 0; r < q; ++r) floor_[r] = lowest(m, r);
    for (i32 b : run.order)
      for (i32 r = 0; r < q; ++r)
        if (!(needs[m.queue_of[b] * words + r / 64] >> (r % 64) & 1)) c.value[c.row[b] + r] = kNever;
  }

  void compute(Job& j, i32* out) {
    const i64 from = m.prod_off[j.counter], to = m.prod_off[j.counter + 1];
    const i64 n = m.total[j.counter];
    const bool full = unroll ? unroll == 1 && j.tau == n : j.tau == n || j.tau == 0;
    if (!full) {
      for (i32 r = 0; r < q; ++r)
        if (m.len[r]) out[r] = grant(m, run, c, j.counter, j.tau, r, pick);
      return;
    }
    // All producers: the largest clock, provided (periodic) that no two of them are more than a step apart.
    std::vector<i32> least(q, INT32_MAX);
    std::fill(out, out + q, INT32_MIN);
    i32* lo = least.data();
    for (i64 p = from; p < to; ++p) {
      const i32 b = m.prod_task[p], own = m.queue_of[b];
      if (run.index[b] < 0) continue;
      const i32* v = row(b);
      const i32 keep_hi = out[own], keep_lo = lo[own];
      for (i32 r = 0; r < q; ++r) {
        out[r] = std::max(out[r], v[r]);
        lo[r] = std::min(lo[r], v[r]);
      }
      out[own] = std::max(keep_hi, m.pos_of[b] + 1), lo[own] = std::min(keep_lo, m.pos_of[b] + 1);
    }
    if (unroll) return;
    for (i32 r = 0; r < q; ++r) {
      if (!m.len[r]) continue;
      if (lo[r] <= kNever)
        out[r] = kNever;
      else if (out[r] - lo[r] > m.len[r])
        out[r] = grant(m, run, c, j.counter, j.tau, r, pick);
      else {
        if (j.tau == 0) out[r] -= m.len[r];
        if (out[r] < floor_[r]) out[r] = kNever;
      }
    }
  }

  i64 stamp(const Job& j) const {
    i64 s = 0;
    for (i64 i = 0; i < reps(); ++i)
      for (i64 p = m.prod_off[j.counter]; p < m.prod_off[j.counter + 1]; ++p)
        if (run.index[m.prod_task[p]] >= 0) s = std::max(s, changed[c.row[i * m.n + m.prod_task[p]] / q]);
    return s;
  }

  bool round() {
    bool any = false;
    std::vector<i64> last(q, -1);
    std::vector<i32> fresh(q);
    for (i64 i = 0; i < reps(); ++i)
      for (i32 b : run.order) {
        const i64 x = i * m.n + b;
        const i32 k = m.queue_of[b];
        const i64 before = last[k];
        last[k] = x;
        const bool shares = before >= 0 && c.row[before] == c.row[x];
        if (shares) continue;
        const i64 me = c.row[x] / q;
        // the predecessor: the task before, or (periodic, first of its queue) the last task of the step before
        i64 pred = before;
        bool wrap = false;
        if (pred < 0 && !unroll && m.len[k] == run.head[k]) pred = m.t.queue_task[m.t.queue_off[k] + m.len[k] - 1], wrap = true;
        i64 latest = pred >= 0 ? changed[c.row[pred] / q] : 0;
        for (i32 j : waits_of[x]) {
          Job& job = jobs[j];
          if (job.computed < 0 || stamp(job) >= job.computed) {
            compute(job, job_value.data() + i64{j} * q);
            job.computed = job.changed = ++now;
          }
          latest = std::max(latest, job.changed);
        }
        if (computed[me] >= 0 && latest < computed[me]) continue;
        computed[me] = ++now;
        if (pred < 0)
          std::fill(fresh.begin(), fresh.end(), unroll ? 0 : kNever);
        else {
          const i32* p = row(pred);
          if (!wrap)
            std::copy(p, p + q, fresh.begin());
          else
            for (i32 r = 0; r < q; ++r) fresh[r] = p[r] - m.len[r] < floor_[r] ? kNever : p[r] - m.len[r];
        }
        fresh[k] = unroll ? 0 : kNever;  // implied by the position; kept out of the iteration
        for (i32 j : waits_of[x]) {
          const i32* v = job_value.data() + i64{j} * q;
          for (i32 r = 0; r < q; ++r) fresh[r] = std::max(fresh[r], v[r]);
        }
        i32* mine = c.value.data() + c.row[x];
        i32 moved = 0;
        for (i32 r = 0; r < q; ++r) {
          const i32 v = std::min(mine[r], fresh[r]);
          moved |= v ^ mine[r];
          mine[r] = v;
        }
        if (moved) changed[me] = ++now, any = true;
      }
    return any;
  }

  Clocks solve() {
    prepare();
    if (c.clipped || m.n == 0) return std::move(c);
    std::vector<i32> snapshot;
    for (int r = 0; r < kMaxRounds; ++r)
      if (!round()) return std::move(c);
    // Columns are independent: those that still move are given up as a whole, which keeps the table a valid certificate.
    snapshot = c.value;
    if (round()) {
      c.clipped = true;
      std::vector<char> moving(q, 0);
      for (size_t k = 0; k < snapshot.size(); ++k) moving[k % q] |= snapshot[k] != c.value[k];
      for (size_t k = 0; k < c.value.size(); ++k)
        if (moving[k % q]) c.value[k] = unroll ? 0 : kNever;
    }
    return std::move(c);
  }
};

}  // namespace

i64 Clocks::lag(i32 a, i32 b) const {
  const i32 qa = m->queue_of[a], qb = m->queue_of[b];
  if (qa == qb) return m->pos_of[a] < m->pos_of[b] ? 0 : 1;
  if (unroll) return -1;
  const i64 v = value[row[b] + qa];
  if (v <= kNever) return -1;
  const i64 miss = m->pos_of[a] + 1 - v;
  return miss <= 0 ? 0 : (miss + m->len[qa] - 1) / m->len[qa];
}

bool Clocks::decided(const Run& run, i32 a, i64 i, i32 b) const {
  const i32 qa = m->queue_of[a], qb = m->queue_of[b];
  if (qa == qb) return true;
  const i32 last = m->t.queue_task[m->t.queue_off[qb] + m->len[qb] - 1];
  const i64 need = unroll ? i * m->len[qa] + m->pos_of[a] + 1 : m->pos_of[a] + 1 - m->len[qa];
  if (unroll ? plus(i, last, qa) >= need : plus(0, last, qa) - m->len[qa] >= need) return true;
  Picks pick;
  for (i64 w = m->t.wait_off[b]; w < m->t.wait_off[b + 1]; ++w) {
    if (m->t.wait_e[w] != -1) continue;
    const i32 c = m->t.wait_counter[w];
    const i64 tau = (unroll ? i : -1) * m->total[c] + m->t.wait_t[w];
    if (grant(*m, run, *this, c, tau, qa, pick) >= need) return true;
  }
  return false;
}

Clocks periodic_clocks(const Model& m, const Run& run) { return Search(m, run, 0).solve(); }
Clocks unrolled_clocks(const Model& m, const Run& run, i64 steps) { return Search(m, run, steps).solve(); }

i64 affordable_steps(const Model& m) {
  i64 joins = 1, waits = 1;
  std::map<std::tuple<i32, i64, i32>, i64> distinct;
  for (i32 b = 0; b < m.n; ++b)
    for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w) {
      const i32 c = m.t.wait_counter[w];
      const i64 producers = m.prod_off[c + 1] - m.prod_off[c];
      if (distinct.try_emplace({c, m.t.wait_t[w], m.t.wait_e[w]}, 0).second) joins += producers;
      waits += producers;
    }
  const i64 width = std::max(1, m.q), tasks = std::max(1, m.n);
  i64 u = std::min(kUnrolledTasks / tasks, kUnrolledCells / (tasks * width));
  u = std::min(u, i64(std::sqrt(double(kUnrolledWork) / (double(joins) * double(width) + double(waits)))));
  return std::clamp<i64>(u, 1, m.steps);
}

}  // namespace amk::validate
