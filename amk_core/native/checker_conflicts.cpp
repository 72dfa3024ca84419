// Conflicts of accesses, each of which has to be ordered.
#include <algorithm>
#include <map>
#include <numeric>

#include "checker_state.hpp"

namespace amk::checker {
namespace {

constexpr int64_t kMaxCells = 1 << 22;

}  // namespace

void Checker::conflicts() {
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

void Checker::sweep(const std::vector<Acc>& group, bool rectangles) {
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

void Checker::visit(Cell& cell, const Acc& a, int64_t step, bool wrap_only) {
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
void Checker::moving(const std::vector<Acc>& group) {
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
void Checker::tagged(const std::vector<Acc>& reads, const std::vector<Acc>& writes) {
  for (const auto& w : writes)
    for (const auto& r : reads) {
      if (rank_[w.task] < rank_[r.task]) continue;
      const bool moves = w.rows.moves || w.cols.moves || r.rows.moves || r.cols.moves;
      bool hit = moves && t.steps > kExactSteps;
      for (int64_t i = 0; i < (moves ? t.steps : 1) && !hit; ++i) hit = overlap(w, i, r, i);
      if (hit) error("certificate: replay runs task " + num(r.task) + " before task " + num(w.task) + " wrote its tagged data");
    }
}

}  // namespace amk::checker
