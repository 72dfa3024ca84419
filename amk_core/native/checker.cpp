// The certificate checker, whole: structure, replay, clocks, conflicts, in the order in which they are checked.  It is longer than other
// files here on purpose: what has to be trusted is read from top to bottom in one place, and shares nothing with the search.
#include "checker.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <unordered_map>

namespace amk {
namespace {

using Wide = __int128;
constexpr int32_t kNone = INT32_MIN;         // minus infinity
constexpr size_t kMaxErrors = 8;
constexpr int64_t kDenseEntries = 1 << 28;   // above: binary search in the sparse rows
constexpr int64_t kExactValues = 256;        // launch variables are enumerated up to here, above bounded by their ends
constexpr int64_t kExactSteps = 512;         // the same for pairs of steps
constexpr int64_t kMaxCells = 1 << 22;
constexpr int64_t kMaxLag = 1 << 14;         // distances in steps that are tried one by one
constexpr int64_t kMaxElement = int64_t{1} << 61;  // of a plain range
constexpr Wide kMaxReach = Wide(1) << 63;     // of an affine range: an element times the bits of a buffer then fits 128 bits
constexpr int64_t kMaxSteps = int64_t{1} << 31;
constexpr int64_t kMaxUnroll = 1 << 20;      // steps of written-out clocks
constexpr int64_t kMemo = 1 << 16;           // proofs remembered; a power of two
constexpr int64_t kMaxRows = 1 << 16;        // rows of a range whose bytes are told apart; above, all between the first and the last is taken

int64_t ceil_div(int64_t a, int64_t b) { return a > 0 ? (a - 1) / b + 1 : -(-a / b); }

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

class Checker {
 public:
  Checker(const Tables& tables, const CertificateView& certificate) : t(tables), z(certificate) {}
  std::vector<std::string> errors;

  void run() {
    try {
      structure();
      replay();
      clocks();
      conflicts();
    } catch (const Bad&) {
    }
  }

 private:
  const Tables& t;
  const CertificateView& z;
  int64_t n = 0, Q = 0;
  std::vector<int32_t> queue_, pos_, rank_;
  std::vector<int64_t> len_, total_, producer_off_;
  std::vector<std::pair<int32_t, int64_t>> producers_;  // (task, amount), by counter

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

  // ---- what the numbers name
  void structure() {
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

  // ---- one step runs: no deadlock
  void replay() {
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

  // ---- V <= F(V)
  int64_t n_rows = 0;
  std::vector<int32_t> dense_;
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

  void clocks() {
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

  int32_t at(int64_t q, int64_t j) const { return t.queue_task[t.queue_off[q] + j]; }

  void local_rule(int64_t q, int64_t i, int64_t j) {
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
  std::vector<int64_t> open_;  // entries of a row that are still to be proved
  std::vector<std::array<int64_t, 4>> proved_ = std::vector<std::array<int64_t, 4>>(kMemo, {-1, 0, 0, 0});

  // The rule itself: fewer than `need` of the counter's signals can be there while queue r has not come to v.
  bool counted(int32_t c, int64_t need, int32_t r, int64_t v) const {
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

  // The same at a glance, where it is clear: of the producers in replay order the first few bring the counter to the threshold and not
  // beyond it; one of them has r at v (`most`), and so have all others (`least`).  Then what is missing at v is less than the threshold.
  // Periodic, all have to be within a step of v as well (`all`).
  struct Reach {
    const int32_t *most = nullptr, *least = nullptr, *all = nullptr;                // rows, null: nobody
    int32_t queue = -1, most_own = 0, all_own = 0;                  // what replaces the entry of this queue
  };
  bool follows(const Reach& reach, int32_t r, int64_t v, int32_t e) const {
    if (!reach.most) return false;
    auto entry = [&](const int32_t* row, int32_t own) { return r == reach.queue ? own : row[r]; };
    if (!z.unroll && e) v += len_[r];
    if (v > entry(reach.most, reach.most_own) || (reach.least && v > reach.least[r])) return false;
    const int32_t lowest = entry(reach.all, reach.all_own);
    return z.unroll || (lowest != kNone && v - len_[r] <= lowest);
  }

  struct Sorted {  // the producers of a counter in replay order
    std::vector<int32_t> task;
    std::vector<int64_t> sum;     // of the signals up to each
    int32_t queue = -1;           // of all of them; -1: several
    bool grows = true;            // one queue: clocks never fall
    std::vector<int64_t> cut;     // several: thresholds, ascending
    std::vector<int32_t> most, least, all;  // rows, per threshold
  };
  std::vector<Sorted> sorted_;

  const int32_t* row_at(int32_t task) const { return &dense_[size_t(z.row[task]) * Q]; }

  void sort_producers() {
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

  void reach_several(Sorted& o) {
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

  Reach reached(int32_t c, int64_t threshold) const {
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
  bool ordered(int32_t a, int32_t b, int64_t i, int64_t k) const {
    const int32_t qa = queue_[a];
    if (qa == queue_[b]) return k > 0 || pos_[a] < pos_[b];
    if (z.unroll) return value(z.row[(i + k) * n + b], qa) >= i * len_[qa] + pos_[a] + 1;
    const int32_t v = value(z.row[b], qa);
    return v != kNone && v + k * len_[qa] >= pos_[a] + 1;
  }
  void need(int32_t a, int32_t b, int64_t i, int64_t k, bool either) {
    if (!ordered(a, b, i, k) && !(either && ordered(b, a, i, k)))
      error("certificate: tasks " + num(a) + " and " + num(b) + (k ? " (" + num(k) + " steps later)" : "") + " conflict and are not ordered");
  }

  // ---- conflicts
  Line line(int64_t lo, int64_t hi, int32_t aff) const {
    Line l;
    if (aff < 0) {
      l.a = {lo, -1, 0, 0, hi > lo ? hi - lo : 0, -1, 0};
      return l;
    }
    l.a = t.affine[aff];
    l.moves = l.a.var >= 0 || l.a.stride || l.a.mod || l.a.length_var >= 0 || l.a.length_stride;
    if (!l.moves && l.a.length < 0) l.a.length = 0;
    return l;
  }

  struct Span {
    Wide lo, hi;
  };
  Span at_step(const AffineRow& a, int64_t i, const std::map<int64_t, int64_t>& v) const {
    auto get = [&](int64_t x) { return x < 0 ? 0 : v.at(x); };
    Wide lo = Wide(a.add) + get(a.var) + Wide(a.stride) * i;
    if (a.mod) lo = ((lo % a.mod) + a.mod) % a.mod;
    return {lo, lo + a.length + get(a.length_var) + Wide(a.length_stride) * i};
  }
  // f(values) for every value of the given variables until it returns true; -1: too many
  template <class F>
  int any_value(std::initializer_list<int64_t> vars, F f) const {
    std::map<int64_t, int64_t> v;
    Wide count = 1;
    for (int64_t x : vars)
      if (x >= 0 && v.emplace(x, t.variables[x].min).second) {
        count *= std::max<Wide>(1, Wide(t.variables[x].max) - t.variables[x].min + 1);
        if (count > kExactValues) return -1;
      }
    for (;;) {
      if (f(v)) return 1;
      auto it = v.begin();
      for (; it != v.end() && it->second >= t.variables[it->first].max; ++it) it->second = t.variables[it->first].min;
      if (it == v.end()) return 0;
      ++it->second;
    }
  }
  // max over the variables of end(from, step fi) - start(to, step ti), for ranges without modulus
  Wide reach(const AffineRow& from, int64_t fi, const AffineRow& to, int64_t ti) const {
    Wide sum = Wide(from.add) + (Wide(from.stride) + from.length_stride) * fi + from.length - to.add - Wide(to.stride) * ti;
    std::array<std::pair<int64_t, int64_t>, 3> terms{{{from.var, 1}, {from.length_var, 1}, {to.var, -1}}};
    for (size_t x = 0; x < 3; ++x)
      for (size_t y = x + 1; y < 3; ++y)
        if (terms[x].first == terms[y].first) terms[x].second += terms[y].second, terms[y].second = 0;
    for (auto [v, c] : terms)
      if (v >= 0 && c) sum += Wide(c) * (c > 0 ? t.variables[v].max : t.variables[v].min);
    return sum;
  }
  // False only when x in step i and y in step i + k stay apart for every 0 <= i <= last: both bounds are linear in i.
  bool may_meet(const AffineRow& x, const AffineRow& y, int64_t xi, int64_t yi, int64_t last) const {
    if (x.mod || y.mod) return true;
    return std::max(reach(x, xi, y, yi), reach(x, xi + last, y, yi + last)) > 0 &&
           std::max(reach(y, yi, x, xi), reach(y, yi + last, x, xi + last)) > 0;
  }
  // Whether two ranges can meet, x in step i and y in step j; never false when they can.
  bool meet(const AffineRow& x, int64_t i, const AffineRow& y, int64_t j) const {
    const int exact = any_value({x.var, x.length_var, y.var, y.length_var}, [&](const auto& v) {
      const Span a = at_step(x, i, v), b = at_step(y, j, v);
      return a.lo < a.hi && b.lo < b.hi && a.lo < b.hi && b.lo < a.hi;
    });
    if (exact >= 0) return exact;
    if (x.mod || y.mod) return true;
    return reach(x, i, y, j) > 0 && reach(y, j, x, i) > 0;
  }
  bool meet_bytes(const Acc& a, int64_t i, const Acc& b, int64_t j) const {  // different buffers
    const int exact = any_value({a.rows.a.var, a.rows.a.length_var, a.cols.a.var, a.cols.a.length_var, b.rows.a.var, b.rows.a.length_var,
                                 b.cols.a.var, b.cols.a.length_var},
                                [&](const auto& v) {
                                  std::vector<Span> x = bytes(a, i, v), y = bytes(b, j, v);
                                  for (const auto& s : x)
                                    for (const auto& r : y)
                                      if (s.lo < r.hi && r.lo < s.hi) return true;
                                  return false;
                                });
    return exact != 0;
  }
  std::vector<Span> bytes(const Acc& a, int64_t i, const std::map<int64_t, int64_t>& v) const {
    const auto& b = t.buffers[a.buffer];
    const Span r = at_step(a.rows.a, i, v), c = at_step(a.cols.a, i, v);
    std::vector<Span> out;
    if (r.lo >= r.hi || c.lo >= c.hi) return out;
    auto add = [&](Wide first, Wide last) { out.push_back({b.offset + first / 8, b.offset + (last + 7) / 8}); };
    if ((c.lo <= 0 && c.hi >= b.cols) || r.hi - r.lo > kMaxRows)
      add((r.lo * b.cols + c.lo) * b.bits, ((r.hi - 1) * b.cols + c.hi) * b.bits);
    else
      for (Wide row = r.lo; row < r.hi; ++row) add((row * b.cols + c.lo) * b.bits, (row * b.cols + c.hi) * b.bits);
    return out;
  }
  bool overlap(const Acc& a, int64_t i, const Acc& b, int64_t j) const {
    if (a.buffer != b.buffer || t.buffers[a.buffer].bits < 8) return meet_bytes(a, i, b, j);
    return meet(a.cols.a, i, b.cols.a, j) && meet(a.rows.a, i, b.rows.a, j);
  }

  // False only when a in step i and b in step i + k stay apart for all i and every distance from k on: linear, so corners tell.
  bool far(const Acc& a, const Acc& b, int64_t k) const {
    if (a.buffer != b.buffer || t.buffers[a.buffer].bits < 8) return true;
    auto apart = [&](const AffineRow& x, const AffineRow& y) {
      if (x.mod || y.mod) return false;
      const std::array<std::pair<int64_t, int64_t>, 3> corners{{{0, k}, {0, t.steps - 1}, {t.steps - 1 - k, t.steps - 1}}};
      auto all = [&](auto f) { return std::all_of(corners.begin(), corners.end(), f); };
      return all([&](auto c) { return reach(x, c.first, y, c.second) <= 0; }) || all([&](auto c) { return reach(y, c.second, x, c.first) <= 0; });
    };
    return !apart(a.rows.a, b.rows.a) && !apart(a.cols.a, b.cols.a);
  }

  static bool alike(const AffineRow& x, const AffineRow& y) {
    return !x.mod && !y.mod && x.stride == y.stride && !x.length_stride && !y.length_stride;
  }

  struct Lags {  // the least distance in steps at which two accesses meet; -1: never
    bool now = false;
    int64_t forward = -1, backward = -1;
  };
  Lags lags(const Acc& a, const Acc& b) const {
    Lags l;
    auto some = [&](int64_t k, bool swap) {
      const int64_t last = t.steps - 1 - k, ai = swap ? k : 0, bi = swap ? 0 : k;
      const bool elements = a.buffer == b.buffer && t.buffers[a.buffer].bits >= 8;
      if (elements && !(may_meet(a.rows.a, b.rows.a, ai, bi, last) && may_meet(a.cols.a, b.cols.a, ai, bi, last))) return false;
      // More steps than are tried: one speaks for all where both move alike, and other ranges are taken to meet.
      const bool all = t.steps <= kExactSteps;
      if (!all && !(elements && alike(a.rows.a, b.rows.a) && alike(a.cols.a, b.cols.a))) return true;
      for (int64_t i = 0; i <= (all ? last : 0); ++i)
        if (overlap(a, ai + i, b, bi + i)) return true;
      return false;
    };
    l.now = some(0, false);
    for (int64_t k = 1; k < t.steps && l.forward < 0; ++k)
      if (k < kMaxLag ? some(k, false) : far(a, b, k)) l.forward = k;
      else if (k >= kMaxLag) break;
    for (int64_t k = 1; k < t.steps && l.backward < 0; ++k)
      if (k < kMaxLag ? some(k, true) : far(b, a, k)) l.backward = k;
      else if (k >= kMaxLag) break;
    return l;
  }
  std::unordered_map<uint64_t, Lags> lag_memo_;
  Lags lags_of(const Acc& a, const Acc& b) {
    const bool plain = a.buffer == b.buffer && !a.cols.moves && !b.cols.moves && t.buffers[a.buffer].bits >= 8;
    if (!plain) return lags(a, b);
    const Wide ac = a.cols.a.add, bc = b.cols.a.add;
    if (ac >= bc + b.cols.a.length || bc >= ac + a.cols.a.length) return {};
    if (a.cols.a.length <= 0 || b.cols.a.length <= 0) return {};
    auto [it, fresh] = lag_memo_.try_emplace(uint64_t(uint32_t(a.row_class)) << 32 | uint32_t(b.row_class));
    if (fresh) it->second = lags(a, b);  // columns meet: the answer depends on the rows alone
    return it->second;
  }

  void conflicts() {
    std::vector<std::vector<Acc>> by_buffer(t.buffers.size()), tag_writers(t.buffers.size());
    std::map<std::array<int64_t, 8>, int32_t> classes;
    for (int32_t b : z.replay)
      for (int64_t a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a) {
        Acc x{b, t.acc_buffer[a], (t.acc_flags[a] & kWrite) != 0, line(t.acc_r0[a], t.acc_r1[a], t.acc_raff[a]),
              line(t.acc_c0[a], t.acc_c1[a], t.acc_caff[a])};
        if (t.pools[t.buffers[x.buffer].pool].per_queue) continue;  // each queue has its own instance
        if (t.buffers[x.buffer].tagged && x.write) tag_writers[x.buffer].push_back(x);
        if (t.buffers[x.buffer].tagged && (x.write || t.acc_flags[a] & kPrevEpoch)) continue;
        if (!x.rows.moves && !x.cols.moves && (!x.rows.a.length || !x.cols.a.length)) continue;
        by_buffer[x.buffer].push_back(x);
      }
    // buffers that share bytes, by their declared extent
    std::vector<int32_t> order(t.buffers.size());
    std::iota(order.begin(), order.end(), 0);
    auto end = [&](int32_t b) { return t.buffers[b].offset + (t.buffers[b].rows * t.buffers[b].cols * t.buffers[b].bits + 7) / 8; };
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return std::pair{t.buffers[a].pool, t.buffers[a].offset} < std::pair{t.buffers[b].pool, t.buffers[b].offset};
    });
    for (size_t k = 0; k < order.size();) {
      std::vector<Acc> group;
      const int64_t pool = t.buffers[order[k]].pool;
      int64_t reach = t.buffers[order[k]].offset;
      bool one = true, bits = false, writes = false;
      for (const size_t first = k; k < order.size() && t.buffers[order[k]].pool == pool && (k == first || t.buffers[order[k]].offset < reach); ++k) {
        const int32_t b = order[k];
        reach = std::max(reach, end(b));
        if (t.buffers[b].tagged) {
          tagged(by_buffer[b], tag_writers[b]);
          continue;
        }
        one &= group.empty() || by_buffer[b].empty();
        bits |= t.buffers[b].bits < 8;
        group.insert(group.end(), by_buffer[b].begin(), by_buffer[b].end());
      }
      for (const auto& a : group) writes |= a.write;
      if (!writes) continue;
      if (!one) std::stable_sort(group.begin(), group.end(), [&](const Acc& a, const Acc& b) { return rank_[a.task] < rank_[b.task]; });
      for (auto& a : group)
        if (a.row_class < 0) a.row_class = classes.try_emplace(a.rows.key(), int32_t(classes.size())).first->second;
      sweep(group, one && !bits);
      moving(group);
    }
  }

  // Accesses that touch the same bytes in every step, cell by cell in replay order.  Each read must follow the write before it,
  // each write the write before it and the reads since; all other conflicts follow, because must-order is transitive.
  struct Cell {
    int32_t write = -1;
    int64_t write_step = 0;
    bool open = true;  // no write of the step at hand yet
    std::vector<std::pair<int32_t, int64_t>> readers;
  };
  void sweep(const std::vector<Acc>& group, bool rectangles) {
    std::vector<const Acc*> fixed;
    for (const auto& a : group)
      if (!a.rows.moves && !a.cols.moves) fixed.push_back(&a);
    if (std::none_of(fixed.begin(), fixed.end(), [](const Acc* a) { return a->write; })) return;
    std::vector<Wide> rows, cols;
    const std::map<int64_t, int64_t> nothing;
    std::vector<std::vector<Span>> spans;
    for (const Acc* a : fixed) {
      if (rectangles) {
        rows.push_back(a->rows.a.add), rows.push_back(Wide(a->rows.a.add) + a->rows.a.length);
        cols.push_back(a->cols.a.add), cols.push_back(Wide(a->cols.a.add) + a->cols.a.length);
      } else {
        spans.push_back(bytes(*a, 0, nothing));
        for (const auto& s : spans.back()) cols.push_back(s.lo), cols.push_back(s.hi);
      }
    }
    for (auto* cut : {&rows, &cols}) std::sort(cut->begin(), cut->end()), cut->erase(std::unique(cut->begin(), cut->end()), cut->end());
    const int64_t width = int64_t(cols.size()), height = std::max<int64_t>(1, int64_t(rows.size()));
    require(Wide(width) * height <= kMaxCells, "tables: a buffer is cut into too many tiles to check");
    std::vector<Cell> cells(size_t(width * height));
    auto index = [](const std::vector<Wide>& cut, Wide x) { return std::lower_bound(cut.begin(), cut.end(), x) - cut.begin(); };
    struct Box {
      int64_t r0, r1, c0, c1;
    };
    std::vector<std::vector<Box>> boxes;
    for (size_t k = 0; k < fixed.size(); ++k) {
      const Acc& a = *fixed[k];
      boxes.emplace_back();
      if (rectangles)
        boxes.back().push_back({index(rows, a.rows.a.add), index(rows, Wide(a.rows.a.add) + a.rows.a.length), index(cols, a.cols.a.add),
                                index(cols, Wide(a.cols.a.add) + a.cols.a.length)});
      else
        for (const auto& s : spans[k]) boxes.back().push_back({0, 1, index(cols, s.lo), index(cols, s.hi)});
    }
    const int64_t passes = z.unroll ? t.steps : std::min<int64_t>(t.steps, 2);
    for (int64_t step = 0; step < passes; ++step) {
      if (step)
        for (auto& c : cells) c.open = true;
      const bool wrap_only = step && !z.unroll;  // inside the second step nothing is new
      // The reads of a task come before its writes in time, but only its order to other tasks matters here.
      for (size_t k = 0; k < fixed.size(); ++k)
        for (const Box& box : boxes[k])
          for (int64_t r = box.r0; r < box.r1; ++r)
            for (int64_t c = box.c0; c < box.c1; ++c) visit(cells[r * width + c], *fixed[k], step, wrap_only);
    }
  }
  void visit(Cell& cell, const Acc& a, int64_t step, bool wrap_only) {
    if (wrap_only && !cell.open) return;
    auto after = [&](int32_t task, int64_t since) {
      if (task != a.task || since != step) need(task, a.task, since, step - since, false);
    };
    if (cell.write >= 0) after(cell.write, cell.write_step);
    if (!a.write) {
      cell.readers.push_back({a.task, step});
      return;
    }
    for (auto [task, since] : cell.readers) after(task, since);
    cell.readers.clear();
    cell.write = a.task, cell.write_step = step, cell.open = false;
  }

  // Accesses that move with the step or a variable, against every other one of the same bytes.
  void moving(const std::vector<Acc>& group) {
    std::vector<const Acc*> movers;
    for (const auto& a : group)
      if (a.rows.moves || a.cols.moves) movers.push_back(&a);
    for (const Acc* m : movers)
      for (const auto& x : group) {
        if (queue_[m->task] == queue_[x.task] || !(m->write || x.write)) continue;
        if ((x.rows.moves || x.cols.moves) && &x < m) continue;  // that pair was seen from the other side
        if (z.unroll) {
          for (int64_t i = 0; i < t.steps; ++i)
            for (int64_t j = i; j < t.steps; ++j) {
              if (overlap(*m, i, x, j)) need(m->task, x.task, i, j - i, i == j);
              if (i != j && overlap(*m, j, x, i)) need(x.task, m->task, i, j - i, false);
            }
          continue;
        }
        const Lags l = lags_of(*m, x);
        if (l.now) need(m->task, x.task, 0, 0, true);
        if (l.forward > 0) need(m->task, x.task, 0, l.forward, false);
        if (l.backward > 0) need(x.task, m->task, 0, l.backward, false);
      }
  }

  // A reader of this step's tag cannot end before its writers: replay must have run them.
  void tagged(const std::vector<Acc>& reads, const std::vector<Acc>& writes) {
    for (const auto& w : writes)
      for (const auto& r : reads) {
        if (rank_[w.task] < rank_[r.task]) continue;
        const bool moves = w.rows.moves || w.cols.moves || r.rows.moves || r.cols.moves;
        bool hit = moves && t.steps > kExactSteps;
        for (int64_t i = 0; i < (moves ? t.steps : 1) && !hit; ++i) hit = overlap(w, i, r, i);
        if (hit) error("certificate: replay runs task " + num(r.task) + " before task " + num(w.task) + " wrote its tagged data");
      }
  }
};

}  // namespace

std::vector<std::string> check_certificate(const Tables& tables, const CertificateView& certificate) {
  if (certificate.row_off.empty()) return {"certificate: the clock table is cut off"};
  Checker c(tables, certificate);
  c.run();
  return c.errors;
}

}  // namespace amk
