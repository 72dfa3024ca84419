// Read-only view of the binary tables (layout: amk_core/schedule/tables.py).  Shared by everything native; it decides nothing.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace amk {

struct TableError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct AffineRow {  // see ir.Affine: start(i) = (add + var + stride*i) [mod], length(i) = length + length_var + length_stride*i
  int64_t add, var, stride, mod, length, length_var, length_stride;
};
struct PoolRow {
  int64_t bytes, per_queue;
};
struct BufferRow {
  int64_t kind, dtype, bits, rows, cols, pool, offset, lifetime, tagged;
};
struct VariableRow {
  int64_t min, max;
};

enum AccessFlag : int32_t { kWrite = 1, kMaybe = 2, kAsync = 4, kPrevEpoch = 8 };
enum BufferKind : int64_t { kActivation, kWeight, kTable, kKv, kInput, kOutput, kToken };
enum Lifetime : int64_t { kStep, kPersistent, kHost };

// Tables wants its bytes to start on a multiple of 8, which the payload of a bytes object does by accident only.
std::string_view copy_aligned(std::string_view data, std::vector<uint64_t>& to);
// The same without a copy where `data` starts so already.
std::string_view aligned(std::string_view data, std::vector<uint64_t>& to);

class Tables {
 public:
  // Spans point into `data`, which must outlive the object.  Throws TableError when a section is missing or cut off, or when
  // CSR offsets are not monotone and in range; the *meaning* of the numbers is the validator's business.
  explicit Tables(std::string_view data);

  int64_t steps = 0, n_tasks = 0, n_queues = 0, stop_buffer = -1, stop_task = -1, target_sms = -1, target_smem = -1;
  std::span<const int32_t> task_op, task_fences, par, wait_counter, wait_e, sig_counter, acc_buffer, acc_flags, acc_label,
      acc_raff, acc_caff, queue_task, init_buffer, init_raff, init_caff;
  std::span<const int64_t> par_off, wait_off, wait_t, sig_off, sig_amount, acc_off, acc_r0, acc_r1, acc_c0, acc_c1, queue_off,
      init_r0, init_r1, init_c0, init_c1, counters;
  std::span<const AffineRow> affine;
  std::span<const PoolRow> pools;
  std::span<const BufferRow> buffers;
  std::span<const VariableRow> variables;
  std::string_view names;  // UTF-8 JSON
  std::span<const int64_t> clusters;  // a number a pool, or nothing at all

  // Queues of a cluster, each cluster with an equal part of the pool; 0: the pool is not cut.
  int64_t cluster(int64_t pool) const { return clusters.empty() ? 0 : clusters[size_t(pool)]; }

 private:
  std::string_view data_;
  bool has(const char* name) const;
  template <class T>
  std::span<const T> section(const char* name, uint32_t code) const;
  void check_offsets(std::span<const int64_t> off, int64_t rows, size_t entries, const char* name) const;
};

}  // namespace amk
