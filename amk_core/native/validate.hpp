// The schedule validator: shared types of its parts.  The rules and their meaning are in docs/schedule_ir.md.
//
//   validate_model.cpp     REF and COUNT; queues, producers, distinct rectangles; everything later trusts what passed here
//   validate_live.cpp      the greedy run: LIVE, the replay order, witnesses
//   validate_search.cpp    must-order as vector clocks: periodic, or written out over some steps
//   validate_thresholds.cpp  what is waited for, and who brings it
//   validate_rows.cpp      clock rows, each kept once
//   validate_clocks.cpp    what clocks say
//   validate_affine.cpp    ranges that move with the step and with launch variables
//   validate_geometry.cpp  rectangles of a group of aliasing buffers -> cells
//   validate_overlap.cpp   overlap of rectangles of different buffers
//   validate_bundle.cpp    reads of a broadcast, many at a time
//   validate_scan.cpp      RACE, COVER, FLOW, PROXY cell by cell
//   validate_moving.cpp    the same rules where ranges move
//   validate_tags.cpp      TAG
//   validate_outputs.cpp   what the host finds
//   validate_rules.cpp     RO, STOP, reach, and the order of all rules
//   validate.cpp           the order of things and the certificate
//   bind_validate.cpp      the Python binding
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tables.hpp"

namespace amk::validate {

using i32 = int32_t;
using i64 = int64_t;
using i128 = __int128;

enum Rule { kRef, kCount, kLive, kRace, kTag, kCover, kFlow, kRo, kStop, kProxy, kRules };
inline constexpr const char* kRuleNames[kRules] = {"REF", "COUNT", "LIVE", "RACE", "TAG", "COVER", "FLOW", "RO", "STOP", "PROXY"};
inline constexpr i64 kMaxPerRule = 20;        // findings kept per rule; the rest are counted
inline constexpr i64 kMaxAddress = i64{1} << 60;  // bytes; above it no arithmetic of this file is done

struct Finding {
  Rule rule = kRef;
  std::string what;  // a short code, for example "RAW"; the Python side words it
  bool undecided = false;
  bool meet = true, moves = false;  // RACE: the accesses are known to meet in these steps; another step may be another place
  i64 task_a = -1, task_b = -1, step_a = 0, step_b = 0;
  i64 buffer = -1, lo = 0, hi = 0;  // bytes inside the buffer
  i64 counter = -1, need = 0, have = 0;
  std::vector<i64> chain;  // LIVE: flattened (queue, position, task, counter, need, have) of the blocked heads
};

struct Report {
  std::vector<Finding> findings;
  std::array<i64, kRules> count{};
  void add(Finding f) {
    if (count[f.rule]++ < kMaxPerRule) findings.push_back(std::move(f));
  }
  bool empty() const { return findings.empty(); }
};

// A range of rows or columns: [a, b), or (aff >= 0) row `aff` of Model::affine.
struct Range {
  i64 a = 0, b = 0;
  i32 aff = -1;
  bool operator==(const Range&) const = default;
};
struct Rect {
  i32 buffer = -1;
  i32 space = -1;  // the queue, for a per-queue pool
  Range rows, cols;
  bool operator==(const Rect&) const = default;
  bool moves() const { return rows.aff >= 0 || cols.aff >= 0; }
};

struct Access {
  i32 task = -1, rect = -1, flags = 0, label = -1;
  bool write() const { return flags & kWrite; }
  bool maybe() const { return flags & kMaybe; }
};

struct Model {
  explicit Model(const Tables& tables) : t(tables) {}
  const Tables& t;
  i64 steps = 1;
  i32 n = 0, q = 0;
  std::vector<i32> queue_of, pos_of, len;        // per task, per task, per queue
  std::vector<i64> total;                        // N_c
  std::vector<i64> prod_off;                     // producers of each counter
  std::vector<i32> prod_task;
  std::vector<i64> prod_amount;
  std::vector<AffineRow> affine;                 // normalised and distinct
  std::vector<Rect> rects;                       // distinct
  std::vector<Access> acc;                       // non-empty accesses, by task; reads of a task before its writes
  std::vector<i64> acc_off;                      // per task
  std::vector<i32> init;                         // rects
  std::vector<i32> group_of;                     // per buffer: aliasing buffers share a group
  std::vector<char> readonly_;                   // per buffer
  mutable i64 meetings = 0;                      // spent on the question where ranges meet

  bool load(Report&);  // REF and COUNT; false: stop here
  i64 pitch(i32 buffer) const { return t.buffers[buffer].cols * (t.buffers[buffer].bits / 4); }  // nibbles
  i64 unit(i32 buffer) const { return t.buffers[buffer].bits / 4; }                               // nibbles
  bool step_lifetime(i32 buffer) const { return t.buffers[buffer].lifetime == kStep; }
  std::pair<i64, i64> bounds(const Range& r) const;  // over all steps and values

 private:
  bool references(Report&);
  i64 part_bytes(i64 pool) const;
  bool in_reach(i32 task, i64 buffer) const;
  bool counts(Report&);
  void accesses(Report&);
  struct Problem {
    const char* what = nullptr;
    bool undecided = false;
  };
  std::optional<Range> range(i64 a, i64 b, i32 aff, i64 limit, Problem& problem);
  bool ends_inside(const AffineRow& r, i64 limit, bool& too_many) const;
  std::map<std::array<i64, 7>, i32> affine_index_;
};

// ---- live
struct Run {
  std::vector<i32> order;      // tasks of one step in the order they ran
  std::vector<i32> index;      // per task: position in `order`, -1: never ran
  std::vector<i32> head;       // per queue: tasks completed
  std::vector<i64> count;      // per counter
  bool complete = false;
};
struct TagWaits {              // reader task -> virtual counters; a virtual counter is complete when all its writers ran
  std::vector<std::vector<i32>> of_task, signalled_by;
  std::vector<i32> need;
};
TagWaits tag_waits(const Model&);
Run greedy(const Model&, const TagWaits&);
void deadlock(const Model&, const TagWaits&, const Run&, Report&);
// Runs so many steps of everything except a (step ia) and b (step ib); true when both are enabled in the end.
bool withheld(const Model&, i32 a, i64 ia, i32 b, i64 ib, i64 steps, std::vector<i64>& completed, std::vector<i64>& count);

// ---- clocks
struct Clocks {
  i64 unroll = 0;  // 0: periodic
  i32 n = 0, q = 0;
  std::vector<i32> value;   // [rows, q]
  std::vector<i64> row;     // per instance: offset into value
  bool clipped = false;     // some column gave up: what is unordered there is undecided
  const Model* m = nullptr;
  // a of step i is certainly complete when b of step j starts (i <= j; the caller knows that b does not come first)
  bool ordered(i32 a, i64 i, i32 b, i64 j) const {
    const i32 qa = m->queue_of[a], qb = m->queue_of[b];
    if (qa == qb) return i < j || (i == j && m->pos_of[a] <= m->pos_of[b]);
    if (unroll) return value[row[j * n + b] + qa] >= i * m->len[qa] + m->pos_of[a] + 1;
    return i64{value[row[b] + qa]} + (j - i) * m->len[qa] >= m->pos_of[a] + 1;
  }
  // what queue r has completed when b of step i has ended
  i32 plus(i64 i, i32 b, i32 r) const {
    if (m->queue_of[b] != r) return value[row[unroll ? i * n + b : b] + r];
    return i32(unroll ? i : 0) * m->len[r] + m->pos_of[b] + 1;
  }
  // a of step i is certainly complete when b, the first task of its queue, has its waits of the step before left behind in step i + 1;
  // those on its own step say nothing of step i that it did not wait for in that step.  Periodic: i is 0
  bool decided(const Run&, i32 a, i64 i, i32 b) const;
  // periodic, of two tasks: least k >= 0 with a(i - k) ordered before b(i) for every i, or -1
  i64 lag(i32 a, i32 b) const;
};
inline constexpr i32 kNever = -(1 << 30);  // minus infinity
Clocks periodic_clocks(const Model&, const Run&);
Clocks unrolled_clocks(const Model&, const Run&, i64 steps);
i64 affordable_steps(const Model&);

// ---- moving ranges
struct Meet {
  bool any = false;    // some step and some values overlap
  bool exact = true;   // `k` is the least distance; otherwise it is a safe lower bound
  i64 k = 0, i = 0;    // x of step i meets y of step i + k
};
// The least k >= k_min such that x(i) and y(i + k) overlap for some i and values of the variables (same buffer).
Meet meet(const Model&, const Rect& x, const Rect& y, i64 k_min);
// Do x(i) and y(i + k) overlap for some values of the variables?  For ranges that stand still, or of which meet() is exact.
bool meet_at(const Model&, const Rect& x, const Rect& y, i64 i, i64 k);
std::pair<i64, i64> range_at(const Model&, const Range&, i64 step, const std::vector<i64>& values);
// An empty range is disjoint from every other one.
inline bool disjoint(std::pair<i64, i64> a, std::pair<i64, i64> b) { return std::max(a.first, b.first) >= std::min(a.second, b.second); }

// ---- geometry
struct Box {
  i64 r0, r1, c0, c1;
  i32 id;  // whatever the caller numbers
};
struct Cell {
  i64 lo, hi;               // nibbles in the pool: the first piece
  std::span<const i32> ids;  // ascending
};
struct Cells {
  std::vector<Cell> cells;
  std::vector<i32> ids;  // what the cells point to
  auto begin() const { return cells.begin(); }
  auto end() const { return cells.end(); }
};
struct Shape {           // a concrete rectangle in elements of its buffer
  i32 buffer;
  i64 r0, r1, c0, c1;
  i32 id;
};
// Cells of the given concrete rectangles (of one group); false: over budget.  outward: round to bytes.
bool cells(const Model&, const std::vector<Shape>&, bool outward, Cells& out);

// ---- overlap
inline constexpr i64 kTagSteps = 64;      // steps written out for rules that look at every one
inline constexpr i64 kAliasValues = 256;  // assignments of the variables written out for moving ranges of different buffers
std::pair<i64, i64> byte_bounds(const Model&, const Rect&);  // nibbles of the pool, rounded to bytes, over all steps and values
void collect_variables(const Model&, const Rect&, std::vector<i64>& vars);
i128 count_assignments(const Model&, const std::vector<i64>& vars);
// f(values) for every assignment of some variables; false: too many, or f gave up.
template <class F>
bool assignments_of(const Model& m, const std::vector<i64>& vars, i64 most, F f) {
  if (count_assignments(m, vars) > most) return false;
  std::vector<i64> values(m.t.variables.size(), 0);
  for (i64 v : vars) values[v] = m.t.variables[v].min;
  while (true) {
    if (!f(values)) return false;
    size_t k = 0;
    while (k < vars.size() && ++values[vars[k]] > m.t.variables[vars[k]].max) values[vars[k]] = m.t.variables[vars[k]].min, ++k;
    if (k == vars.size()) return true;
  }
}

// ---- rules
struct Item {
  i32 acc;
  i32 step;
};
struct Group {
  i32 space = -1;
  std::vector<i32> buffers, rects, init;  // init: rects too
  bool moves = false, writes = false, tagged = false;
};
struct Checker {
  const Model& m;
  const Run& run;
  const Clocks& clocks;
  Report& out;
  i64 horizon;                               // steps that are certainly run: 1 where LIVE failed
  std::vector<std::vector<i32>> acc_of;      // per rect, in replay order
  std::vector<char> written;                 // per rect: by somebody
  std::vector<char> keeps;                   // per task: opaque, or writes what outlives the step
  std::vector<char> elsewhere;               // accesses whose data is decided elsewhere: something that moves may reach them
  std::vector<std::pair<i32, i32>> flow;     // (writer, reader) edges of writers that keep nothing themselves
  std::vector<Group> groups;
  bool need_flow = false;
  bool gave_up = false;                      // some accesses were not looked at: edges of `flow` may be missing
  i32 flow_nodes = 0;                        // nodes of `flow` above the tasks: many readers at once
  void feeds(i32 writer, i32 reader) {
    if (need_flow && !keeps[writer]) flow.push_back({writer, reader});
  }

  Checker(const Model&, const Run&, const Clocks&, Report&, i64 horizon);
  void all();

  void group_static(const Group&);
  struct ScanOptions {
    bool race = true, data = true, second_pass = false, initial = false;
    const std::vector<char>* skip_data = nullptr;  // per access; never none
  };
  void scan(const std::vector<Item>&, const Cell&, const ScanOptions&);
  void group_moving(const Group&);
  bool moved_into(const Group&, i32 rect) const;
  // A value of another name, or the same value through another buffer, than this read wants.
  bool foreign(const Access& w, const Access& read) const {
    return read.label >= 0 && (w.label != read.label || m.rects[w.rect].buffer != m.rects[read.rect].buffer);
  }
  void concrete(const Group&, const std::vector<i32>& wanted);
  bool overlap_at(const Rect& x, const Rect& y, i64 i, i64 j, bool& exact);
  Meet meet_any(const Rect& x, const Rect& y, i64 k_min);
  bool touch(const Rect& x, const Rect& y, bool& exact);
  i64 alias_checks = 0;
  bool covered(const Group&, i32 access, bool& flow_ok);
  void tagged(const Group&);
  bool together(class Bundles&, i32 list, const std::vector<Item>& writers, i64 span, bool initial, std::vector<char>& was_read);
  void readonly();
  void stop();
  void outputs();
  void output_written(i32 buffer, i32 space);
  void output_kept(i32 buffer, i32 space);
  void reach();
  i64 key(i32 acc) const { return i64{run.index[m.acc[acc].task]} << 32 | acc; }  // replay order; a task reads before it writes
  void race(i32 a, i64 ia, i32 b, i64 ib, i64 lo, i64 hi, bool undecided = false);
  void data(Rule, const char* what, i32 acc, i64 step, i32 other, i64 other_step, i64 lo, i64 hi, bool undecided = false);
};

// ---- bundles
struct Bundle {
  i32 list, lo, hi;            // reads [lo, hi) of a list
  size_t low = 0, high = 0;    // [q] each, in the arena
  i32 label = -1, node = -1, fed = -1;
  bool mixed = false, maybe = false, certain = false, async = false;
};
class Bundles {
 public:
  static constexpr size_t kLeast = 8;  // fewer reads are cheaper one by one
  Bundles(Checker&, const std::vector<i32>& rects);
  bool listed(i32 k) const { return !lists_[k].acc.empty(); }           // its reads are in a list
  const std::vector<i32>& writes(i32 k) const { return lists_[k].writes; }
  const std::vector<i32>& reads(i32 k) const { return lists_[k].acc; }
  i32 last(i32 k) const { return lists_[k].index.back(); }  // in the replay
  bool scan(const std::vector<Item>& items, const std::vector<i32>& lists, const Checker::ScanOptions&);
  Bundle& get(i32 list, i32 lo, i32 hi);
  bool after(const Bundle&, i32 a, i64 later) const;
  bool before(const Bundle&, i32 w, i64 later) const;
  void feed(Bundle&, i32 w);

 private:
  struct List {
    std::vector<i32> acc;     // the reads of a rectangle, unless they are few
    std::vector<i32> index;   // their positions in the replay
    std::vector<i32> writes;
  };
  struct Open {
    i32 list, lo, hi, step;
  };
  struct KeyHash {
    size_t operator()(const std::array<i32, 3>& k) const {
      uint64_t h = uint64_t(uint32_t(k[0])) * 0x9E3779B97F4A7C15ull;
      h = (h ^ uint32_t(k[1])) * 0xD6E8FEB86659FD93ull, h = (h ^ (h >> 32) ^ uint32_t(k[2])) * 0x9E3779B97F4A7C15ull;
      return h ^ (h >> 29);
    }
  };
  Checker& c;
  const Model& m;
  std::vector<List> lists_;
  std::vector<Bundle> all_;
  std::vector<i32> arena_;
  std::unordered_map<std::array<i32, 3>, i32, KeyHash> by_key_;
  std::vector<Item> reads_;
  std::vector<Open> open_;
  std::vector<i32> at_;
  void build(Bundle&);
};

// ---- verdict
struct Verdict {
  Report report;
  Run run;
  Clocks clocks;
  bool accepted = false;
  std::vector<std::pair<size_t, std::vector<i64>>> witness;  // finding -> tasks completed by every queue, then both enabled (0 or 1)
};
Verdict decide(const Tables&);
struct Sparse {  // the clock table of a certificate
  std::vector<i32> row, queue, value;
  std::vector<i64> off{0};
};
Sparse sparse(const Clocks&);

}  // namespace amk::validate
