// Must-order as vector clocks: the greatest fixpoint of the local rule of certificate.py, found from above.
//
// One round evaluates all tasks in replay order.  A wait for `tau` is granted the largest clock of the producers that brought its
// counter to tau in the replay: never too little, and exact where the other producers are behind none of them.  When nothing moves
// any more, `settle` looks whether that is so; a threshold of which it is not is evaluated exactly from then on, and the rounds go on.
//
// The entry of a row for the task's own queue is not used (it is implied by the position), which lets all queues behind one barrier
// share a row.
#include <algorithm>
#include <numeric>
#include <utility>

#include "validate_rows.hpp"

namespace amk::validate {
namespace {

constexpr i64 kMaxQueues = 1 << 12;      // of periodic clocks, whose independence is cubic in them: four times what a target has
constexpr int kMaxRounds = 256;          // 24 sufficed for 49 000 random loops
constexpr int kBoundRounds = 32;         // then bounds give way to exact grants, where those are cheap
constexpr i64 kEagerWork = 1 << 20;      // producers times queues up to which a doubtful threshold is evaluated exactly at once

// A clock: a row in which the entry of one queue is replaced (what a producer's end grants).
struct Value {
  i32 row = -1, queue = -1, own = 0;
  bool operator==(const Value&) const = default;
};

struct Threshold {
  i32 counter = -1;
  i64 tau = 0;
  Value now;            // what reaching it grants
  i32 before = -1;      // periodic: what having reached it in the step before grants
  Value before_of;      // the clock `before` was made of
  bool asked_before = false;
  bool doubtful = false;  // `now` is a bound, perhaps more than is granted
  bool exact = false;
  i64 moved = 0;    // when `now` last changed
  i64 looked = -1;  // exact: when `now` was last up to date
};

struct Feed {  // a counter in the current round
  i64 weight = 0;
  i32 next = 0;          // threshold
  i32 slot = -1;         // of the accumulator
};

class Search {
 public:
  Search(const Model& model, const Run& r, i64 u) : m(model), run(r), unroll(u), q(model.q), rows_(c, model.q) {
    c.unroll = u, c.n = m.n, c.q = q, c.m = &m;
  }

  Clocks solve() {
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

 private:
  const Model& m;
  const Run& run;
  Clocks c;
  const i64 unroll;
  const i32 q;
  Rows rows_;
  std::vector<Threshold> thresholds_;
  std::vector<i32> threshold_off_;       // per counter
  std::vector<i32> job_;                 // per step and wait: threshold, -1: holds trivially
  std::vector<i64> made_off_;            // per counter: producers in replay order (of one step)
  std::vector<i32> made_by_;
  std::vector<i64> made_amount_;
  std::vector<i32> single_;              // per counter: the queue of all producers, -1: several
  std::vector<i32> most_;                // periodic, per counter with several: the largest clock of its producers, a row
  std::vector<i32> floor_;               // periodic: lowest()
  std::vector<uint64_t> needs_, common_; // per queue, per counter: which queues there are clocks for
  i64 words_ = 0;
  bool all_connected_ = true, overflow_ = false;
  std::vector<Feed> feed_;
  std::vector<std::vector<i32>> slots_;  // accumulators
  std::vector<i32> free_slots_;
  std::vector<i32> wrap_, wrap_of_;      // per queue: the clock of its last task, a step back
  std::vector<i64> tick_;                // per instance: when its row last changed; 0: it knows nothing
  std::vector<i64> evaluated_;           // per instance: when that was last looked at; 0: never
  i64 now_ = 1;
  Picks pick_;
  std::vector<i32> scratch_;
  std::vector<Value> operands_;
  std::vector<char> moving_;             // per queue: whether its column moved; empty where nobody asks

  i64 reps() const { return unroll ? unroll : 1; }
  i32 none() const { return unroll ? 0 : kNever; }
  i32 row_of(i64 instance) const { return i32(c.row[instance] / q); }
  i32 end_of(i64 step, i32 task) const { return i32(unroll ? step : 0) * m.len[m.queue_of[task]] + m.pos_of[task] + 1; }

  Clocks give_up() {
    c.clipped = true;
    c.value.assign(q, none());
    c.row.assign(reps() * m.n, 0);
    return std::move(c);
  }

  bool prepare() {
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
  void list_thresholds() {
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

  void list_producers() {
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
  void find_needs() {
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
  static bool knows(const uint64_t* bits, i32 r) { return bits[r / 64] >> (r % 64) & 1; }

  // Keeps the entries of the queues in `bits`.
  void mask(i32* v, const std::vector<uint64_t>& table, i64 k) const {
    if (all_connected_) return;
    for (i32 r = 0; r < q; ++r)
      if (!knows(&table[k * words_], r)) v[r] = kNever;
  }

  // What is known from the step before, at first: no more than had run when the greedy run got there.
  bool start() {
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

  // v = max(v, value)
  void raise(i32* v, const Value& x) const {
    if (x.queue < 0) return raise_row(v, rows_.at(x.row), q);
    const i32 own = std::max(v[x.queue], x.own);
    raise_row(v, rows_.at(x.row), q);
    v[x.queue] = own;
  }

  // v = min(v, value)
  void lower(i32* v, const Value& x) const {
    const i32 own = std::min(v[x.queue], x.own);
    lower_row(v, rows_.at(x.row), q);
    v[x.queue] = own;
  }

  // The clock of a step earlier.
  i32 step_back(const Value& x, i32 forget) {
    i32* v = rows_.fresh();
    const i32* w = rows_.at(x.row);
    for (i32 r = 0; r < q; ++r) v[r] = w[r] - m.len[r] < floor_[r] ? kNever : w[r] - m.len[r];
    if (x.queue >= 0) v[x.queue] = x.own - m.len[x.queue];
    if (forget >= 0) v[forget] = kNever;
    return rows_.commit();
  }

  Value granted(i32 job, bool before) {
    Threshold& t = thresholds_[job];
    if (!before) return t.now;
    if (!(t.before_of == t.now)) t.before_of = t.now, t.before = step_back(t.now, -1);
    return {t.before};
  }

  void evaluate(Threshold& t) {
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

  void move(Threshold& t, const Value& to) {
    if (!(t.now == to)) t.now = to, t.moved = ++now_;
  }

  // A signal of an instance: the thresholds that it reaches.
  void signal(i64 step, i32 task, i64 instance, i32 counter, i64 amount) {
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
  bool bound(i32* v, const Threshold& t) const {
    const i32* hi = rows_.at(most_[t.counter]);
    i32 low = 0;
    for (i32 r = 0; r < q; ++r) {
      const i32 here = (v[r] > kNever) & (hi[r] - v[r] > m.len[r]);
      low |= here, v[r] = here ? 0 : v[r];
    }
    if (low && t.now.row >= 0) lower_row(v, rows_.at(t.now.row), q);
    return low;
  }

  bool round() {
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
  bool unmoved(i32 b, i64 x, i64 pred, i64 job) {
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
  i32 clock(i32 b, i64 x, i64 pred, i64 job) {
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

  i32 wrapped(i32 k) {
    const i32 end = m.t.queue_task[m.t.queue_off[k] + m.len[k] - 1];
    if (tick_[end] && wrap_of_[k] != row_of(end)) wrap_of_[k] = row_of(end), wrap_[k] = step_back({row_of(end)}, k);
    return wrap_[k];
  }

  // Drops the rows of earlier rounds.
  void compact() {
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
  bool settle() {
    bool ok = true;
    for (i32 k = 0; k < i32(m.total.size()); ++k) doubt(k);
    for (Threshold& t : thresholds_)
      if (t.doubtful && !t.exact) t.exact = true, ok = false;
    return ok;
  }

  // Producers beyond a threshold must be behind nothing that it grants; periodic: those up to it within a step of that.
  void doubt(i32 k) {
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

  Value plus(i64 step, i32 task) const { return {row_of(step * m.n + task), m.queue_of[task], end_of(step, task)}; }

  i64 work(i32 counter) const { return (made_off_[counter + 1] - made_off_[counter]) * reps() * q; }

  void be_exact(i64 most) {
    for (Threshold& t : thresholds_) t.exact |= work(t.counter) <= most;
  }

  // Columns are independent: those that still move are given up as a whole, which keeps the table a valid certificate.
  Clocks stop_drift() {
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
};

}  // namespace

Clocks periodic_clocks(const Model& m, const Run& run) { return Search(m, run, 0).solve(); }
Clocks unrolled_clocks(const Model& m, const Run& run, i64 steps) { return Search(m, run, steps).solve(); }

}  // namespace amk::validate
