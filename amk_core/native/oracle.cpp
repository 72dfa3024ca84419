// Exhaustive-interleaving oracle: ground truth for small schedules.
//
// It walks every reachable state of a schedule, with the start and the end of a task as separate events, for every number of
// steps and every value of the launch variables, and labels what it sees.  It uses no clock, no must-order theory and no code of
// the validator: two accesses race iff they are seen to overlap, or are seen in both orders.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tables.hpp"

namespace nb = nanobind;

namespace amk {
namespace {

enum Label : uint32_t {  // bit k is rule k of kRules in oracle.py
  kRef = 1, kCount = 2, kLive = 4, kRace = 8, kTag = 16, kCover = 32, kFlow = 64, kRo = 128, kStop = 256, kFit = 512, kProxy = 1024,
};

constexpr int64_t kMaxSteps = 64;          // more steps are not "small"
constexpr int64_t kMaxAssignments = 1024;  // values of all used launch variables together
constexpr int64_t kMaxInstances = 4096;
constexpr int64_t kMaxIntervals = 1 << 20;
constexpr uint64_t kBitmapStates = uint64_t{1} << 27;  // below: one bit a state; above: a hash set

using Wide = __int128;

struct Interval {
  int64_t space, lo, hi;  // bytes [lo, hi) of one instance of a pool
};

struct Use {  // one access of one task instance, for one assignment of the variables
  int64_t instance;
  int32_t buffer, flags, label;
  bool moves;  // through a range that moves with the step
  std::vector<std::pair<int, int>> segments;  // half-open ranges of segment numbers
};

class StateSet {  // set of packed states
 public:
  explicit StateSet(uint64_t universe) : small_(universe <= kBitmapStates) {
    if (small_)
      bits_.assign(universe / 64 + 1, 0);
    else
      slots_.assign(1 << 12, ~uint64_t{0});
  }
  bool insert(uint64_t key) {  // true: it was new
    if (small_) {
      uint64_t& w = bits_[key / 64];
      const uint64_t b = uint64_t{1} << (key % 64);
      if (w & b) return false;
      w |= b;
      return true;
    }
    if (2 * size_ >= slots_.size()) grow();
    if (!put(key)) return false;
    ++size_;
    return true;
  }

 private:
  bool put(uint64_t key) {
    const size_t mask = slots_.size() - 1;
    for (size_t i = (key * 0x9E3779B97F4A7C15u >> 20) & mask;; i = (i + 1) & mask) {
      if (slots_[i] == key) return false;
      if (slots_[i] == ~uint64_t{0}) {
        slots_[i] = key;
        return true;
      }
    }
  }
  void grow() {
    std::vector<uint64_t> old(slots_.size() * 4, ~uint64_t{0});
    old.swap(slots_);
    for (uint64_t k : old)
      if (k != ~uint64_t{0}) put(k);
  }
  bool small_;
  size_t size_ = 0;
  std::vector<uint64_t> bits_, slots_;
};

class Oracle {
 public:
  Oracle(const Tables& tables, int64_t max_states, bool atomic) : t(tables), budget(max_states), atomic_(atomic) {}

  uint32_t labels = 0;
  int64_t states = 0;
  std::string undecided;
  std::vector<std::string> notes;

  void run() {
    structure();
    if (labels & (kRef | kCount)) return;
    if (t.steps > kMaxSteps) return give_up("steps");
    build_instances();
    if (n_inst > kMaxInstances) return give_up("instances");
    if (!assignments()) return give_up("launch variables");
    bounds();
    if (labels & kRef) return;
    if (int64_t(values_.size()) * n_inst > kMaxIntervals) return give_up("instances x launch variables");
    conflict_.assign(size_t(n_inst * n_inst), 0);
    stop_rule();
    for (const auto& v : values_)
      if (undecided.empty()) conflicts_of(v);
    if (!undecided.empty()) return;
    index_pairs();
    if (!explore(false)) return;
    if (!tag_waits_empty_ && !explore(true)) return;
    if (labels & (kLive | kRace)) return;
    linear_order();
    for (const auto& v : values_) data_flow(v);
    side_effects();
  }

 private:
  const Tables& t;
  int64_t budget;
  bool atomic_;

  void give_up(const char* what) { undecided = std::string("too large for the oracle: ") + what; }
  void mark(uint32_t label, const std::string& note) {
    if (!(labels & label)) notes.push_back(note);
    labels |= label;
  }
  static std::string num(int64_t x) { return std::to_string(x); }

  // ---- REF, COUNT, FIT: what can be seen without running
  void structure() {
    auto in = [](int64_t x, size_t n) { return x >= 0 && x < int64_t(n); };
    if (t.steps < 1) mark(kRef, "steps < 1");
    std::vector<int> seen(size_t(t.n_tasks), 0);
    for (int32_t b : t.queue_task) {
      if (!in(b, seen.size()))
        mark(kRef, "queue names task " + num(b));
      else
        ++seen[size_t(b)];
    }
    for (size_t b = 0; b < seen.size(); ++b)
      if (seen[b] != 1) mark(kRef, "task " + num(int64_t(b)) + " stands in " + num(seen[b]) + " queue places");
    for (const auto& v : t.variables)
      if (v.min > v.max) mark(kRef, "variable with min > max");
    for (size_t p = 0; p < t.pools.size(); ++p)
      if (t.pools[p].bytes < -1 || t.cluster(int64_t(p)) < 0) mark(kRef, "pool of negative size");
    auto part_of = [&](int64_t p) {  // bytes that each cluster has
      const auto& pool = t.pools[size_t(p)];
      const int64_t clusters = (t.n_queues + t.cluster(p) - 1) / t.cluster(p);
      return clusters > 0 && pool.bytes > 0 && pool.bytes % clusters == 0 && !pool.per_queue ? pool.bytes / clusters : int64_t{0};
    };
    for (size_t p = 0; p < t.pools.size(); ++p)
      if (t.cluster(int64_t(p)) > 0 && !part_of(int64_t(p))) mark(kRef, "a pool is not cut into whole parts, one a cluster");
    for (size_t i = 0; i < t.buffers.size(); ++i) {
      const auto& b = t.buffers[i];
      if (!in(b.pool, t.pools.size()) || b.offset < 0 || b.rows < 1 || b.cols < 1) {
        mark(kRef, "buffer " + num(int64_t(i)) + " is nowhere");
        continue;
      }
      const Wide bytes = (Wide(b.rows) * b.cols * b.bits + 7) / 8;
      const auto& pool = t.pools[size_t(b.pool)];
      if (pool.bytes >= 0 && b.offset + bytes > pool.bytes) mark(kRef, "buffer " + num(int64_t(i)) + " ends outside its pool");
      if (const int64_t part = t.cluster(b.pool) > 0 ? part_of(b.pool) : 0; part)
        if (b.offset / part != int64_t((b.offset + bytes - 1) / part)) mark(kRef, "buffer " + num(int64_t(i)) + " lies in two parts of its pool");
      if (b.tagged && (b.bits != 64 || b.offset % 8)) mark(kTag, "tagged buffer " + num(int64_t(i)) + " is not of aligned 8-byte elements");
    }
    for (const auto& a : t.affine) {
      if (a.var < -1 || a.var >= int64_t(t.variables.size()) || a.length_var < -1 || a.length_var >= int64_t(t.variables.size()) ||
          a.mod < 0)
        mark(kRef, "affine range names no variable");
    }
    auto affine_ok = [&](std::span<const int32_t> s) {
      for (int32_t x : s)
        if (x < -1 || x >= int64_t(t.affine.size())) mark(kRef, "access names no affine range");
    };
    affine_ok(t.acc_raff), affine_ok(t.acc_caff), affine_ok(t.init_raff), affine_ok(t.init_caff);
    for (int32_t b : t.acc_buffer)
      if (!in(b, t.buffers.size())) mark(kRef, "access names buffer " + num(b));
    for (int64_t q = 0; q < t.n_queues; ++q)
      for (int64_t k = t.queue_off[size_t(q)]; k < t.queue_off[size_t(q) + 1]; ++k) {
        if (!in(t.queue_task[size_t(k)], size_t(t.n_tasks))) continue;
        const auto b = size_t(t.queue_task[size_t(k)]);
        for (auto a = size_t(t.acc_off[b]); a < size_t(t.acc_off[b + 1]); ++a) {
          if (!in(t.acc_buffer[a], t.buffers.size())) continue;
          const auto& x = t.buffers[size_t(t.acc_buffer[a])];
          if (!in(x.pool, t.pools.size()) || t.cluster(x.pool) < 1) continue;
          const int64_t part = part_of(x.pool);
          if (part && x.offset / part != q / t.cluster(x.pool)) mark(kRef, "task " + num(int64_t(b)) + " reaches into another cluster");
        }
      }
    for (int32_t b : t.init_buffer)
      if (!in(b, t.buffers.size())) mark(kRef, "initial names buffer " + num(b));
    if (t.stop_task != -1 || t.stop_buffer != -1)
      if (!in(t.stop_task, size_t(t.n_tasks)) || !in(t.stop_buffer, t.buffers.size())) mark(kRef, "stop names nothing");
    std::vector<Wide> total(t.counters.size(), 0);
    for (size_t s = 0; s < t.sig_counter.size(); ++s) {
      if (!in(t.sig_counter[s], t.counters.size())) {
        mark(kRef, "signal names counter " + num(t.sig_counter[s]));
        continue;
      }
      if (t.sig_amount[s] < 1) mark(kCount, "signal amount below 1");
      total[size_t(t.sig_counter[s])] += t.sig_amount[s];
    }
    for (size_t c = 0; c < total.size(); ++c) {
      if (total[c] != t.counters[c]) mark(kCount, "counter " + num(int64_t(c)) + ": per_step is not the sum of its signals");
      if (total[c] * t.steps >= (Wide(1) << 31)) mark(kCount, "counter " + num(int64_t(c)) + " wraps");
    }
    for (size_t w = 0; w < t.wait_counter.size(); ++w) {
      if (!in(t.wait_counter[w], t.counters.size()) || (t.wait_e[w] != 0 && t.wait_e[w] != -1)) {
        mark(kRef, "wait names counter " + num(t.wait_counter[w]) + ", e " + num(t.wait_e[w]));
        continue;
      }
      if (t.wait_t[w] < 1 || t.wait_t[w] > total[size_t(t.wait_counter[w])]) mark(kCount, "threshold outside 1..N");
    }
    if (t.target_sms != -1 || t.target_smem != -1) {
      if (t.n_queues > t.target_sms) mark(kFit, "more queues than SMs");
      Wide smem = 0;
      for (size_t p = 0; p < t.pools.size(); ++p) {
        const int64_t cluster = t.cluster(int64_t(p)), bytes = t.pools[p].bytes;
        if (t.pools[p].per_queue || cluster) smem += bytes < 0 ? Wide(1) << 62 : Wide(cluster ? part_of(int64_t(p)) : bytes);
        if (cluster > 16) mark(kFit, "a cluster of more than 16 queues");
      }
      if (smem > t.target_smem) mark(kFit, "shared memory overflow");
    }
  }

  // ---- instances: task j of queue q in step i is number base[q] + i * L_q + j
  int64_t n_inst = 0;
  std::vector<int64_t> base_, len_, task_, queue_, step_, pos_;
  void build_instances() {
    for (int64_t q = 0; q < t.n_queues; ++q) {
      base_.push_back(n_inst);
      const int64_t n = t.queue_off[size_t(q) + 1] - t.queue_off[size_t(q)];
      len_.push_back(n);
      n_inst += n * t.steps;
      if (n_inst > kMaxInstances) return;
      for (int64_t i = 0; i < t.steps; ++i)
        for (int64_t j = 0; j < n; ++j) {
          task_.push_back(t.queue_task[size_t(t.queue_off[size_t(q)] + j)]);
          queue_.push_back(q), step_.push_back(i), pos_.push_back(i * n + j);
        }
    }
  }

  // ---- launch variables: every assignment of those that some range uses
  std::vector<std::vector<int64_t>> values_;
  bool assignments() {
    std::set<int64_t> used;
    for (const auto& a : t.affine) used.insert(a.var), used.insert(a.length_var);
    used.erase(-1);
    values_.assign(1, std::vector<int64_t>(t.variables.size(), 0));
    for (int64_t v : used) {
      const auto [lo, hi] = t.variables[size_t(v)];
      if (Wide(hi) - lo + 1 > kMaxAssignments / Wide(values_.size())) return false;
      std::vector<std::vector<int64_t>> next;
      for (int64_t x = lo; x <= hi; ++x)
        for (auto row : values_) row[size_t(v)] = x, next.push_back(std::move(row));
      values_ = std::move(next);
    }
    return true;
  }

  struct Range {
    Wide lo, hi;
  };
  Range range(int64_t lo, int64_t hi, int32_t aff, int64_t step, const std::vector<int64_t>& v) const {
    if (aff < 0) return {lo, hi};
    const auto& a = t.affine[size_t(aff)];
    Wide start = Wide(a.add) + (a.var < 0 ? 0 : v[size_t(a.var)]) + Wide(a.stride) * step;
    if (a.mod > 0) start = ((start % a.mod) + a.mod) % a.mod;
    const Wide length = Wide(a.length) + (a.length_var < 0 ? 0 : v[size_t(a.length_var)]) + Wide(a.length_stride) * step;
    return {start, start + length};
  }
  void bounds() {
    auto check = [&](int32_t buffer, Range r, Range c, const std::string& what) {
      const auto& b = t.buffers[size_t(buffer)];
      if (r.lo < 0 || r.lo > r.hi || r.hi > b.rows || c.lo < 0 || c.lo > c.hi || c.hi > b.cols)
        mark(kRef, what + " leaves buffer " + num(buffer));
    };
    for (const auto& v : values_) {
      for (int64_t b = 0; b < t.n_tasks; ++b)
        for (int64_t a = t.acc_off[size_t(b)]; a < t.acc_off[size_t(b) + 1]; ++a)
          for (int64_t i = 0; i < t.steps; ++i) {
            const auto x = size_t(a);
            check(t.acc_buffer[x], range(t.acc_r0[x], t.acc_r1[x], t.acc_raff[x], i, v),
                  range(t.acc_c0[x], t.acc_c1[x], t.acc_caff[x], i, v), "task " + num(b));
          }
      for (size_t x = 0; x < t.init_buffer.size(); ++x)
        check(t.init_buffer[x], range(t.init_r0[x], t.init_r1[x], t.init_raff[x], 0, v),
              range(t.init_c0[x], t.init_c1[x], t.init_caff[x], 0, v), "initial");
    }
  }

  // ---- bytes: physical intervals, cut into segments at every end point
  int64_t space(int32_t buffer, int64_t queue) const {
    const auto& b = t.buffers[size_t(buffer)];
    return b.pool * (t.n_queues + 1) + (t.pools[size_t(b.pool)].per_queue ? queue + 1 : 0);
  }
  void bytes_of(int32_t buffer, Range r, Range c, int64_t queue, std::vector<Interval>& out) const {
    const auto& b = t.buffers[size_t(buffer)];
    if (r.lo >= r.hi || c.lo >= c.hi) return;
    auto add = [&](Wide first, Wide last) {  // bits, rounded outward to bytes
      out.push_back({space(buffer, queue), int64_t(b.offset + first / 8), int64_t(b.offset + (last + 7) / 8)});
    };
    if (c.lo == 0 && c.hi == b.cols) return add(r.lo * b.cols * b.bits, r.hi * b.cols * b.bits);
    for (Wide row = r.lo; row < r.hi; ++row) add((row * b.cols + c.lo) * b.bits, (row * b.cols + c.hi) * b.bits);
  }
  std::vector<Interval> extent(int32_t buffer) const {  // every byte of a buffer, in every instance of its pool
    const auto& b = t.buffers[size_t(buffer)];
    std::vector<Interval> out;
    const bool each = t.pools[size_t(b.pool)].per_queue;
    for (int64_t q = 0; q < (each ? t.n_queues : 1); ++q) bytes_of(buffer, {0, b.rows}, {0, b.cols}, q, out);
    return out;
  }

  struct Scene {  // all that one assignment of the variables fixes
    std::vector<Use> uses;
    std::vector<std::vector<std::pair<int, int>>> extents;   // per buffer
    std::vector<std::pair<int, int>> initial;
    int n_segments = 0;
    bool too_large = false;
  };
  std::vector<Scene> scenes_;
  Scene scene(const std::vector<int64_t>& v) {
    Scene s;
    std::vector<std::vector<Interval>> raw;
    int64_t total = 0;
    for (int64_t k = 0; k < n_inst; ++k) {
      const auto b = size_t(task_[size_t(k)]);
      for (int64_t a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a) {
        const auto x = size_t(a);
        std::vector<Interval> iv;
        const Range r = range(t.acc_r0[x], t.acc_r1[x], t.acc_raff[x], step_[size_t(k)], v);
        total += r.hi - r.lo > 1 << 20 ? kMaxIntervals : int64_t(r.hi - r.lo);
        if (total > kMaxIntervals) {
          s.too_large = true;
          return s;
        }
        bytes_of(t.acc_buffer[x], r, range(t.acc_c0[x], t.acc_c1[x], t.acc_caff[x], step_[size_t(k)], v), queue_[size_t(k)], iv);
        auto moves = [&](int32_t aff) { return aff >= 0 && t.affine[size_t(aff)].stride != 0; };
        s.uses.push_back({k, t.acc_buffer[x], t.acc_flags[x], t.acc_label[x], moves(t.acc_raff[x]) || moves(t.acc_caff[x]), {}});
        raw.push_back(std::move(iv));
      }
    }
    const size_t n_uses = raw.size();
    for (size_t b = 0; b < t.buffers.size(); ++b) raw.push_back(extent(int32_t(b)));
    raw.emplace_back();
    for (size_t x = 0; x < t.init_buffer.size(); ++x) {
      const bool each = t.pools[size_t(t.buffers[size_t(t.init_buffer[x])].pool)].per_queue;
      const Range r = range(t.init_r0[x], t.init_r1[x], t.init_raff[x], 0, v);
      if (r.hi - r.lo > kMaxIntervals) {
        s.too_large = true;
        return s;
      }
      for (int64_t q = 0; q < (each ? t.n_queues : 1); ++q)
        bytes_of(t.init_buffer[x], r, range(t.init_c0[x], t.init_c1[x], t.init_caff[x], 0, v), q, raw.back());
    }
    std::vector<std::pair<int64_t, int64_t>> cut;
    for (const auto& list : raw)
      for (const auto& iv : list) cut.push_back({iv.space, iv.lo}), cut.push_back({iv.space, iv.hi});
    std::sort(cut.begin(), cut.end());
    cut.erase(std::unique(cut.begin(), cut.end()), cut.end());
    s.n_segments = int(cut.size());
    auto at = [&](int64_t sp, int64_t x) { return int(std::lower_bound(cut.begin(), cut.end(), std::pair{sp, x}) - cut.begin()); };
    auto place = [&](const std::vector<Interval>& list) {
      std::vector<std::pair<int, int>> out;
      for (const auto& iv : list) out.push_back({at(iv.space, iv.lo), at(iv.space, iv.hi)});
      return out;
    };
    for (size_t u = 0; u < n_uses; ++u) s.uses[u].segments = place(raw[u]);
    for (size_t b = 0; b < t.buffers.size(); ++b) s.extents.push_back(place(raw[n_uses + b]));
    s.initial = place(raw.back());
    return s;
  }

  // ---- what must not overlap, and what must be over before a task starts
  std::vector<uint8_t> conflict_;                        // [n, n]: unordered pairs a < b of different queues
  std::map<std::pair<int64_t, int64_t>, uint32_t> need_;  // (a, b): a has ended whenever b starts, else this label
  std::vector<std::set<int64_t>> tag_wait_;              // instance: those that must have ended before its tagged reads are done
  bool tag_waits_empty_ = true;

  void require(int64_t a, int64_t b, uint32_t label) {
    if (queue_[size_t(a)] == queue_[size_t(b)]) {
      if (pos_[size_t(a)] >= pos_[size_t(b)]) mark(label, "task " + num(task_[size_t(a)]) + " stands after task " + num(task_[size_t(b)]));
    } else {
      need_[{a, b}] |= label;
    }
  }

  // A queue that comes to step i + 1 waits for the e = -1 waits of its first task, reads stop[i], and leaves or goes on.  So the
  // task that writes stop[i] must have ended in every state in which some queue has got so far.
  int64_t stop_at_ = -1;  // instance of the stop task in step 0
  void stop_rule() {
    if (t.stop_task < 0) return;
    bool writes = false;
    for (int64_t a = t.acc_off[size_t(t.stop_task)]; a < t.acc_off[size_t(t.stop_task) + 1]; ++a)
      writes |= t.acc_buffer[size_t(a)] == t.stop_buffer && (t.acc_flags[size_t(a)] & (kWrite | kMaybe)) == kWrite;
    if (!writes) mark(kStop, "the stop task does not write the stop buffer");
    for (int64_t k = 0; k < n_inst; ++k)
      if (task_[size_t(k)] == t.stop_task && step_[size_t(k)] == 0) stop_at_ = k;
  }
  void decision(int64_t q, const std::vector<int64_t>& event) {
    const int64_t done = event[size_t(q)] / 2, length = len_[size_t(q)];
    if (stop_at_ < 0 || length == 0 || done == 0 || done % length || done >= total(q)) return;
    if (!enabled(base_[size_t(q)] + done, event, false, true)) return;
    const int64_t writer = stop_at_ + (done / length - 1) * len_[size_t(queue_[size_t(stop_at_)])];
    if (event[size_t(queue_[size_t(writer)])] < 2 * pos_[size_t(writer)] + 2)
      mark(kStop, "queue " + num(q) + " decides on step " + num(done / length) + " before the stop task has ended");
  }

  void conflicts_of(const std::vector<int64_t>& v) {
    Scene s = scene(v);
    if (s.too_large) return give_up("footprints");
    tag_wait_.resize(size_t(n_inst));
    struct Here {
      std::vector<int> plain_reads, plain_writes, tag_reads, tag_writes;  // indices of uses
    };
    std::vector<Here> here(static_cast<size_t>(s.n_segments));
    for (size_t u = 0; u < s.uses.size(); ++u) {
      const Use& x = s.uses[u];
      const bool tagged = t.buffers[size_t(x.buffer)].tagged != 0, write = x.flags & kWrite;
      for (auto [lo, hi] : x.segments)
        for (int g = lo; g < hi; ++g) {
          Here& h = here[size_t(g)];
          (tagged ? (write ? h.tag_writes : h.tag_reads) : (write ? h.plain_writes : h.plain_reads)).push_back(int(u));
        }
    }
    for (size_t b = 0; b < t.buffers.size(); ++b) {
      const bool ro = t.buffers[b].kind == kWeight || t.buffers[b].kind == kTable || t.buffers[b].kind == kInput;
      const bool stop = int64_t(b) == t.stop_buffer;
      for (auto [lo, hi] : s.extents[b])
        for (int g = lo; g < hi; ++g)
          for (const auto* list : {&here[size_t(g)].plain_writes, &here[size_t(g)].tag_writes})
            for (int u : *list) {
              const int64_t task = task_[size_t(s.uses[size_t(u)].instance)];
              if (ro) mark(kRo, "task " + num(task) + " writes read-only buffer " + num(int64_t(b)));
              if (stop && task != t.stop_task) mark(kStop, "task " + num(task) + " writes the stop buffer");
            }
    }
    for (const Here& h : here) {
      auto pair = [&](int ua, int ub) {
        int64_t a = s.uses[size_t(ua)].instance, b = s.uses[size_t(ub)].instance;
        if (queue_[size_t(a)] == queue_[size_t(b)]) return;
        if (a > b) std::swap(a, b);
        conflict_[size_t(a * n_inst + b)] = 1;
      };
      for (int w : h.plain_writes) {
        for (int r : h.plain_reads) pair(w, r);
        for (int x : h.plain_writes) pair(w, x);
      }
      if (!h.tag_reads.empty() || !h.tag_writes.empty()) tags(s, h.plain_reads, h.plain_writes, h.tag_reads, h.tag_writes);
    }
    scenes_.push_back(std::move(s));
  }

  void tags(const Scene& s, const std::vector<int>& plain_reads, const std::vector<int>& plain_writes,
            const std::vector<int>& reads, const std::vector<int>& writes) {
    auto use = [&](int u) -> const Use& { return s.uses[size_t(u)]; };
    auto step = [&](int u) { return step_[size_t(use(u).instance)]; };
    if (!plain_reads.empty() || !plain_writes.empty()) mark(kTag, "tagged bytes are also accessed without tags");
    std::set<int32_t> buffers;
    for (int u : reads) buffers.insert(use(u).buffer);
    for (int u : writes) buffers.insert(use(u).buffer);
    if (buffers.size() > 1) mark(kTag, "tagged bytes have two names");
    std::map<int64_t, std::vector<int>> writers;  // by step, which is the tag
    for (int w : writes) writers[step(w)].push_back(w);
    for (const auto& [i, list] : writers)
      for (int w : list)
        if (use(w).instance != use(list[0]).instance) mark(kTag, "two writers of one tag");
    std::set<int64_t> read_tags;
    for (int r : reads) {
      const int64_t tag = step(r) - (use(r).flags & kPrevEpoch ? 1 : 0);
      if (!(use(r).flags & kMaybe)) read_tags.insert(tag);
      for (const auto& [i, list] : writers)
        for (int w : list) {
          if (i == tag) {
            tag_wait_[size_t(use(r).instance)].insert(use(w).instance);
            tag_waits_empty_ = false;
          }
          if (i > tag) require(use(r).instance, use(w).instance, kTag);
        }
    }
    for (auto it = writers.begin(); it != writers.end(); ++it)
      if (auto next = std::next(it); next != writers.end() && !read_tags.count(it->first))
        for (int w : it->second)
          for (int x : next->second)
            if (use(w).instance != use(x).instance) require(use(w).instance, use(x).instance, kTag);
  }

  // ---- exploration
  struct Partner {
    int64_t queue, pos;
    size_t pair;
    bool first;  // this partner is the first of the pair
    uint32_t need;
  };
  std::vector<std::vector<Partner>> partners_;
  std::vector<uint8_t> seen_order_;
  struct Threshold {
    int32_t counter;
    int64_t need;
    bool before;  // a wait on the step before
  };
  std::vector<std::vector<Threshold>> thresholds_;
  std::vector<std::vector<int64_t>> prefix_;  // [queue][counter * (n_q + 1) + tasks completed]

  void index_pairs() {
    partners_.resize(size_t(n_inst));
    size_t pairs = 0;
    for (int64_t a = 0; a < n_inst; ++a)
      for (int64_t b = a + 1; b < n_inst; ++b)
        if (conflict_[size_t(a * n_inst + b)]) {
          partners_[size_t(b)].push_back({queue_[size_t(a)], pos_[size_t(a)], pairs, true, 0});
          partners_[size_t(a)].push_back({queue_[size_t(b)], pos_[size_t(b)], pairs, false, 0});
          ++pairs;
        }
    seen_order_.assign(pairs, 0);
    for (const auto& [ab, label] : need_) partners_[size_t(ab.second)].push_back({queue_[size_t(ab.first)], pos_[size_t(ab.first)], 0, true, label});
    thresholds_.resize(size_t(n_inst));
    for (int64_t k = 0; k < n_inst; ++k) {
      const auto b = size_t(task_[size_t(k)]);
      for (int64_t w = t.wait_off[b]; w < t.wait_off[b + 1]; ++w) {
        const auto x = size_t(w);
        const int64_t step = step_[size_t(k)] + t.wait_e[x];
        if (step >= 0) thresholds_[size_t(k)].push_back({t.wait_counter[x], step * t.counters[size_t(t.wait_counter[x])] + t.wait_t[x], t.wait_e[x] == -1});
      }
    }
    for (int64_t q = 0; q < t.n_queues; ++q) {
      const int64_t n = len_[size_t(q)] * t.steps;
      std::vector<int64_t> sums(t.counters.size() * size_t(n + 1), 0);
      for (size_t c = 0; c < t.counters.size(); ++c)
        for (int64_t p = 0; p < n; ++p) {
          const auto b = size_t(task_[size_t(base_[size_t(q)] + p)]);
          int64_t add = 0;
          for (int64_t g = t.sig_off[b]; g < t.sig_off[b + 1]; ++g)
            if (t.sig_counter[size_t(g)] == int32_t(c)) add += t.sig_amount[size_t(g)];
          sums[c * size_t(n + 1) + size_t(p) + 1] = sums[c * size_t(n + 1) + size_t(p)] + add;
        }
      prefix_.push_back(std::move(sums));
    }
  }

  int64_t total(int64_t q) const { return len_[size_t(q)] * t.steps; }
  bool enabled(int64_t instance, const std::vector<int64_t>& event, bool with_tags, bool only_before = false) const {
    for (const auto& [c, need, before] : thresholds_[size_t(instance)]) {
      if (only_before && !before) continue;
      int64_t count = 0;
      for (int64_t q = 0; q < t.n_queues; ++q) count += prefix_[size_t(q)][size_t(c * (total(q) + 1) + event[size_t(q)] / 2)];
      if (count < need) return false;
    }
    if (with_tags)
      for (int64_t a : tag_wait_[size_t(instance)])
        if (event[size_t(queue_[size_t(a)])] < 2 * pos_[size_t(a)] + 2) return false;
    return true;
  }

  // event[q] = 2 * (tasks of q completed) + (1: the next one is running).  Without tags: orders of conflicting accesses, by
  // queue order and counters alone.  With tags (or where no tagged read exists): deadlocks.
  bool explore(bool with_tags) {
    const int64_t Q = t.n_queues;
    std::vector<uint64_t> weight(static_cast<size_t>(Q)), radix(static_cast<size_t>(Q));
    Wide universe = 1;
    for (int64_t q = 0; q < Q; ++q) {
      weight[size_t(q)] = uint64_t(universe), radix[size_t(q)] = uint64_t(2 * total(q) + 1);
      universe *= radix[size_t(q)];
      if (universe >= Wide(1) << 62) return give_up("state space"), false;
    }
    const bool deadlocks = with_tags || tag_waits_empty_, orders = !with_tags;
    StateSet seen{uint64_t(universe)};
    std::vector<uint64_t> stack{0};
    seen.insert(0);
    std::vector<int64_t> event(static_cast<size_t>(Q));
    std::vector<uint8_t> ready(static_cast<size_t>(Q));
    while (!stack.empty()) {
      uint64_t code = stack.back();
      stack.pop_back();
      if (++states > budget) return give_up("state budget"), false;
      bool running = false;
      for (int64_t q = 0; q < Q; ++q) {
        event[size_t(q)] = int64_t(code / weight[size_t(q)] % radix[size_t(q)]);
        running |= event[size_t(q)] & 1;
      }
      for (int64_t q = 0; q < Q; ++q) {
        const int64_t e = event[size_t(q)];
        ready[size_t(q)] = 0;
        if (e & 1) {  // the running task ends
          if (seen.insert(code + weight[size_t(q)])) stack.push_back(code + weight[size_t(q)]);
        } else if (e < 2 * total(q)) {
          const int64_t k = base_[size_t(q)] + e / 2;
          if (orders) decision(q, event);
          if (!enabled(k, event, with_tags)) continue;
          ready[size_t(q)] = 1;
          if (orders) start(k, event);
          if (!atomic_) {
            if (seen.insert(code + weight[size_t(q)])) stack.push_back(code + weight[size_t(q)]);
          } else if (seen.insert(code + 2 * weight[size_t(q)])) {
            stack.push_back(code + 2 * weight[size_t(q)]);
          }
        }
      }
      if (orders && atomic_) overlaps(event, ready);
      if (deadlocks && !running) stuck(event, ready);
    }
    return true;
  }

  void start(int64_t k, const std::vector<int64_t>& event) {
    for (const Partner& p : partners_[size_t(k)]) {
      const int64_t e = event[size_t(p.queue)];
      const bool ended = e >= 2 * p.pos + 2;
      if (p.need) {
        if (!ended) mark(p.need, "task " + num(task_[size_t(k)]) + " starts before task " + num(task_[size_t(base_[size_t(p.queue)] + p.pos)]) + " has ended");
        continue;
      }
      uint8_t& order = seen_order_[p.pair];
      order |= e == 2 * p.pos + 1 ? 3 : (ended == p.first ? 1 : 2);
      if (order == 3)
        mark(kRace, "task " + num(task_[size_t(k)]) + " step " + num(step_[size_t(k)]) + " and task " +
                        num(task_[size_t(base_[size_t(p.queue)] + p.pos)]) + " step " + num(step_[size_t(base_[size_t(p.queue)] + p.pos)]));
    }
  }

  // Atomic mode: two tasks that are enabled together could be started one after the other and overlap.
  void overlaps(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready) {
    for (int64_t q = 0; q < t.n_queues; ++q)
      if (ready[size_t(q)])
        for (const Partner& p : partners_[size_t(base_[size_t(q)] + event[size_t(q)] / 2)])
          if (ready[size_t(p.queue)] && event[size_t(p.queue)] == 2 * p.pos) mark(p.need ? p.need : uint32_t(kRace), "two tasks enabled together");
  }

  // A state without running tasks is a dead end of the launch of T steps iff no queue that has work left in those T steps is
  // enabled.  States of a shorter launch are exactly the states of the longest one in which no queue has passed step T.
  void stuck(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready) {
    for (int64_t steps = 1; steps <= t.steps; ++steps) {
      bool within = true, complete = true, moves = false;
      for (int64_t q = 0; q < t.n_queues; ++q) {
        const int64_t done = event[size_t(q)] / 2, all = len_[size_t(q)] * steps;
        within &= done <= all;
        complete &= done == all;
        moves |= done < all && ready[size_t(q)];
      }
      if (within && !complete && !moves) mark(kLive, "a launch of " + num(steps) + " steps can get stuck");
    }
  }

  // ---- data flow of a schedule without races and deadlocks: every execution moves the same values, so one is enough
  std::vector<int64_t> order_;
  void linear_order() {
    std::vector<int64_t> event(static_cast<size_t>(t.n_queues), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (int64_t q = 0; q < t.n_queues; ++q)
        while (event[size_t(q)] < 2 * total(q) && enabled(base_[size_t(q)] + event[size_t(q)] / 2, event, true)) {
          order_.push_back(base_[size_t(q)] + event[size_t(q)] / 2);
          event[size_t(q)] += 2;
          moved = true;
        }
    }
  }

  size_t scene_at_ = 0;
  std::set<std::pair<int64_t, int64_t>> feeds_;  // (writer task, reader task) of real ops
  std::set<int64_t> effect_;                     // tasks whose result leaves the launch
  void data_flow(const std::vector<int64_t>&) {
    const Scene& s = scenes_[scene_at_++];
    struct Byte {
      uint64_t certain = 0;  // steps in which a certain write has ended
      bool initial = false, generic = false;
      std::vector<int> history;  // uses that wrote, oldest first
    };
    std::vector<Byte> mem(static_cast<size_t>(s.n_segments));
    for (auto [lo, hi] : s.initial)
      for (int g = lo; g < hi; ++g) mem[size_t(g)].initial = true;
    std::vector<std::vector<int>> of(static_cast<size_t>(n_inst));
    for (size_t u = 0; u < s.uses.size(); ++u) of[size_t(s.uses[u].instance)].push_back(int(u));
    for (int64_t k : order_) {
      const int64_t i = step_[size_t(k)], task = task_[size_t(k)];
      for (int u : of[size_t(k)])
        if (const Use& x = s.uses[size_t(u)]; !(x.flags & kWrite))
          for (auto [lo, hi] : x.segments)
            for (int g = lo; g < hi; ++g) read(s, x, mem[size_t(g)], i, task);
      for (int u : of[size_t(k)])
        if (const Use& x = s.uses[size_t(u)]; x.flags & kWrite)
          for (auto [lo, hi] : x.segments)
            for (int g = lo; g < hi; ++g) {
              Byte& m = mem[size_t(g)];
              if (!(x.flags & kMaybe)) m.certain |= uint64_t{1} << i;
              if (!(x.flags & kAsync)) m.generic = true;
              m.history.push_back(u);
            }
      proxy_release(k);
    }
    for (size_t b = 0; b < t.buffers.size(); ++b)
      if (t.buffers[b].kind == kOutput)
        for (auto [lo, hi] : s.extents[b])
          for (int g = lo; g < hi; ++g) output(s, int64_t(b), mem[size_t(g)]);
  }

  // What the host finds in a byte of an output buffer when a launch of any number of steps has ended.
  template <class Byte>
  void output(const Scene& s, int64_t b, const Byte& m) {
    if (!m.certain) mark(kCover, "output buffer " + num(b) + " is not written everywhere");
    auto step = [&](int u) { return step_[size_t(s.uses[size_t(u)].instance)]; };
    for (int64_t steps = 1; steps <= t.steps; ++steps) {
      int last = -1;
      for (int u : m.history)
        if (step(u) < steps) last = u;
      if (last >= 0 && s.uses[size_t(last)].buffer != b) mark(kFlow, "output buffer " + num(b) + " is overwritten under another name");
    }
    if (t.buffers[size_t(b)].lifetime != kHost) return;
    std::set<int64_t> steps;
    bool ring = false;
    for (int u : m.history) steps.insert(step(u)), ring |= s.uses[size_t(u)].moves;
    if (ring && steps.size() > 1) mark(kCover, "a row of the host ring " + num(b) + " is written again");
  }

  template <class Byte>
  void read(const Scene& s, const Use& x, const Byte& m, int64_t i, int64_t task) {
    const auto& buffer = t.buffers[size_t(x.buffer)];
    const bool per_step = buffer.lifetime == kStep;
    const int64_t from = x.flags & kPrevEpoch && buffer.tagged ? i - 1 : i;  // the tag names the step
    bool covered;
    if (buffer.tagged)
      covered = from < 0 ? m.initial : (m.certain >> from & 1) != 0;
    else if (per_step)
      covered = (m.certain >> i & 1) || (i == 0 && m.initial);
    else
      covered = m.certain || m.initial;
    if (!covered && !(x.flags & kMaybe)) mark(kCover, "task " + num(task) + " step " + num(i) + " reads what nobody wrote");
    bool found = false;
    for (size_t k = m.history.size(); k-- > 0;) {
      const Use& w = s.uses[size_t(m.history[k])];
      const int64_t ws = step_[size_t(w.instance)], writer = task_[size_t(w.instance)];
      if (buffer.tagged ? ws != from : (per_step && ws != i)) continue;
      found = true;
      feeds_.insert({writer, task});
      if (x.label >= 0 && (w.label != x.label || w.buffer != x.buffer))
        mark(kFlow, "task " + num(task) + " step " + num(i) + " reads a value of task " + num(writer));
      if (!(w.flags & kMaybe) || x.flags & kMaybe) break;  // what may not have been written leaves what was there before
    }
    if (x.label >= 0 && !found && x.flags & kMaybe && !(buffer.tagged ? from < 0 && m.initial : m.initial && (!per_step || i == 0)))
      mark(kFlow, "task " + num(task) + " step " + num(i) + " reads no value at all");
    if (x.flags & kAsync && m.generic && !(t.task_fences[size_t(task)] & 1))
      mark(kProxy, "task " + num(task) + " reads generic writes through the async proxy without a fence");
  }

  void proxy_release(int64_t k) {
    const auto b = size_t(task_[size_t(k)]);
    bool async_write = false;
    for (int64_t a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a)
      async_write |= (t.acc_flags[size_t(a)] & kAsync) && (t.acc_flags[size_t(a)] & kWrite);
    const bool followed = pos_[size_t(k)] + 1 < total(queue_[size_t(k)]), signals = t.sig_off[b + 1] > t.sig_off[b];
    if (async_write && (followed || signals) && !(t.task_fences[b] & 2))
      mark(kProxy, "task " + num(int64_t(b)) + " releases bulk stores that are not complete");
  }

  // Every real op must reach something that outlives its step, or an opaque task.  A launch without output buffers (a prefill) is run for
  // what it leaves behind, and may compute a whole layer for that.
  void side_effects() {
    bool outputs = false;
    for (const auto& b : t.buffers) outputs |= b.kind == kOutput;
    if (!outputs) return;
    std::set<int64_t> useful;
    for (int64_t b = 0; b < t.n_tasks; ++b) {
      bool out = t.task_op[size_t(b)] == 0;
      for (int64_t a = t.acc_off[size_t(b)]; a < t.acc_off[size_t(b) + 1]; ++a) {
        const auto& buffer = t.buffers[size_t(t.acc_buffer[size_t(a)])];
        const bool stays = buffer.kind == kOutput || buffer.kind == kKv || buffer.kind == kToken || buffer.lifetime != kStep;
        out |= (t.acc_flags[size_t(a)] & kWrite) && stays;
      }
      if (out) useful.insert(b);
    }
    for (bool grown = true; grown;) {
      grown = false;
      for (auto [w, r] : feeds_)
        if (useful.count(r)) grown |= useful.insert(w).second;
    }
    for (int64_t b = 0; b < t.n_tasks; ++b)
      if (!useful.count(b)) mark(kCover, "task " + num(b) + " reaches no output");
  }
};

using Answer = std::tuple<uint32_t, int64_t, std::string, std::vector<std::string>>;

Answer oracle(nb::bytes tables, int64_t max_states, bool atomic) {
  std::vector<uint64_t> copy;
  const Tables t(aligned({tables.c_str(), tables.size()}, copy));
  Oracle o(t, max_states, atomic);
  {
    nb::gil_scoped_release release;
    o.run();
  }
  return {o.labels, o.states, o.undecided, o.notes};
}

}  // namespace

void bind_oracle(nb::module_& m) {
  m.def("oracle", &oracle, nb::arg("tables"), nb::arg("max_states"), nb::arg("atomic"),
        "Label a small schedule by walking every interleaving: (label bits, states, why undecided or '', one note a label).");
}

}  // namespace amk
