// Rectangles of aliasing buffers -> cells: maximal pieces of memory that every rectangle covers wholly or not at all.
//
// Coordinates are nibbles (the smallest element has four bits).  Where all strided rectangles of a group have one pitch, the pool is
// seen as a plane of that pitch, so that a tile of a matrix stays one box; otherwise it is a line and every row of a tile is a piece.
#include <algorithm>

#include "flat_index.hpp"
#include "validate.hpp"

namespace amk::validate {
namespace {

constexpr i64 kMaxPieces = 4'000'000;
constexpr i64 kMaxIncidence = 60'000'000;

i64 floor_div(i64 a, i64 b) { return a / b - ((a % b != 0) && ((a < 0) != (b < 0))); }

struct Event {
  i64 at;
  i32 box;
  bool operator<(const Event& o) const { return at < o.at; }
};

struct Sweep {
  Cells& out;
  i64 origin, pitch;
  i64 incidence = 0;
  FlatIndex seen{};
  std::vector<i32> ids{};
  std::vector<size_t> first{};  // per cell: where its ids start

  bool emit(i64 row, i64 c0, i64 c1, const std::vector<i32>& active, const std::vector<Box>& boxes) {
    ids.clear();
    for (i32 b : active) ids.push_back(boxes[b].id);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    uint64_t h = 0xcbf29ce484222325ull;
    for (i32 x : ids) h = (h ^ uint64_t(x)) * 0x9E3779B97F4A7C15ull, h ^= h >> 31;
    if ((incidence += i64(ids.size())) > kMaxIncidence) return false;
    const i32 next = i32(out.cells.size());
    const i32 at = seen.find_or_add(h, next, [&](i32 k) {
      const size_t end = k + 1 < next ? first[k + 1] : out.ids.size();
      return std::equal(ids.begin(), ids.end(), out.ids.begin() + i64(first[k]), out.ids.begin() + i64(end));
    });
    if (at < next) return true;
    first.push_back(out.ids.size());
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.cells.push_back({origin + row * pitch + c0, origin + row * pitch + c1, {}});
    return true;
  }
  void point() {
    first.push_back(out.ids.size());
    for (size_t k = 0; k < out.cells.size(); ++k) out.cells[k].ids = std::span<const i32>(out.ids).subspan(first[k], first[k + 1] - first[k]);
  }
};

// Sorted starts and ends -> calls f(position, next position, active boxes) for every stretch.  Nothing is active before and after.
template <class F>
bool sweep(std::vector<Event>& starts, std::vector<Event>& ends, std::vector<i32>& active, std::vector<i32>& place, F f) {
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  size_t s = 0, e = 0;
  while (e < ends.size()) {
    const i64 at = s < starts.size() ? std::min(starts[s].at, ends[e].at) : ends[e].at;
    while (e < ends.size() && ends[e].at == at) {
      const i32 p = place[ends[e].box];
      active[p] = active.back();
      place[active[p]] = p;
      active.pop_back();
      ++e;
    }
    while (s < starts.size() && starts[s].at == at) {
      place[starts[s].box] = i32(active.size());
      active.push_back(starts[s].box);
      ++s;
    }
    if (active.empty()) continue;
    const i64 next = s < starts.size() ? std::min(starts[s].at, ends[e].at) : ends[e].at;
    if (!f(at, next)) return false;
  }
  return true;
}

}  // namespace

bool cells(const Model& m, const std::vector<Shape>& shapes, bool outward, Cells& out) {
  out.cells.clear(), out.ids.clear();
  i64 pitch = 0, origin = 0;
  bool plane = true;
  auto strided = [&](const Shape& s) { return s.r1 - s.r0 > 1 && (s.c0 != 0 || s.c1 != m.t.buffers[s.buffer].cols); };
  for (const auto& s : shapes)
    if (strided(s)) {
      const i64 p = m.pitch(s.buffer);
      if (outward && p % 2) plane = false;
      if (pitch == 0)
        pitch = p, origin = m.t.buffers[s.buffer].offset * 2;
      else if (p != pitch)
        plane = false;
    }
  if (pitch == 0) plane = false;
  std::vector<Box> boxes;
  auto push = [&](i64 lo, i64 hi, i32 id) {  // a piece [lo, hi) of the pool
    if (outward) lo &= ~i64{1}, hi = (hi + 1) & ~i64{1};
    if (!plane) {
      boxes.push_back({0, 1, lo, hi, id});
      return;
    }
    const i64 r0 = floor_div(lo - origin, pitch), r1 = floor_div(hi - 1 - origin, pitch);
    const i64 a = lo - origin - r0 * pitch, b = hi - origin - r1 * pitch;
    if (r0 == r1)
      boxes.push_back({r0, r0 + 1, a, b, id});
    else {
      boxes.push_back({r0, r0 + 1, a, pitch, id});
      if (r1 - r0 > 1) boxes.push_back({r0 + 1, r1, 0, pitch, id});
      boxes.push_back({r1, r1 + 1, 0, b, id});
    }
  };
  for (const auto& s : shapes) {
    if (s.r0 >= s.r1 || s.c0 >= s.c1) continue;
    const i64 u = m.unit(s.buffer), p = m.pitch(s.buffer), base = m.t.buffers[s.buffer].offset * 2;
    if (!strided(s)) {
      push(base + s.r0 * p + s.c0 * u, base + (s.r1 - 1) * p + s.c1 * u, s.id);
    } else if (plane) {
      i64 c0 = s.c0 * u, c1 = s.c1 * u;
      if (outward) c0 &= ~i64{1}, c1 = (c1 + 1) & ~i64{1};
      const i64 at = base - origin + s.r0 * p + c0;
      const i64 r = floor_div(at, pitch), c = at - r * pitch, w = c1 - c0, h = s.r1 - s.r0;
      boxes.push_back({r, r + h, c, std::min(pitch, c + w), s.id});
      if (c + w > pitch) boxes.push_back({r + 1, r + h + 1, 0, c + w - pitch, s.id});
    } else {
      if (i64(boxes.size()) + (s.r1 - s.r0) > kMaxPieces) return false;
      for (i64 r = s.r0; r < s.r1; ++r) push(base + r * p + s.c0 * u, base + r * p + s.c1 * u, s.id);
    }
    if (i64(boxes.size()) > kMaxPieces) return false;
  }
  Sweep sw{out, plane ? origin : 0, plane ? pitch : 0};
  std::vector<Event> rs, re, cs, ce;
  for (i32 b = 0; b < i32(boxes.size()); ++b) rs.push_back({boxes[b].r0, b}), re.push_back({boxes[b].r1, b});
  std::vector<i32> in_row, in_cell, row_place(boxes.size()), cell_place(boxes.size());
  const bool all = sweep(rs, re, in_row, row_place, [&](i64 row, i64) {
    cs.clear(), ce.clear();
    sw.incidence += i64(in_row.size());  // the next cell gives up where these are too many
    for (i32 b : in_row) cs.push_back({boxes[b].c0, b}), ce.push_back({boxes[b].c1, b});
    return sweep(cs, ce, in_cell, cell_place, [&](i64 c0, i64 c1) { return sw.emit(row, c0, c1, in_cell, boxes); });
  });
  sw.point();
  return all;
}

}  // namespace amk::validate
