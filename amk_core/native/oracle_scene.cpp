// Physical bytes of all accesses for one assignment of the launch variables, and what follows from their overlaps.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "oracle.hpp"

namespace amk::oracle {

int64_t Oracle::space(int32_t buffer, int64_t queue) const {
  const auto& b = t.buffers[size_t(buffer)];
  return b.pool * (t.n_queues + 1) + (t.pools[size_t(b.pool)].per_queue ? queue + 1 : 0);
}

void Oracle::bytes_of(int32_t buffer, Range r, Range c, int64_t queue, std::vector<Interval>& out) const {
  const auto& b = t.buffers[size_t(buffer)];
  if (r.lo >= r.hi || c.lo >= c.hi) return;
  auto add = [&](Wide first, Wide last) {  // bits, rounded outward to bytes
    out.push_back({space(buffer, queue), int64_t(b.offset + first / 8), int64_t(b.offset + (last + 7) / 8)});
  };
  if (c.lo == 0 && c.hi == b.cols) return add(r.lo * b.cols * b.bits, r.hi * b.cols * b.bits);
  for (Wide row = r.lo; row < r.hi; ++row) add((row * b.cols + c.lo) * b.bits, (row * b.cols + c.hi) * b.bits);
}

std::vector<Interval> Oracle::extent(int32_t buffer) const {  // every byte of a buffer, in every instance of its pool
  const auto& b = t.buffers[size_t(buffer)];
  std::vector<Interval> out;
  const bool each = t.pools[size_t(b.pool)].per_queue;
  for (int64_t q = 0; q < (each ? t.n_queues : 1); ++q) bytes_of(buffer, {0, b.rows}, {0, b.cols}, q, out);
  return out;
}

Scene Oracle::scene(const std::vector<int64_t>& v) {
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

void Oracle::require(int64_t a, int64_t b, uint32_t label) {
  if (queue_[size_t(a)] == queue_[size_t(b)]) {
    if (pos_[size_t(a)] >= pos_[size_t(b)]) mark(label, "task " + num(task_[size_t(a)]) + " stands after task " + num(task_[size_t(b)]));
  } else {
    need_[{a, b}] |= label;
  }
}

void Oracle::stop_rule() {
  if (t.stop_task < 0) return;
  bool writes = false;
  for (int64_t a = t.acc_off[size_t(t.stop_task)]; a < t.acc_off[size_t(t.stop_task) + 1]; ++a)
    writes |= t.acc_buffer[size_t(a)] == t.stop_buffer && (t.acc_flags[size_t(a)] & (kWrite | kMaybe)) == kWrite;
  if (!writes) mark(kStop, "the stop task does not write the stop buffer");
  for (int64_t k = 0; k < n_inst; ++k)
    if (task_[size_t(k)] == t.stop_task && step_[size_t(k)] == 0) stop_at_ = k;
}

void Oracle::conflicts_of(const std::vector<int64_t>& v) {
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

void Oracle::tags(const Scene& s, const std::vector<int>& plain_reads, const std::vector<int>& plain_writes,
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

}  // namespace amk::oracle
