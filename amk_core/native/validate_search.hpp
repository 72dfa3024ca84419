// The state of the search for clocks, which its two parts share.
#pragma once
#include "validate_rows.hpp"

namespace amk::validate {

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
  Clocks solve();

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
  Value plus(i64 step, i32 task) const { return {row_of(step * m.n + task), m.queue_of[task], end_of(step, task)}; }
  i64 work(i32 counter) const { return (made_off_[counter + 1] - made_off_[counter]) * reps() * q; }
  // Keeps the entries of the queues in `bits`.
  void mask(i32* v, const std::vector<uint64_t>& table, i64 k) const {
    if (all_connected_) return;
    for (i32 r = 0; r < q; ++r)
      if (!knows(&table[k * words_], r)) v[r] = kNever;
  }
  // v = min(v, value)
  void lower(i32* v, const Value& x) const {
    const i32 own = std::min(v[x.queue], x.own);
    lower_row(v, rows_.at(x.row), q);
    v[x.queue] = own;
  }
  static bool knows(const uint64_t* bits, i32 r) { return bits[r / 64] >> (r % 64) & 1; }

  // validate_thresholds.cpp
  bool prepare();
  void list_thresholds();
  void list_producers();
  void find_needs();
  bool start();

  // validate_search.cpp
  Clocks give_up();
  bool round();
  bool unmoved(i32 b, i64 x, i64 pred, i64 job);
  i32 clock(i32 b, i64 x, i64 pred, i64 job);
  i32 wrapped(i32 k);
  Value granted(i32 job, bool before);
  void evaluate(Threshold& t);
  void move(Threshold& t, const Value& to);
  void signal(i64 step, i32 task, i64 instance, i32 counter, i64 amount);
  bool bound(i32* v, const Threshold& t) const;
  void raise(i32* v, const Value& x) const;
  i32 step_back(const Value& x, i32 forget);
  void compact();
  void be_exact(i64 most);
  Clocks stop_drift();
  bool settle();
  void doubt(i32 k);
};

}  // namespace amk::validate
