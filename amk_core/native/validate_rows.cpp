// Clock rows, each kept once.
#include "validate_rows.hpp"

#include <algorithm>
#include <cstring>

namespace amk::validate {
namespace {

constexpr size_t kJoins = size_t{1} << 14;

}  // namespace

Rows::Rows(Clocks& table, i32 width) : c(table), q(width), factor_(width), table_(1024, -1), joins_(kJoins) {
  uint64_t x = 0x9E3779B97F4A7C15ull;
  for (auto& f : factor_) x = x * 6364136223846793005ull + 1442695040888963407ull, f = uint32_t(x >> 32) | 1;
}

i32* Rows::fresh() {
  const size_t end = size_t(size() + 1) * size_t(q);
  if (c.value.size() < end) c.value.resize(end);
  return c.value.data() + end - q;
}

i32 Rows::commit() {
  const i32* v = at(i32(size()));
  uint64_t h = 0;
  for (i32 r = 0; r < q; ++r) h += uint64_t(uint32_t(v[r])) * factor_[r];
  const uint32_t hash = uint32_t((h * 0x9E3779B97F4A7C15ull) >> 32);
  const size_t mask = table_.size() - 1;
  size_t k = hash & mask;
  for (; table_[k] >= 0; k = (k + 1) & mask)
    if (hash_[table_[k]] == hash && std::memcmp(at(table_[k]), v, size_t(q) * sizeof(i32)) == 0) return table_[k];
  const i32 row = i32(size());
  table_[k] = row;
  hash_.push_back(hash);
  if (hash_.size() * 2 > table_.size()) grow(table_.size() * 2);
  return row;
}

void Rows::grow(size_t slots) {
  table_.assign(slots, -1);
  for (size_t row = 0; row < hash_.size(); ++row) {
    size_t k = hash_[row] & (slots - 1);
    while (table_[k] >= 0) k = (k + 1) & (slots - 1);
    table_[k] = i32(row);
  }
}

size_t Rows::place(i32 a, i32 b) const { return (uint64_t(uint32_t(a)) * 0x9E3779B97F4A7C15ull ^ uint64_t(uint32_t(b)) * 0xD6E8FEB86659FD93ull) >> 50; }

i32 Rows::joined(i32 a, i32 b) const {
  const Join& j = joins_[place(a, b)];
  return j.a == a && j.b == b ? j.row : -1;
}

void Rows::remember(i32 a, i32 b, i32 larger) { joins_[place(a, b)] = {a, b, larger}; }

void Rows::compact(std::vector<i32>& to) {
  i32 next = 0;
  for (i32 row = 0; row < i32(size()); ++row) {
    if (to[row] < 0) continue;
    if (next != row) std::memmove(c.value.data() + i64{next} * q, at(row), size_t(q) * sizeof(i32)), hash_[next] = hash_[row];
    to[row] = next++;
  }
  hash_.resize(next), c.value.resize(size_t(next) * q);
  std::fill(joins_.begin(), joins_.end(), Join{});
  grow(table_.size());
  kept_ = next;
}

}  // namespace amk::validate
