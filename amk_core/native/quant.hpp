// Storage formats of quantised weights: the numbers of amk_core/quant/format.py, decoded from the dtype of a buffer.
#pragma once
#include <cstdint>

namespace amk {

constexpr int64_t kGroupRows = 8, kUnitBytes = 512;
constexpr int64_t kFirstQuantDtype = 16, kQuantDtypes = 26;  // places of the formats in ir.DTYPES
constexpr int64_t kIntegerDtypes = 8;                         // behind them, those with activations of 8 bits
constexpr int64_t kMostIntegerK = 1 << 17;                    // 32 bits hold so many products of two codes

enum QuantKind : int32_t { kSym, kZero, kMin };

struct QuantFormat {
  int32_t bits = 0;  // 8 or 4; 0: not quantised
  int32_t kind = kSym;
  bool bf16 = false;  // dtype of scales and offsets, else float16
  int64_t group = 0;  // 0: the whole row
  bool integer = false;  // activations of 8 bits

  // False where the dtype is not a quantised one.
  static bool of(int64_t dtype, QuantFormat* out) {
    constexpr int64_t kEight[] = {0, 32, 64, 128}, kFour[] = {32, 64, 128};
    int64_t k = dtype - kFirstQuantDtype;
    if (k >= kQuantDtypes && k < kQuantDtypes + kIntegerDtypes) {
      k -= kQuantDtypes;
      *out = {8, kSym, k >= 4, kEight[k % 4], true};
      return true;
    }
    if (k < 0 || k >= kQuantDtypes) return false;
    const bool bf16 = k >= kQuantDtypes / 2;
    k %= kQuantDtypes / 2;
    if (k < 4)
      *out = {8, kSym, bf16, kEight[k], false};
    else
      *out = {4, int32_t((k - 4) % 3), bf16, kFour[(k - 4) / 3], false};
    return true;
  }

  int64_t unit_k() const { return kUnitBytes * 8 / (kGroupRows * bits); }
  int64_t record_k() const { return group > unit_k() ? group : unit_k(); }
  int64_t entry_bytes() const { return kind == kSym ? 2 : 4; }
  int64_t code_bytes() const { return record_k() / unit_k() * kUnitBytes; }  // of a record
  int64_t record_bytes() const { return code_bytes() + (group ? record_k() / group * kGroupRows * entry_bytes() : 0); }
  int64_t records(int64_t k) const { return (k + record_k() - 1) / record_k(); }
  int64_t groups(int64_t k) const { return group ? (k + group - 1) / group : 1; }
  int64_t group_bytes(int64_t k) const { return records(k) * record_bytes() + (group ? 0 : kGroupRows * entry_bytes()); }
  int64_t tile_bytes(int64_t rows, int64_t k) const { return (rows + kGroupRows - 1) / kGroupRows * group_bytes(k); }
};

}  // namespace amk
