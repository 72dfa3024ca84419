#include "cpu_tags.hpp"

#include <bit>

#include "numerics.h"

namespace amk {

bool holds_pairs(int32_t op, int param) {
  switch (op) {
    case kAttn: return param == attn::out;
    case kOProj:
    case kDownProj: return param == o_proj::x;
    case kGateUp: return param == gate_up::act;
    default: return false;
  }
}

bool TagPort::fetch(int param, int64_t row, int64_t col0, int64_t col1) {
  const TaggedParam& p = params_[size_t(param)];
  for (int64_t c = col0; c < col1; ++c) {
    const uint64_t* element = p.elements + row * p.cols + c;
    uint32_t value = 0, seen = 0;
    if (spin_ == nullptr) {
      value = uint32_t(load_tagged(element));
    } else if (status_ = wait_tagged(element, tag(), step_, *spin_, &value, &seen); status_ != kReady) {
      if (failed()) fault_->kind = kSpinTimeout, fault_->counter = -1, fault_->has = int64_t(seen), fault_->needs = int64_t(tag());
      return false;
    }
    float* to = p.mirror + (row * p.cols + c) * p.width;
    if (p.width == 2)
      to[0] = f32_of_bf16(uint16_t(value)), to[1] = f32_of_bf16(uint16_t(value >> 16));
    else
      to[0] = std::bit_cast<float>(value);
  }
  return true;
}

void TagPort::publish(int param, int64_t row, int64_t col0, int64_t col1) {
  const TaggedParam& p = params_[size_t(param)];
  for (int64_t c = col0; c < col1; ++c) {
    const float* from = p.mirror + (row * p.cols + c) * p.width;
    const uint32_t value = p.width == 2 ? uint32_t(bf16_of(from[0])) | uint32_t(bf16_of(from[1])) << 16 : std::bit_cast<uint32_t>(from[0]);
    store_tagged(p.elements + row * p.cols + c, value, tag());
  }
}

bool TagPort::fetch_certain() {
  for (const TaggedAccess& a : accesses_)
    if (!a.write && !a.maybe)
      for (int64_t r = a.row0; r < a.row1; ++r)
        if (!fetch(a.param, r, a.col0, a.col1)) return false;
  return true;
}

void TagPort::publish_certain() {
  for (const TaggedAccess& a : accesses_)
    if (a.write && !a.maybe)
      for (int64_t r = a.row0; r < a.row1; ++r) publish(a.param, r, a.col0, a.col1);
}

}  // namespace amk
