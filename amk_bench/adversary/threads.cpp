// Runs schedules of opaque tasks on host threads, one a queue, through the wait, signal and tagged hand-off of vm/protocol.h.
// A body reads and writes its declared bytes plainly, so ThreadSanitizer sees every access that nothing orders.
//
// Arguments: a file of cases (layout: amk_bench/adversary/threads.py), runs of each case, seed.  Standard output: one record of
// int64 words a run.  Build with -fsanitize=thread; without it only hangs and wrong values are seen.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol.h"

static std::atomic<int64_t> g_reports{0};

extern "C" {
void __tsan_on_report(void*);
const char* __tsan_default_options();
}
void __tsan_on_report(void*) { g_reports.fetch_add(1, std::memory_order_relaxed); }
// Every race of every case is reported, even where it is the same line of this file as the last one.
const char* __tsan_default_options() {
  return "suppress_equal_stacks=0:suppress_equal_addresses=0:symbolize=0:exitcode=0:atexit_sleep_ms=0:halt_on_error=0";
}

namespace {

enum Kind : int64_t { kRead, kWrite, kTaggedRead, kTaggedWrite };
enum Status : int64_t { kDone, kHung, kNewerTag };

constexpr uint64_t kPatienceNs = 2'000;           // then a waiting queue looks whether anybody can go on at all
constexpr int kNapUs = 20, kLongestNap = 20;      // and naps before it waits again, longer each time
constexpr uint64_t kBoundNs = 20'000'000'000;     // of one wait, however it looks
constexpr uint64_t kHoldNs = 500'000'000;         // a steered queue that waits longer for the others goes its own way

struct Need {
  int64_t counter, value;
};
struct Touch {
  int64_t word, kind, tag;
};
struct Instance {
  int64_t step, first, stops;
  std::vector<Need> needs, gives;
  std::vector<Touch> touches;
};
struct Case {
  int64_t id = 0, counters = 0, stop_after = -1;
  std::vector<std::vector<Instance>> queues;
  std::vector<uint64_t> initial;
  std::vector<int64_t> steer;  // instances that each queue completes before anybody goes on; empty: not steered
  std::vector<int64_t> pair;   // the two queues whose bodies then start together, or the first one after the second one has ended
  bool together = true;
};

struct Reader {
  const std::vector<int64_t>& words;
  size_t at = 0;
  int64_t next() { return words.at(at++); }
};

Case read_case(Reader& in) {
  Case c;
  c.id = in.next(), c.counters = in.next(), c.stop_after = in.next();
  c.queues.resize(size_t(in.next()));
  c.initial.resize(size_t(in.next()));
  for (auto& x : c.initial) x = uint64_t(in.next());
  if (in.next()) {
    for (size_t q = 0; q < c.queues.size(); ++q) c.steer.push_back(in.next());
    c.pair.push_back(in.next()), c.pair.push_back(in.next());
    c.together = in.next() != 0;
  }
  for (auto& queue : c.queues) {
    queue.resize(size_t(in.next()));
    for (auto& x : queue) {
      x.step = in.next(), x.first = in.next(), x.stops = in.next();
      for (auto* list : {&x.needs, &x.gives}) {
        list->resize(size_t(in.next()));
        for (auto& n : *list) n.counter = in.next(), n.value = in.next();
      }
      x.touches.resize(size_t(in.next()));
      for (auto& t : x.touches) t.word = in.next(), t.kind = in.next(), t.tag = in.next();
    }
  }
  return c;
}

// Delays of one queue in one run: it hurries, or dawdles in one of several ways, so that other orders are seen.
struct Delays {
  uint64_t state;
  int pace;
  Delays(uint64_t seed, bool none) : state(seed * 0x9E3779B97F4A7C15u + 1) {
    next();
    pace = none ? 0 : int(next() % 5);
  }
  uint64_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state >> 11;
  }
  void operator()() {
    if (pace == 1 || (pace == 4 && next() % 2)) {
      std::this_thread::yield();
    } else if (pace == 2) {
      for (uint64_t n = next() % 400; n > 0; --n) amk::relax(0);
    } else if (pace == 3 && next() % 3 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(next() % 120));
    }
  }
};

struct alignas(64) Counter {
  uint32_t value = 0;
};
struct alignas(64) Place {
  std::atomic<int64_t> at{0};       // instances completed; past the end once the queue has left
  std::atomic<int64_t> started{0};  // instances whose waits hold
  std::vector<int64_t> seen;        // what the reads of the queue found, in order
};

class Run {
 public:
  Run(const Case& c, uint64_t seed, bool hurry) : c_(c), counters_(size_t(c.counters)), memory_(c.initial), places_(c.queues.size()) {
    std::vector<std::thread> threads;
    const int64_t before = g_reports.load(std::memory_order_relaxed);
    for (size_t q = 0; q < c.queues.size(); ++q) threads.emplace_back([=, this] { queue(q, Delays(seed + q * 7919, hurry)); });
    gate_.store(true, std::memory_order_relaxed);
    for (auto& t : threads) t.join();
    reports_ = g_reports.load(std::memory_order_relaxed) - before;
  }

  void record(int64_t run, std::vector<int64_t>& out) const {
    out.insert(out.end(), {c_.id, run, status_, reports_, int64_t(places_.size())});
    for (size_t q = 0; q < places_.size(); ++q) {
      const int64_t at = places_[q].at, all = int64_t(c_.queues[q].size());
      out.push_back(at > all ? at - all - 1 : at);
      out.push_back(int64_t(places_[q].seen.size()));
      out.insert(out.end(), places_[q].seen.begin(), places_[q].seen.end());
    }
    out.push_back(int64_t(memory_.size()));
    for (uint64_t x : memory_) out.push_back(int64_t(x));
  }

 private:
  const Case& c_;
  std::vector<Counter> counters_;
  std::vector<uint64_t> memory_;
  std::vector<Place> places_;
  std::atomic<bool> gate_{false};
  uint32_t abort_ = 0, stop_at_ = amk::kNeverStops;
  std::atomic<int64_t> first_failure_{kDone};
  int64_t status_ = kDone, reports_ = 0;

  // Nothing here may order bodies: what ThreadSanitizer shall see is the order of the protocol alone.  So: relaxed.
  void queue(size_t q, Delays delay) {
    while (!gate_.load(std::memory_order_relaxed)) std::this_thread::yield();
    const auto& list = c_.queues[q];
    Place& me = places_[q];
    for (int64_t k = 0; k < int64_t(list.size()); ++k) {
      if (!c_.steer.empty() && c_.steer[q] == k) hold([&](size_t r) { return places_[r].at.load(std::memory_order_relaxed) >= c_.steer[r]; });
      delay();
      if (!instance(q, list[size_t(k)], k)) {
        me.at.store(int64_t(list.size()) + 1 + k, std::memory_order_relaxed);
        return;
      }
      me.at.store(k + 1, std::memory_order_relaxed);
    }
  }

  bool instance(size_t q, const Instance& x, int64_t k) {
    Place& me = places_[q];
    for (const Need& n : x.needs) {
      int64_t has = 0;
      const uint32_t* counter = &counters_[size_t(n.counter)].value;
      if (!patient([&](const amk::Spin& spin) { return amk::wait_at_least(counter, n.value, x.step, spin, &has); })) return false;
    }
    if (x.first && int64_t(amk::load_acquire(&stop_at_)) <= x.step) return false;
    me.started.store(k + 1, std::memory_order_relaxed);
    if (!c_.steer.empty() && c_.steer[q] == k) {
      const size_t first = size_t(c_.pair[0]), second = size_t(c_.pair[1]);
      if (c_.together && (q == first || q == second))
        hold([&](size_t r) { return (r != first && r != second) || places_[r].started.load(std::memory_order_relaxed) > c_.steer[r]; });
      else if (!c_.together && q == first)
        hold([&](size_t r) { return r != second || places_[r].at.load(std::memory_order_relaxed) > c_.steer[r]; });
    }
    const uint32_t mine = uint32_t(instance_number(q) + size_t(k) + 2);  // 0 is poison, 1 what was there at the start
    for (const Touch& t : x.touches) {
      uint64_t* word = &memory_[size_t(t.word)];
      if (t.kind == kRead) {
        me.seen.push_back(int64_t(uint32_t(*static_cast<volatile uint64_t*>(word))));
      } else if (t.kind == kWrite) {
        *static_cast<volatile uint64_t*>(word) = mine;
      } else if (t.kind == kTaggedWrite) {
        amk::store_tagged(word, mine, uint32_t(t.tag));
      } else {
        uint32_t value = 0, tag = 0;
        if (!patient([&](const amk::Spin& spin) { return amk::wait_tagged(word, uint32_t(t.tag), x.step, spin, &value, &tag); })) return false;
        me.seen.push_back(int64_t(value));
      }
    }
    if (x.stops && c_.stop_after == x.step) amk::store_release(&stop_at_, uint32_t(x.step + 1));
    for (const Need& n : x.gives) amk::signal(&counters_[size_t(n.counter)].value, uint32_t(n.value));
    return true;
  }

  size_t instance_number(size_t q) const {
    size_t n = 0;
    for (size_t r = 0; r < q; ++r) n += c_.queues[r].size();
    return n;
  }

  template <class F>
  void hold(F ready) {
    for (const uint64_t start = amk::now_ns(); amk::now_ns() - start < kHoldNs && amk::load_acquire(&abort_) == 0;) {
      bool all = true;
      for (size_t r = 0; r < places_.size(); ++r) all &= bool(ready(r));
      if (all) return;
      std::this_thread::yield();
    }
  }

  // A bounded wait, again and again while somebody can still go on: a slow machine is not a hang.
  template <class F>
  bool patient(F wait) {
    const amk::Spin spin{&abort_, &stop_at_, kPatienceNs};
    const uint64_t start = amk::now_ns();
    for (int attempt = 1;; ++attempt) {
      const amk::WaitStatus status = wait(spin);
      if (status == amk::kReady) return true;
      if (status == amk::kOvertaken) return fail(kNewerTag);
      if (status != amk::kTimedOut) return false;
      if (stuck() || amk::now_ns() - start > kBoundNs) return fail(kHung);
      std::this_thread::sleep_for(std::chrono::microseconds(kNapUs * std::min(attempt, kLongestNap)));
    }
  }
  bool fail(Status why) {
    int64_t none = kDone;
    if (first_failure_.compare_exchange_strong(none, why, std::memory_order_relaxed)) status_ = why;
    amk::store_release(&abort_, 1);
    return false;
  }

  // No queue can go on.  Places are read before counters: a queue that has moved since was able to, and counters only grow.
  bool stuck() {
    std::vector<int64_t> at;
    for (auto& p : places_) at.push_back(p.at.load(std::memory_order_relaxed));
    std::atomic_signal_fence(std::memory_order_seq_cst);
    for (size_t q = 0; q < places_.size(); ++q) {
      if (at[q] >= int64_t(c_.queues[q].size())) continue;
      const Instance& x = c_.queues[q][size_t(at[q])];
      bool goes = true;
      for (const Need& n : x.needs) goes &= int64_t(std::atomic_ref(counters_[size_t(n.counter)].value).load(std::memory_order_relaxed)) >= n.value;
      for (const Touch& t : x.touches)
        if (t.kind == kTaggedRead) goes &= int64_t(amk::load_tagged(&memory_[size_t(t.word)]) >> 32) >= t.tag;
      if (goes || int64_t(std::atomic_ref(stop_at_).load(std::memory_order_relaxed)) <= x.step) return false;
    }
    return true;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: %s CASES RUNS SEED\n", argv[0]), 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::string raw{std::istreambuf_iterator<char>(file), {}};
  std::vector<int64_t> words(raw.size() / 8);
  std::memcpy(words.data(), raw.data(), words.size() * 8);
  const int64_t runs = std::atoll(argv[2]);
  const uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  for (Reader in{words}; in.at < words.size();) {
    const Case c = read_case(in);
    std::vector<int64_t> out;
    for (int64_t r = 0; r < (c.steer.empty() ? runs : 1); ++r) Run(c, seed * 1000003 + uint64_t(c.id) * 131 + uint64_t(r), r == 0).record(r, out);
    std::fwrite(out.data(), 8, out.size(), stdout);
  }
  return 0;
}
