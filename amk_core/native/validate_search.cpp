// Must-order as vector clocks: the greatest fixpoint of the local rule of certificate.py, found from above.
//
// One round evaluates all tasks in replay order.  A wait for `tau` is granted the largest clock of the producers that brought its
// counter to tau in the replay: never too little, and exact where the other producers are behind none of them.  When nothing moves
// any more, `settle` looks whether that is so; a threshold of which it is not is evaluated exactly from then on, and the rounds go on.
//
// The entry of a row for the task's own queue is not used (it is implied by the position), which lets all queues behind one barrier
// share a row.
#include <algorithm>
#include <utility>

#include "validate_search.hpp"

namespace amk::validate {
namespace {

constexpr int kMaxRounds = 256;          // 24 sufficed for 49 000 random loops
constexpr int kBoundRounds = 32;         // then bounds give way to exact grants, where those are cheap
constexpr i64 kEagerWork = 1 << 20;      // producers times queues up to which a doubtful threshold is evaluated exactly at once

}  // namespace

Clocks Search::solve() {
  if (m.n == 0) return std::move(c);
  if (!prepare()) return give_up();
  for (int rounds = 1; rounds <= kMaxRounds; ++rounds) {
    if (rounds == kBoundRounds) be_exact(kEagerWork);
    const bool moved = round();
    if (overflow_) return give_up();
    if (!moved && settle()) return std::move(c);
  }
  return stop_drift();
}

Clocks Search::give_up() {
  c.clipped = true;
  c.value.assign(q, none());
  c.row.assign(reps() * m.n, 0);
  return std::move(c);
}

// v = max(v, value)
void Search::raise(i32* v, const Value& x) const {
  if (x.queue < 0) return raise_row(v, rows_.at(x.row), q);
  const i32 own = std::max(v[x.queue], x.own);
  raise_row(v, rows_.at(x.row), q);
  v[x.queue] = own;
}

// The clock of a step earlier.
i32 Search::step_back(const Value& x, i32 forget) {
  i32* v = rows_.fresh();
  const i32* w = rows_.at(x.row);
  for (i32 r = 0; r < q; ++r) v[r] = w[r] - m.len[r] < floor_[r] ? kNever : w[r] - m.len[r];
  if (x.queue >= 0) v[x.queue] = x.own - m.len[x.queue];
  if (forget >= 0) v[forget] = kNever;
  return rows_.commit();
}

Value Search::granted(i32 job, bool before) {
  Threshold& t = thresholds_[job];
  if (!before) return t.now;
  if (!(t.before_of == t.now)) t.before_of = t.now, t.before = step_back(t.now, -1);
  return {t.before};
}

void Search::evaluate(Threshold& t) {
  const i64 since = std::exchange(t.looked, now_);
  if (since == now_) return;
  i64 latest = 0;
  for (i64 i = 0; i < reps(); ++i)
    for (i64 p = made_off_[t.counter]; p < made_off_[t.counter + 1]; ++p) latest = std::max(latest, tick_[i * m.n + made_by_[p]]);
  if (since >= latest) return;
  grants(m, run, c, t.counter, t.tau, scratch_, pick_);
  std::copy(scratch_.begin(), scratch_.end(), rows_.fresh());
  move(t, {rows_.commit()});
}

void Search::move(Threshold& t, const Value& to) {
  if (!(t.now == to)) t.now = to, t.moved = ++now_;
}

// A signal of an instance: the thresholds that it reaches.
void Search::signal(i64 step, i32 task, i64 instance, i32 counter, i64 amount) {
  Feed& f = feed_[counter];
  const i32 first = threshold_off_[counter], end = threshold_off_[counter + 1];
  const Value done{row_of(instance), m.queue_of[task], end_of(step, task)};
  f.weight += amount;
  if (single_[counter] >= 0) {  // its clocks only grow
    for (; f.next < end && thresholds_[f.next].tau <= f.weight; ++f.next)
      if (Threshold& t = thresholds_[f.next]; !t.exact) move(t, done);
    return;
  }
  const bool partial = !unroll && first < end && thresholds_[first].tau < m.total[counter];
  if (f.next == end && !partial) return;
  if (f.slot < 0) {
    if (free_slots_.empty()) free_slots_.push_back(i32(slots_.size())), slots_.emplace_back(q);
    f.slot = free_slots_.back(), free_slots_.pop_back();
    std::fill(slots_[f.slot].begin(), slots_[f.slot].end(), none());
  }
  const std::vector<i32>& sum = slots_[f.slot];
  raise(slots_[f.slot].data(), done);
  for (; f.next < end && thresholds_[f.next].tau <= f.weight; ++f.next) {
    Threshold& t = thresholds_[f.next];
    if (t.exact) continue;
    i32* v = rows_.fresh();
    std::copy(sum.begin(), sum.end(), v);
    mask(v, common_, counter);
    const bool raised = partial && t.tau < m.total[counter] && bound(v, t);
    t.doubtful = raised || t.tau != f.weight;
    move(t, {rows_.commit()});
  }
  if (partial && f.weight == m.total[counter]) {
    std::copy(sum.begin(), sum.end(), rows_.fresh());
    most_[counter] = rows_.commit();
  }
  if (partial ? f.weight == m.total[counter] : f.next == end) free_slots_.push_back(f.slot), f.slot = -1;
}

// Periodic: a clock of the step before (negative) is no bound where some producer may be more than a step beyond it.  Zero is one,
// and so is what was a bound before.
bool Search::bound(i32* v, const Threshold& t) const {
  const i32* hi = rows_.at(most_[t.counter]);
  i32 low = 0;
  for (i32 r = 0; r < q; ++r) {
    const i32 here = (v[r] > kNever) & (hi[r] - v[r] > m.len[r]);
    low |= here, v[r] = here ? 0 : v[r];
  }
  if (low && t.now.row >= 0) lower_row(v, rows_.at(t.now.row), q);
  return low;
}

bool Search::round() {
  bool any = false;
  feed_.assign(m.total.size(), {});
  for (size_t k = 0; k < feed_.size(); ++k) feed_[k].next = threshold_off_[k];
  slots_.clear(), free_slots_.clear();
  std::vector<i64> last(q, -1);
  const i64 waits = i64(m.t.wait_counter.size());
  for (i64 i = 0; i < reps(); ++i)
    for (i32 b : run.order) {
      const i64 x = i * m.n + b;
      const i32 k = m.queue_of[b];
      const i32 id = clock(b, x, last[k], i * waits);
      last[k] = x;
      if (id != row_of(x)) {
        for (size_t r = 0; r < moving_.size(); ++r) moving_[r] |= rows_.at(id)[r] != rows_.at(row_of(x))[r];
        c.row[x] = i64{id} * q, tick_[x] = ++now_, any = true;
      }
      for (i64 s = m.t.sig_off[b]; s < m.t.sig_off[b + 1]; ++s) signal(i, b, x, m.t.sig_counter[s], m.t.sig_amount[s]);
      if (rows_.size() * q > kMaxCells) compact();
      if (overflow_) return any;
    }
  if (rows_.size() >= rows_.kept() * 2 + 4096) compact();
  return any;
}

// Whether all that the clock of an instance is made of is as it was when it was last looked at.
bool Search::unmoved(i32 b, i64 x, i64 pred, i64 job) {
  const i32 k = m.queue_of[b];
  if (pred < 0 && !unroll) pred = m.t.queue_task[m.t.queue_off[k] + m.len[k] - 1];
  bool same = evaluated_[x] > 0 && (pred < 0 || tick_[pred] <= evaluated_[x]);
  for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w)
    if (job_[job + w] >= 0) {
      Threshold& t = thresholds_[job_[job + w]];
      if (t.exact) evaluate(t);
      same &= t.moved <= evaluated_[x];
    }
  return same;
}

// The clock of one instance from that of the task before it and from its waits.
i32 Search::clock(i32 b, i64 x, i64 pred, i64 job) {
  const i32 k = m.queue_of[b];
  if (unmoved(b, x, pred, job)) return row_of(x);
  evaluated_[x] = now_;
  i32 from = 0;
  if (pred >= 0)
    from = row_of(pred);
  else if (!unroll)
    from = wrapped(k);
  operands_.clear();
  for (i64 w = m.t.wait_off[b]; w < m.t.wait_off[b + 1]; ++w)
    if (job_[job + w] >= 0) {
      const Value v = granted(job_[job + w], !unroll && m.t.wait_e[w] == -1);
      if (v.queue >= 0 || v.row != from) operands_.push_back(v);
    }
  if (operands_.empty()) return from;
  const bool plain = operands_.size() == 1 && operands_[0].queue < 0;
  if (plain) {
    if (from == 0) return operands_[0].row;
    if (const i32 known = rows_.joined(from, operands_[0].row); known >= 0) return known;
  }
  i32* v = rows_.fresh();
  std::copy_n(rows_.at(from), q, v);
  for (const Value& o : operands_) raise(v, o);
  const i32 id = rows_.commit();
  if (plain) rows_.remember(from, operands_[0].row, id);
  return id;
}

i32 Search::wrapped(i32 k) {
  const i32 end = m.t.queue_task[m.t.queue_off[k] + m.len[k] - 1];
  if (tick_[end] && wrap_of_[k] != row_of(end)) wrap_of_[k] = row_of(end), wrap_[k] = step_back({row_of(end)}, k);
  return wrap_[k];
}

// Drops the rows of earlier rounds.
void Search::compact() {
  std::vector<i32> to(rows_.size(), -1);
  to[0] = 0;
  auto use = [&](i32& row) {
    if (row >= 0) to[row] = 0;
  };
  auto each = [&](auto f) {
    for (Threshold& t : thresholds_) f(t.now.row), f(t.before), f(t.before_of.row);
    for (i32& row : wrap_) f(row);
    for (i32& row : wrap_of_) f(row);
    for (i32& row : most_) f(row);
  };
  each(use);
  for (i64 row : c.row) to[row / q] = 0;
  rows_.compact(to);
  each([&](i32& row) {
    if (row >= 0) row = to[row];
  });
  for (i64& row : c.row) row = i64{to[row / q]} * q;
  overflow_ = rows_.size() * q > kMaxCells / 8 * 7;
}

// Is what the thresholds grant what the local rule grants?  Those of which it may be less become exact; true: there were none.
bool Search::settle() {
  bool ok = true;
  for (i32 k = 0; k < i32(m.total.size()); ++k) doubt(k);
  for (Threshold& t : thresholds_)
    if (t.doubtful && !t.exact) t.exact = true, ok = false;
  return ok;
}

// Producers beyond a threshold must be behind nothing that it grants; periodic: those up to it within a step of that.
void Search::doubt(i32 k) {
  const i32 first = threshold_off_[k], end = threshold_off_[k + 1];
  const i64 from = made_off_[k], count = made_off_[k + 1] - from, all = count * reps();
  std::vector<i64> upto;  // producers that reach each threshold
  i64 weight = 0;
  for (i64 p = 0; p < all; ++p)
    for (weight += made_amount_[from + p % count]; first + i32(upto.size()) < end && thresholds_[first + upto.size()].tau <= weight;) upto.push_back(p + 1);
  std::vector<i32> least(q, INT32_MAX);
  auto add = [&](i64 p) { lower(least.data(), plus(p / count, made_by_[from + p % count])); };
  auto check = [&](size_t at, i32 slack) {  // slack: in steps
    const i32* v = rows_.at(thresholds_[first + at].now.row);
    i32 bad = 0;
    for (i32 r = 0; r < q; ++r) bad |= least[r] < v[r] - slack * m.len[r];
    if (bad) thresholds_[first + at].doubtful = true;
  };
  i64 p = 0;
  for (size_t at = 0; at < upto.size() && !unroll; ++at) {
    for (; p < upto[at]; ++p) add(p);
    check(at, 1);
  }
  std::fill(least.begin(), least.end(), INT32_MAX);
  p = all;
  for (size_t at = upto.size(); at-- > 0;) {
    for (; p > upto[at]; --p) add(p - 1);
    check(at, 0);
  }
}

void Search::be_exact(i64 most) {
  for (Threshold& t : thresholds_) t.exact |= work(t.counter) <= most;
}

// Columns are independent: those that still move are given up as a whole, which keeps the table a valid certificate.
Clocks Search::stop_drift() {
  be_exact(INT64_MAX);
  for (int k = 0; k <= kBoundRounds; ++k) {
    moving_.assign(q, 0);
    const bool moved = round();
    if (overflow_) return give_up();
    if (!moved) return std::move(c);
  }
  c.clipped = true;
  for (size_t k = 0; k < c.value.size(); ++k)
    if (moving_[k % q]) c.value[k] = none();
  return std::move(c);
}

Clocks periodic_clocks(const Model& m, const Run& run) { return Search(m, run, 0).solve(); }
Clocks unrolled_clocks(const Model& m, const Run& run, i64 steps) { return Search(m, run, steps).solve(); }

}  // namespace amk::validate
