// Clock rows, each kept once, and the exact grant of a wait: what the search for clocks is made of.
#pragma once
#include "flat_index.hpp"
#include "validate.hpp"

namespace amk::validate {

inline constexpr i64 kMaxCells = i64{1} << 28;  // clock entries held at once

inline constexpr i64 kLowest = -(1 << 28);  // of a clock: far above kNever

// Below this a periodic clock orders nothing in a launch of at most `steps`.
inline i32 lowest(const Model& m, i32 r) { return i32(std::max(-(m.steps - 1) * m.len[r], kLowest)); }

using Picks = std::vector<std::pair<i32, i64>>;  // clock, weight
// The largest clock for queue r that a wait grants: count(counter) >= tau (periodic: relative to the step).
i32 grant(const Model&, const Run&, const Clocks&, i32 counter, i64 tau, i32 r, Picks&);
// The same for all queues.
void grants(const Model&, const Run&, const Clocks&, i32 counter, i64 tau, std::vector<i32>& out, Picks&);

// Loops over whole rows, compiled for wide registers too where the compiler can choose when the library is loaded.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__)
#define AMK_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AMK_WIDE
#endif
void raise_row(i32* v, const i32* w, i32 q);  // v = max(v, w)
void lower_row(i32* v, const i32* w, i32 q);  // v = min(v, w)
// Like v.reserve(size), for what may be a gigabyte: in small pages it costs more in page faults than in arithmetic.  Huge ones are
// only asked for, so that none of them is no error.
void reserve_large(std::vector<i32>& v, size_t size);

// The rows of a clock table under construction.  Equal rows are one row, so that "unchanged" is "the same number".
class Rows {
 public:
  Rows(Clocks& table, i32 width);
  void reserve(i64 rows) { reserve_large(c.value, size_t(rows) * size_t(q)); }
  const i32* at(i32 row) const { return c.value.data() + i64{row} * q; }
  // Space for a row, valid until the next call; commit() makes it one and returns its number.
  i32* fresh();
  i32 commit();
  // The number of the larger of two rows, entry by entry, if that was remembered; -1: perhaps it was not.
  i32 joined(i32 a, i32 b) const;
  void remember(i32 a, i32 b, i32 larger);
  i64 size() const { return size_; }
  i64 kept() const { return kept_; }  // rows that the last compaction left
  // Drops the rows with to[row] == -1 and sets to[row] to the new number of the others.
  void compact(std::vector<i32>& to);

 private:
  struct Join {
    i32 a = -1, b = -1, row = -1;
  };
  Clocks& c;
  const i32 q;
  std::vector<uint32_t> factor_;
  FlatIndex index_;
  std::vector<Join> joins_;      // direct-mapped
  i64 size_ = 0, kept_ = 0;
  size_t place(i32 a, i32 b) const;
};

}  // namespace amk::validate
