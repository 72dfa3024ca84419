// The exhaustive oracle, shared by its parts: ground truth for small schedules.
//
//   oracle_structure.cpp  REF, COUNT, FIT; the instances of tasks and the values of launch variables
//   oracle_scene.cpp      the bytes of all accesses: what must not overlap, what must be over before a task starts
//   oracle_explore.cpp    every reachable state: RACE, LIVE, TAG, STOP
//   oracle_flow.cpp       what is read and what comes out: COVER, FLOW, PROXY
//   oracle.cpp            the order of things and the Python binding
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tables.hpp"

namespace amk::oracle {

enum Label : uint32_t {  // bit k is rule k of kRules in oracle.py
  kRef = 1, kCount = 2, kLive = 4, kRace = 8, kTag = 16, kCover = 32, kFlow = 64, kRo = 128, kStop = 256, kFit = 512, kProxy = 1024,
};

inline constexpr int64_t kMaxSteps = 64;          // more steps are not "small"
inline constexpr int64_t kMaxAssignments = 1024;  // values of all used launch variables together
inline constexpr int64_t kMaxInstances = 4096;
inline constexpr int64_t kMaxIntervals = 1 << 20;

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

struct Range {
  Wide lo, hi;
};

struct Scene {  // all that one assignment of the variables fixes
  std::vector<Use> uses;
  std::vector<std::vector<std::pair<int, int>>> extents;   // per buffer
  std::vector<std::pair<int, int>> initial;
  int n_segments = 0;
  bool too_large = false;
};

struct Partner {
  int64_t queue, pos;
  size_t pair;
  bool first;  // this partner is the first of the pair
  uint32_t need;
};

struct Threshold {
  int32_t counter;
  int64_t need;
  bool before;  // a wait on the step before
};

class Oracle {
 public:
  Oracle(const Tables& tables, int64_t max_states, bool atomic) : t(tables), budget(max_states), atomic_(atomic) {}
  void run();

  uint32_t labels = 0;
  int64_t states = 0;
  std::string undecided;
  std::vector<std::string> notes;

 private:
  const Tables& t;
  int64_t budget;
  bool atomic_;
  int64_t n_inst = 0;
  std::vector<int64_t> base_, len_, task_, queue_, step_, pos_;
  std::vector<std::vector<int64_t>> values_;
  std::vector<Scene> scenes_;
  std::vector<uint8_t> conflict_;                        // [n, n]: unordered pairs a < b of different queues
  std::map<std::pair<int64_t, int64_t>, uint32_t> need_;  // (a, b): a has ended whenever b starts, else this label
  std::vector<std::set<int64_t>> tag_wait_;              // instance: those that must have ended before its tagged reads are done
  bool tag_waits_empty_ = true;
  // A queue that comes to step i + 1 waits for the e = -1 waits of its first task, reads stop[i], and leaves or goes on.  So the
  // task that writes stop[i] must have ended in every state in which some queue has got so far.
  int64_t stop_at_ = -1;  // instance of the stop task in step 0
  std::vector<std::vector<Partner>> partners_;
  std::vector<uint8_t> seen_order_;
  std::vector<std::vector<Threshold>> thresholds_;
  std::vector<std::vector<int64_t>> prefix_;  // [queue][counter * (n_q + 1) + tasks completed]
  std::vector<int64_t> order_;
  size_t scene_at_ = 0;
  std::set<std::pair<int64_t, int64_t>> feeds_;  // (writer task, reader task) of real ops

  void give_up(const char* what) { undecided = std::string("too large for the oracle: ") + what; }
  void mark(uint32_t label, const std::string& note) {
    if (!(labels & label)) notes.push_back(note);
    labels |= label;
  }
  static std::string num(int64_t x) { return std::to_string(x); }
  int64_t total(int64_t q) const { return len_[size_t(q)] * t.steps; }

  // oracle_structure.cpp
  void structure();
  void build_instances();
  bool assignments();
  Range range(int64_t lo, int64_t hi, int32_t aff, int64_t step, const std::vector<int64_t>& v) const;
  void bounds();

  // oracle_scene.cpp
  int64_t space(int32_t buffer, int64_t queue) const;
  void bytes_of(int32_t buffer, Range r, Range c, int64_t queue, std::vector<Interval>& out) const;
  std::vector<Interval> extent(int32_t buffer) const;  // every byte of a buffer, in every instance of its pool
  Scene scene(const std::vector<int64_t>& v);
  void require(int64_t a, int64_t b, uint32_t label);
  void stop_rule();
  void conflicts_of(const std::vector<int64_t>& v);
  void tags(const Scene& s, const std::vector<int>& plain_reads, const std::vector<int>& plain_writes,
            const std::vector<int>& reads, const std::vector<int>& writes);

  // oracle_explore.cpp
  void decision(int64_t q, const std::vector<int64_t>& event);
  void index_pairs();
  bool enabled(int64_t instance, const std::vector<int64_t>& event, bool with_tags, bool only_before = false) const;
  bool explore(bool with_tags);
  void start(int64_t k, const std::vector<int64_t>& event);
  void overlaps(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready);
  void stuck(const std::vector<int64_t>& event, const std::vector<uint8_t>& ready);

  // oracle_flow.cpp
  void linear_order();
  void data_flow(const std::vector<int64_t>&);
  template <class Byte>
  void output(const Scene& s, int64_t b, const Byte& m);
  template <class Byte>
  void read(const Scene& s, const Use& x, const Byte& m, int64_t i, int64_t task);
  void proxy_release(int64_t k);
  void side_effects();
};

}  // namespace amk::oracle
