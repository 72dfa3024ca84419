// Open addressing: finds the position of an equal element in an array that somebody else keeps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace amk {

class FlatIndex {
 public:
  explicit FlatIndex(size_t expected = 0) {
    size_t size = 64;
    while (size < expected * 2) size *= 2;
    slots_.assign(size, {0, -1});
  }
  // The position of an element for which equal(position) holds, or `next` once it is recorded under it.
  template <class Equal>
  int32_t find_or_add(uint64_t hash, int32_t next, Equal equal) {
    const uint32_t h = uint32_t(hash ^ (hash >> 32));
    size_t k = h & (slots_.size() - 1);
    for (; slots_[k].at >= 0; k = (k + 1) & (slots_.size() - 1))
      if (slots_[k].hash == h && equal(slots_[k].at)) return slots_[k].at;
    slots_[k] = {h, next};
    if (++count_ * 2 > slots_.size()) grow();
    return next;
  }

 private:
  struct Slot {
    uint32_t hash;
    int32_t at;
  };
  std::vector<Slot> slots_;
  size_t count_ = 0;

  void grow() {
    std::vector<Slot> old(slots_.size() * 2, Slot{0, -1});
    old.swap(slots_);
    for (const Slot& s : old) {
      if (s.at < 0) continue;
      size_t k = s.hash & (slots_.size() - 1);
      while (slots_[k].at >= 0) k = (k + 1) & (slots_.size() - 1);
      slots_[k] = s;
    }
  }
};

}  // namespace amk
