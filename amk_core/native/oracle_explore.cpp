// Every reachable state, the start and the end of a task being separate events.
#include "oracle.hpp"

namespace amk::oracle {
namespace {

constexpr uint64_t kBitmapStates = uint64_t{1} << 27;  // below: one bit a state; above: a hash set

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

}  // namespace

void Oracle::decision(int64_t q, const std::vector<int64_t>& event) {
  const int64_t done = event[size_t(q)] / 2, length = len_[size_t(q)];
  if (stop_at_ < 0 || length == 0 || done == 0 || done % length || done >= total(q)) return;
  if (!enabled(base_[size_t(q)] + done, event, false, true)) return;
  const int64_t writer = stop_at_ + (done / length - 1) * len_[size_t(queue_[size_t(stop_at_)])];
  if (event[size_t(queue_[size_t(writer)])] < 2 * pos_[size_t(writer)] + 2)
    mark(kStop, "queue " + num(q) + " decides on step " + num(done / length) + " before the stop task has ended");
}

void Oracle::index_pairs() {
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

bool Oracle::enabled(int64_t instance, const std::vector<int64_t>& event, bool with_tags, bool only_before) const {
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
bool Oracle::explore(bool with_tags) {
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

void Oracle::start(int64_t k, const std::vector<int64_t>& event) {
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
void Oracle::overlaps(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready) {
  for (int64_t q = 0; q < t.n_queues; ++q)
    if (ready[size_t(q)])
      for (const Partner& p : partners_[size_t(base_[size_t(q)] + event[size_t(q)] / 2)])
        if (ready[size_t(p.queue)] && event[size_t(p.queue)] == 2 * p.pos) mark(p.need ? p.need : uint32_t(kRace), "two tasks enabled together");
}

// A state without running tasks is a dead end of the launch of T steps iff no queue that has work left in those T steps is
// enabled.  States of a shorter launch are exactly the states of the longest one in which no queue has passed step T.
void Oracle::stuck(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready) {
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

}  // namespace amk::oracle
