// The state of the certificate checker, whose parts are read in this order; they share nothing with the search.
//
//   checker.cpp            what the numbers name, and the replay of one step
//   checker_clocks.cpp     the local rule of the clocks, and what they order
//   checker_ranges.cpp     at which steps and values two ranges meet
//   checker_conflicts.cpp  an order for every conflict
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checker.hpp"

namespace amk::checker {

using Wide = __int128;
inline constexpr int32_t kNone = INT32_MIN;  // minus infinity
inline constexpr size_t kMaxErrors = 8;
inline constexpr int64_t kExactSteps = 512;  // pairs of steps are enumerated up to here, above bounded by their ends
inline constexpr int64_t kMemo = 1 << 16;    // proofs remembered; a power of two

inline int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : -(-a / b); }

struct Line {  // a range of rows or columns
  bool moves = false;
  AffineRow a{};  // plain: start add, length `length`
  auto key() const { return std::array<int64_t, 8>{moves, a.add, a.var, a.stride, a.mod, a.length, a.length_var, a.length_stride}; }
};

struct Acc {
  int32_t task, buffer;
  bool write;
  Line rows, cols;
  int32_t row_class = -1;
};

struct Bad {};  // thrown after an error that makes the rest meaningless

// The same at a glance, where it is clear: of the producers in replay order the first few bring the counter to the threshold and not
// beyond it; one of them has r at v (`most`), and so have all others (`least`).  Then what is missing at v is less than the threshold.
// Periodic, all have to be within a step of v as well (`all`).
struct Reach {
  const int32_t *most = nullptr, *least = nullptr, *all = nullptr;                // rows, null: nobody
  int32_t queue = -1, most_own = 0, all_own = 0;                  // what replaces the entry of this queue
};

struct Sorted {  // the producers of a counter in replay order
  std::vector<int32_t> task;
  std::vector<int64_t> sum;     // of the signals up to each
  int32_t queue = -1;           // of all of them; -1: several
  bool grows = true;            // one queue: clocks never fall
  std::vector<int64_t> cut;     // several: thresholds, ascending
  std::vector<int32_t> most, least, all;  // rows, per threshold
};

struct Span {
  Wide lo, hi;
};

struct Lags {  // the least distance in steps at which two accesses meet; -1: never
  bool now = false;
  int64_t forward = -1, backward = -1;
};

// Accesses that touch the same bytes in every step, cell by cell in replay order.  Each read must follow the write before it,
// each write the write before it and the reads since; all other conflicts follow, because must-order is transitive.
struct Cell {
  int32_t write = -1;
  int64_t write_step = 0;
  bool open = true;  // no write of the step at hand yet
  std::vector<std::pair<int32_t, int64_t>> readers;
};

class Checker {
 public:
  Checker(const Tables& tables, const CertificateView& certificate) : t(tables), z(certificate) {}
  std::vector<std::string> errors;

  void run();

 private:
  const Tables& t;
  const CertificateView& z;
  int64_t n = 0, Q = 0;
  std::vector<int32_t> queue_, pos_, rank_;
  std::vector<int64_t> len_, total_, producer_off_;
  std::vector<std::pair<int32_t, int64_t>> producers_;  // (task, amount), by counter
  int64_t n_rows = 0;
  std::vector<int32_t> dense_;
  std::vector<int64_t> open_;  // entries of a row that are still to be proved
  std::vector<std::array<int64_t, 4>> proved_ = std::vector<std::array<int64_t, 4>>(kMemo, {-1, 0, 0, 0});
  std::vector<Sorted> sorted_;
  std::unordered_map<uint64_t, Lags> lag_memo_;

  void error(std::string text) {
    if (errors.size() < kMaxErrors) errors.push_back(std::move(text));
  }
  void require(bool ok, const char* text) {
    if (ok) return;
    error(text);
    throw Bad{};
  }
  static bool in(int64_t x, size_t size) { return x >= 0 && x < int64_t(size); }
  static std::string num(int64_t x) { return std::to_string(x); }
  int32_t value(int32_t row, int32_t queue) const {
    if (!dense_.empty()) return dense_[size_t(row) * Q + queue];
    const auto first = z.row_queue.begin() + z.row_off[row], last = z.row_queue.begin() + z.row_off[row + 1];
    const auto it = std::lower_bound(first, last, queue);
    return it != last && *it == queue ? z.row_value[it - z.row_queue.begin()] : kNone;
  }
  // plus of task p in step k; the step matters for written-out clocks only
  int64_t plus(int32_t p, int64_t k, int32_t r) const {
    if (r == queue_[p]) return (z.unroll ? k * len_[r] : 0) + pos_[p] + 1;
    const int32_t v = value(z.row[k * n + p], r);
    return z.unroll && v == kNone ? 0 : v;
  }
  int32_t at(int64_t q, int64_t j) const { return t.queue_task[t.queue_off[q] + j]; }
  const int32_t* row_at(int32_t task) const { return &dense_[size_t(z.row[task]) * Q]; }

  // checker.cpp
  void structure();
  void replay();

  // checker_clocks.cpp
  void clocks();
  void local_rule(int64_t q, int64_t i, int64_t j);
  bool counted(int32_t c, int64_t need, int32_t r, int64_t v) const;
  bool follows(const Reach& reach, int32_t r, int64_t v, int32_t e) const;
  void sort_producers();
  void reach_several(Sorted& o);
  Reach reached(int32_t c, int64_t threshold) const;
  bool ordered(int32_t a, int32_t b, int64_t i, int64_t k) const;
  void need(int32_t a, int32_t b, int64_t i, int64_t k, bool either);

  // checker_ranges.cpp
  Line line(int64_t lo, int64_t hi, int32_t aff) const;
  Span at_step(const AffineRow& a, int64_t i, const std::map<int64_t, int64_t>& v) const;
  template <class F>
  int any_value(std::initializer_list<int64_t> vars, F f) const;
  Wide reach(const AffineRow& from, int64_t fi, const AffineRow& to, int64_t ti) const;
  bool may_meet(const AffineRow& x, const AffineRow& y, int64_t xi, int64_t yi, int64_t last) const;
  bool meet(const AffineRow& x, int64_t i, const AffineRow& y, int64_t j) const;
  bool meet_bytes(const Acc& a, int64_t i, const Acc& b, int64_t j) const;  // different buffers
  std::vector<Span> bytes(const Acc& a, int64_t i, const std::map<int64_t, int64_t>& v) const;
  bool overlap(const Acc& a, int64_t i, const Acc& b, int64_t j) const;
  bool far(const Acc& a, const Acc& b, int64_t k) const;
  static bool alike(const AffineRow& x, const AffineRow& y);
  Lags lags(const Acc& a, const Acc& b) const;
  Lags lags_of(const Acc& a, const Acc& b);

  // checker_conflicts.cpp
  void conflicts();
  void sweep(const std::vector<Acc>& group, bool rectangles);
  void visit(Cell& cell, const Acc& a, int64_t step, bool wrap_only);
  void moving(const std::vector<Acc>& group);
  void tagged(const std::vector<Acc>& reads, const std::vector<Acc>& writes);
};

}  // namespace amk::checker
