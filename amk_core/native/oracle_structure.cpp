// What can be seen of a schedule without running it, its instances, and every value of its launch variables.
#include <set>

#include "oracle.hpp"

namespace amk::oracle {

void Oracle::structure() {
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

void Oracle::build_instances() {
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

bool Oracle::assignments() {
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

Range Oracle::range(int64_t lo, int64_t hi, int32_t aff, int64_t step, const std::vector<int64_t>& v) const {
  if (aff < 0) return {lo, hi};
  const auto& a = t.affine[size_t(aff)];
  Wide start = Wide(a.add) + (a.var < 0 ? 0 : v[size_t(a.var)]) + Wide(a.stride) * step;
  if (a.mod > 0) start = ((start % a.mod) + a.mod) % a.mod;
  const Wide length = Wide(a.length) + (a.length_var < 0 ? 0 : v[size_t(a.length_var)]) + Wide(a.length_stride) * step;
  return {start, start + length};
}

void Oracle::bounds() {
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

}  // namespace amk::oracle
