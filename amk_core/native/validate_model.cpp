// REF and COUNT: what the numbers refer to.  Arithmetic here is checked or 128 bits wide; later parts rely on the bounds found here.
#include <algorithm>
#include <limits>
#include <numeric>

#include "flat_index.hpp"
#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kResidueBudget = 1 << 20;
constexpr i64 kStepLimit = i64{1} << 31;  // steps, tasks and queues are fewer: their numbers and clocks have 32 bits
constexpr i64 kTaskLimit = i64{1} << 30;
constexpr i64 kQueueLimit = i64{1} << 24;
constexpr i64 kMaxElements = i64{1} << 50;  // of a buffer
constexpr i64 kMaxCount = (i64{1} << 31) - 1;  // of a counter, over all steps

i64 floor_mod(i128 x, i64 m) {
  i64 r = i64(x % m);
  return r < 0 ? r + m : r;
}

i64 bytes(const BufferRow& r) { return (r.rows * r.cols * (r.bits / 4) + 1) / 2; }  // of four bits each, two to a byte

Finding ref(const char* what, i64 task = -1, i64 buffer = -1, i64 seen = 0, i64 limit = 0) {
  Finding f;
  f.rule = kRef, f.what = what, f.task_a = task, f.buffer = buffer, f.have = seen, f.need = limit;
  return f;
}

}  // namespace

// Bytes of the pool that each cluster has, 0 where it is not cut into whole parts.
i64 Model::part_bytes(i64 pool) const {
  const PoolRow& p = t.pools[pool];
  const i64 cluster = t.cluster(pool), clusters = cluster < 1 ? 0 : (t.n_queues + cluster - 1) / cluster;
  return clusters < 1 || p.per_queue || p.bytes < 1 || p.bytes % clusters ? 0 : p.bytes / clusters;
}

// Whether the buffer lies in the part of its pool that belongs to the cluster of the task's queue.
bool Model::in_reach(i32 task, i64 buffer) const {
  const BufferRow& b = t.buffers[buffer];
  if (b.pool < 0 || b.pool >= i64(t.pools.size()) || !t.cluster(b.pool) || queue_of[task] < 0) return true;
  const i64 part = part_bytes(b.pool);
  return part && b.offset / part == queue_of[task] / t.cluster(b.pool);
}

bool Model::references(Report& out) {
  auto add = [&](Finding f) { out.add(std::move(f)); };
  if (t.steps < 1 || t.steps >= kStepLimit) add(ref("steps", -1, -1, t.steps));
  if (t.n_tasks >= kTaskLimit || t.n_queues >= kQueueLimit) {
    add(ref("size"));
    return false;
  }
  steps = t.steps, n = i32(t.n_tasks), q = i32(t.n_queues);
  for (i64 p = 0; p < i64(t.pools.size()); ++p) {
    if (t.pools[p].bytes < -1) add(ref("pool", -1, -1, p));
    if (t.cluster(p) && !part_bytes(p)) add(ref("cluster pool", -1, -1, p, t.cluster(p)));
  }
  for (i64 v = 0; v < i64(t.variables.size()); ++v)
    if (t.variables[v].min > t.variables[v].max || t.variables[v].min < -kMaxAddress || t.variables[v].max > kMaxAddress)
      add(ref("variable", -1, -1, v));

  const i64 nb = i64(t.buffers.size());
  readonly_.resize(nb);
  for (i64 b = 0; b < nb; ++b) {
    const BufferRow& r = t.buffers[b];
    readonly_[b] = r.kind == kWeight || r.kind == kTable || r.kind == kInput;
    if ((r.bits != 4 && r.bits % 8) || r.bits < 4 || r.bits > 64 || r.rows < 1 || r.cols < 1 || i128(r.rows) * r.cols > kMaxElements || r.kind < 0 ||
        r.kind > kToken || r.lifetime < 0 || r.lifetime > kHost)
      add(ref("shape", -1, b));
    else if (r.pool < 0 || r.pool >= i64(t.pools.size()))
      add(ref("buffer pool", -1, b));
    else {
      const i128 end = i128(r.offset) + bytes(r);
      const i64 size = t.pools[r.pool].bytes;
      if (r.offset < 0 || end > kMaxAddress || (size >= 0 && end > size))
        add(ref("buffer range", -1, b, i64(std::min<i128>(end, kMaxAddress)), size));
      else if (const i64 part = part_bytes(r.pool); part && r.offset / part != i64(end - 1) / part)
        add(ref("buffer part", -1, b, r.offset, part));
    }
  }

  queue_of.assign(n, -1), pos_of.resize(n), len.resize(q);
  for (i32 k = 0; k < q; ++k) {
    len[k] = i32(t.queue_off[k + 1] - t.queue_off[k]);
    for (i32 j = 0; j < len[k]; ++j) {
      const i64 id = t.queue_task[t.queue_off[k] + j];
      if (id < 0 || id >= n)
        add(ref("queue entry", -1, -1, id, k));
      else if (queue_of[id] >= 0)
        add(ref("queued twice", id, -1, k, queue_of[id]));
      else
        queue_of[id] = k, pos_of[id] = j;
    }
  }
  const i64 nc = i64(t.counters.size());
  for (i32 b = 0; b < n; ++b) {
    if (queue_of[b] < 0) add(ref("not queued", b));
    for (i64 w = t.wait_off[b]; w < t.wait_off[b + 1]; ++w) {
      if (t.wait_counter[w] < 0 || t.wait_counter[w] >= nc) add(ref("wait counter", b, -1, t.wait_counter[w]));
      if (t.wait_e[w] != 0 && t.wait_e[w] != -1) add(ref("wait epoch", b, -1, t.wait_e[w]));
    }
    for (i64 s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s)
      if (t.sig_counter[s] < 0 || t.sig_counter[s] >= nc) add(ref("signal counter", b, -1, t.sig_counter[s]));
    for (i64 a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a)
      if (t.acc_buffer[a] < 0 || t.acc_buffer[a] >= nb)
        add(ref("access buffer", b, -1, t.acc_buffer[a]));
      else if (!in_reach(b, t.acc_buffer[a]))
        add(ref("cluster", b, t.acc_buffer[a]));
    if (t.task_op[b] < 0 || t.task_op[b] > 255) add(ref("op", b, -1, t.task_op[b]));
  }
  for (size_t i = 0; i < t.init_buffer.size(); ++i)
    if (t.init_buffer[i] < 0 || t.init_buffer[i] >= nb) add(ref("initial buffer", -1, -1, t.init_buffer[i], i64(i)));
  if (t.stop_buffer != -1 || t.stop_task != -1)
    if (t.stop_buffer < 0 || t.stop_buffer >= nb || t.stop_task < 0 || t.stop_task >= n)
      add(ref("stop", t.stop_task, -1, t.stop_buffer));
  return out.empty();
}

bool Model::counts(Report& out) {
  const i64 nc = i64(t.counters.size());
  auto add = [&](const char* what, i64 task, i64 counter, i64 have, i64 need) {
    Finding f;
    f.rule = kCount, f.what = what, f.task_a = task, f.counter = counter, f.have = have, f.need = need;
    out.add(std::move(f));
  };
  std::vector<i128> sum(nc, 0);
  prod_off.assign(nc + 1, 0);
  for (size_t s = 0; s < t.sig_counter.size(); ++s) sum[t.sig_counter[s]] += t.sig_amount[s], ++prod_off[t.sig_counter[s] + 1];
  for (i32 b = 0; b < n; ++b)
    for (i64 s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s)
      if (t.sig_amount[s] < 1) add("amount", b, t.sig_counter[s], t.sig_amount[s], 1);
  total.assign(t.counters.begin(), t.counters.end());
  for (i64 c = 0; c < nc; ++c) {
    using Limit = std::numeric_limits<i64>;
    if (sum[c] != total[c]) add("per_step", -1, c, i64(std::clamp<i128>(sum[c], Limit::min(), Limit::max())), total[c]);
    if (i128(total[c]) * steps > kMaxCount) add("wrap", -1, c, total[c], steps);
  }
  for (i32 b = 0; b < n; ++b)
    for (i64 w = t.wait_off[b]; w < t.wait_off[b + 1]; ++w)
      if (t.wait_t[w] < 1 || t.wait_t[w] > total[t.wait_counter[w]]) add("threshold", b, t.wait_counter[w], t.wait_t[w], total[t.wait_counter[w]]);
  if (!out.empty()) return false;
  std::partial_sum(prod_off.begin(), prod_off.end(), prod_off.begin());
  prod_task.resize(t.sig_counter.size()), prod_amount.resize(t.sig_counter.size());
  auto at = prod_off;
  for (i32 b = 0; b < n; ++b)
    for (i64 s = t.sig_off[b]; s < t.sig_off[b + 1]; ++s) {
      const i64 k = at[t.sig_counter[s]]++;
      prod_task[k] = b, prod_amount[k] = t.sig_amount[s];
    }
  return true;
}

// Whether a range with a modulus ends inside for every step and value, start and length taken together; false where they are too many.
bool Model::ends_inside(const AffineRow& r, i64 limit, bool& too_many) const {
  auto values = [&](i64 v) { return v < 0 ? std::pair<i64, i64>{0, 0} : std::pair{t.variables[v].min, t.variables[v].max}; };
  const bool same = r.var == r.length_var;
  const auto [first, last] = values(r.var);
  const auto [length_first, length_last] = same ? std::pair<i64, i64>{0, 0} : values(r.length_var);
  const i128 points = (i128(last) - first + 1) * (i128(length_last) - length_first + 1);
  too_many = points > kResidueBudget || points * steps > kResidueBudget;
  if (too_many) return false;
  for (i64 v = first; v <= last; ++v)
    for (i64 w = length_first; w <= length_last; ++w)
      for (i64 i = 0; i < steps; ++i)
        if (floor_mod(i128(r.add) + v + i128(r.stride) * i, r.mod) + r.length + (same ? v : w) + i128(r.length_stride) * i > limit) return false;
  return true;
}

// Normalise one range and check it against [0, limit) for every step and every value of the variables.
std::optional<Range> Model::range(i64 a, i64 b, i32 aff, i64 limit, Problem& problem) {
  if (aff == -1) {
    if (a < 0 || b < a || b > limit) return problem.what = "range", std::nullopt;
    return Range{a, b};
  }
  if (size_t(aff) >= t.affine.size()) return problem.what = "affine", std::nullopt;  // negative: more than any size
  AffineRow r = t.affine[aff];
  const i64 nv = i64(t.variables.size());
  if (r.var < -1 || r.var >= nv || r.length_var < -1 || r.length_var >= nv || r.mod < 0) return problem.what = "affine", std::nullopt;
  if (steps == 1) r.stride = r.length_stride = 0;
  i128 add = r.add, length = r.length;
  auto settle = [&](i64& var, i128& sum) {  // a variable of one value is a number
    if (var >= 0 && t.variables[var].min == t.variables[var].max) sum += t.variables[var].min, var = -1;
  };
  settle(r.var, add), settle(r.length_var, length);
  const i128 last = steps - 1;
  auto span = [&](i128 c, i128 slope, i64 var) {
    i128 lo = c + std::min<i128>(0, slope * last), hi = c + std::max<i128>(0, slope * last);
    if (var >= 0) lo += t.variables[var].min, hi += t.variables[var].max;
    return std::pair{lo, hi};
  };
  const auto [len_lo, len_hi] = span(length, r.length_stride, r.length_var);
  if (len_lo < 0 || len_hi > limit) return problem.what = "range", std::nullopt;
  r.length = i64(length);
  if (r.mod > 0) {
    const bool ring = r.stride != 0;
    r.add = floor_mod(add, r.mod), r.stride = floor_mod(r.stride, r.mod);
    if (ring && r.stride == 0) r.stride = r.mod;  // a ring of one place is still a ring
    const i64 width = r.var >= 0 ? t.variables[r.var].max - t.variables[r.var].min + 1 : 1;
    const i64 first = r.var >= 0 ? t.variables[r.var].min : 0;
    const i64 g = std::gcd(r.stride, r.mod);
    const bool all_steps = steps >= r.mod / g;  // every place of the ring is taken
    i64 top = r.mod - 1;
    if (all_steps ? width < g && width <= kResidueBudget : i128(width) * steps <= kResidueBudget) {
      top = 0;
      for (i64 v = 0; v < width; ++v) {
        const i64 base = floor_mod(i128(r.add) + first + v, r.mod);
        if (all_steps)
          top = std::max(top, r.mod - g + base % g);
        else
          for (i64 i = 0; i < steps; ++i) top = std::max(top, floor_mod(i128(base) + i128(r.stride) * i, r.mod));
      }
    }
    if (i128(top) + len_hi > limit && !ends_inside(r, limit, problem.undecided)) return problem.what = "range", std::nullopt;
  } else {
    if (span(add, r.stride, r.var).first < 0) return problem.what = "range", std::nullopt;
    // the end is a linear form too; a variable that is both start and length counts twice
    i128 end = add + length + std::max<i128>(0, (i128(r.stride) + r.length_stride) * last);
    if (r.var >= 0) end += t.variables[r.var].max;
    if (r.length_var >= 0) end += t.variables[r.length_var].max;
    if (end > limit) return problem.what = "range", std::nullopt;
    r.add = i64(add);
  }
  if (r.var < 0 && r.length_var < 0 && r.stride == 0 && r.length_stride == 0) return Range{r.add, r.add + r.length};
  const std::array<i64, 7> key{r.add, r.var, r.stride, r.mod, r.length, r.length_var, r.length_stride};
  const auto [it, fresh] = affine_index_.try_emplace(key, i32(affine.size()));
  if (fresh) affine.push_back(r);
  return Range{.aff = it->second};
}

std::pair<i64, i64> Model::bounds(const Range& r) const {
  if (r.aff < 0) return {r.a, r.b};
  const AffineRow& f = affine[r.aff];
  const i64 last = steps - 1;
  auto lo = [&](i64 v) { return v < 0 ? 0 : t.variables[v].min; };
  auto hi = [&](i64 v) { return v < 0 ? 0 : t.variables[v].max; };
  const i64 longest = f.length + hi(f.length_var) + std::max<i64>(0, f.length_stride * last);
  if (f.mod) return {0, f.mod - 1 + longest};
  const i64 start = f.add + lo(f.var) + std::min<i64>(0, f.stride * last);
  const i64 end = f.add + hi(f.var) + f.length + hi(f.length_var) + std::max<i64>(0, (f.stride + f.length_stride) * last);
  return {start, end};
}

namespace {
struct RectHash {
  size_t operator()(const Rect& r) const {
    uint64_t h = 1469598103934665603ull;
    for (i64 x : {i64(r.buffer), i64(r.space), r.rows.a, r.rows.b, i64(r.rows.aff), r.cols.a, r.cols.b, i64(r.cols.aff)}) {
      h = (h ^ uint64_t(x)) * 0x9E3779B97F4A7C15ull;
      h ^= h >> 29;
    }
    return h;
  }
};
}  // namespace

void Model::accesses(Report& out) {
  FlatIndex index(t.acc_buffer.size());
  auto rect = [&](i32 buffer, i32 space, const Range& rows, const Range& cols) {
    const Rect r{buffer, space, rows, cols};
    const i32 at = index.find_or_add(RectHash{}(r), i32(rects.size()), [&](i32 k) { return rects[k] == r; });
    if (at == i32(rects.size())) rects.push_back(r);
    return at;
  };
  auto empty = [](const Range& r) { return r.aff < 0 && r.a == r.b; };
  auto refused = [&](Problem& p, i64 task, i64 buffer, i64 seen, i64 limit) {
    Finding f = ref(p.what, task, buffer, seen, limit);
    f.undecided = p.undecided, p = {};
    out.add(std::move(f));
  };
  Problem problem;
  acc_off.assign(1, 0);
  acc.reserve(t.acc_buffer.size());
  for (i32 b = 0; b < n; ++b) {
    for (bool writes : {false, true})
      for (i64 a = t.acc_off[b]; a < t.acc_off[b + 1]; ++a) {
        if (bool(t.acc_flags[a] & kWrite) != writes) continue;
        const BufferRow& buf = t.buffers[t.acc_buffer[a]];
        const auto rows = range(t.acc_r0[a], t.acc_r1[a], t.acc_raff[a], buf.rows, problem);
        const auto cols = range(t.acc_c0[a], t.acc_c1[a], t.acc_caff[a], buf.cols, problem);
        if (!rows || !cols) {
          refused(problem, b, t.acc_buffer[a], writes, rows ? 1 : 0);
          continue;
        }
        if (empty(*rows) || empty(*cols)) continue;
        const i32 space = t.pools[buf.pool].per_queue ? queue_of[b] : -1;
        acc.push_back({b, rect(t.acc_buffer[a], space, *rows, *cols), t.acc_flags[a], t.acc_label[a]});
      }
    acc_off.push_back(i64(acc.size()));
  }
  for (size_t i = 0; i < t.init_buffer.size(); ++i) {
    const BufferRow& buf = t.buffers[t.init_buffer[i]];
    const i64 all_steps = steps;
    steps = 1;  // data before step 0: the step of an initial range is 0
    const auto rows = range(t.init_r0[i], t.init_r1[i], t.init_raff[i], buf.rows, problem);
    const auto cols = range(t.init_c0[i], t.init_c1[i], t.init_caff[i], buf.cols, problem);
    steps = all_steps;
    if (!rows || !cols)
      refused(problem, -1, t.init_buffer[i], 2, i64(i));
    else if (t.pools[buf.pool].per_queue)
      for (i32 k = 0; k < q; ++k) init.push_back(rect(t.init_buffer[i], k, *rows, *cols));
    else
      init.push_back(rect(t.init_buffer[i], -1, *rows, *cols));
  }
}

bool Model::load(Report& out) {
  if (!references(out)) return false;
  accesses(out);
  if (!out.empty()) return false;
  if (!counts(out)) return false;
  // Buffers whose bytes overlap, directly or through others, share a group.
  const i32 nb = i32(t.buffers.size());
  std::vector<i32> order(nb);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](i32 x, i32 y) {
    const auto &a = t.buffers[x], &b = t.buffers[y];
    return std::tie(a.pool, a.offset, x) < std::tie(b.pool, b.offset, y);
  });
  group_of.resize(nb);
  i64 pool = -1, end{};
  i32 g = -1;
  for (i32 b : order) {
    const auto& r = t.buffers[b];
    const bool apart = r.pool != pool || r.offset >= end;
    if (apart) ++g;
    pool = r.pool, end = apart ? r.offset + bytes(r) : std::max(end, r.offset + bytes(r));
    group_of[b] = g;
  }
  return true;
}

}  // namespace amk::validate
