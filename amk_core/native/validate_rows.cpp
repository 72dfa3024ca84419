// Clock rows, each kept once.
#include "validate_rows.hpp"

#include <algorithm>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace amk::validate {
namespace {

constexpr int kJoinBits = 14;  // of the number of joins that are remembered
constexpr uintptr_t kHugePage = uintptr_t{1} << 21;

AMK_WIDE uint64_t hash_of(const i32* v, const uint32_t* factor, i32 q) {
  uint64_t h = 0;
  for (i32 r = 0; r < q; ++r) h += uint64_t(uint32_t(v[r])) * factor[r];
  return h * 0x9E3779B97F4A7C15ull;
}

}  // namespace

AMK_WIDE void raise_row(i32* v, const i32* w, i32 q) {
  for (i32 r = 0; r < q; ++r) v[r] = std::max(v[r], w[r]);
}

AMK_WIDE void lower_row(i32* v, const i32* w, i32 q) {
  for (i32 r = 0; r < q; ++r) v[r] = std::min(v[r], w[r]);
}

Rows::Rows(Clocks& table, i32 width) : c(table), q(width), factor_(width), joins_(size_t{1} << kJoinBits) {
  uint64_t x = 0x9E3779B97F4A7C15ull;
  for (auto& f : factor_) x = x * 6364136223846793005ull + 1442695040888963407ull, f = uint32_t(x >> 32) | 1;
}

void reserve_large(std::vector<i32>& v, size_t size) {
  v.reserve(size);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const uintptr_t first = (reinterpret_cast<uintptr_t>(v.data()) + kHugePage - 1) & ~(kHugePage - 1);
  const uintptr_t end = reinterpret_cast<uintptr_t>(v.data() + v.capacity()) & ~(kHugePage - 1);
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

i32* Rows::fresh() {
  c.value.resize(size_t(size() + 1) * size_t(q));
  return c.value.data() + c.value.size() - q;
}

i32 Rows::commit() {
  const i32* v = at(i32(size_));
  const i32 row = index_.find_or_add(hash_of(v, factor_.data(), q), i32(size_), [&](i32 other) {
    return std::memcmp(at(other), v, size_t(q) * sizeof(i32)) == 0;
  });
  size_ += row == size_;
  return row;
}

size_t Rows::place(i32 a, i32 b) const {
  return (uint64_t(uint32_t(a)) * 0x9E3779B97F4A7C15ull ^ uint64_t(uint32_t(b)) * 0xD6E8FEB86659FD93ull) >> (64 - kJoinBits);
}

i32 Rows::joined(i32 a, i32 b) const {
  const Join& j = joins_[place(a, b)];
  return j.a == a && j.b == b ? j.row : -1;
}

void Rows::remember(i32 a, i32 b, i32 larger) { joins_[place(a, b)] = {a, b, larger}; }

void Rows::compact(std::vector<i32>& to) {
  i32 next = 0;
  index_ = FlatIndex(size_t(std::count_if(to.begin(), to.end(), [](i32 x) { return x >= 0; })));
  for (i32 row = 0; row < i32(size_); ++row) {
    if (to[row] < 0) continue;
    if (next != row) std::memmove(c.value.data() + i64{next} * q, at(row), size_t(q) * sizeof(i32));
    index_.find_or_add(hash_of(at(next), factor_.data(), q), next, [](i32) { return false; });
    to[row] = next++;
  }
  std::fill(joins_.begin(), joins_.end(), Join{});
  size_ = kept_ = next;
}

}  // namespace amk::validate
