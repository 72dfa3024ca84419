#include "tables.hpp"

namespace amk {
namespace {
struct Entry {
  char name[24];
  uint32_t code, zero;
  uint64_t count, offset;
};
static_assert(sizeof(Entry) == 48);
}  // namespace

bool Tables::has(const char* name) const {
  uint32_t n;
  std::memcpy(&n, data_.data() + 8, 4);
  for (uint32_t i = 0; i < n; ++i)
    if (std::strncmp(data_.data() + 16 + size_t{i} * sizeof(Entry), name, sizeof Entry{}.name) == 0) return true;
  return false;
}

template <class T>
std::span<const T> Tables::section(const char* name, uint32_t code) const {
  uint32_t n;
  std::memcpy(&n, data_.data() + 8, 4);
  for (uint32_t i = 0; i < n; ++i) {
    Entry e;
    std::memcpy(&e, data_.data() + 16 + size_t{i} * sizeof(Entry), sizeof e);
    if (std::strncmp(e.name, name, sizeof e.name) != 0) continue;
    if (e.code != code || e.offset % alignof(T) || e.count > data_.size() || e.offset > data_.size() ||
        e.count * code > data_.size() - e.offset || e.count * code % sizeof(T))
      throw TableError(std::string("tables: section ") + name + " is damaged or cut off");
    return {reinterpret_cast<const T*>(data_.data() + e.offset), e.count * code / sizeof(T)};
  }
  throw TableError(std::string("tables: section ") + name + " is missing");
}

void Tables::check_offsets(std::span<const int64_t> off, int64_t rows, size_t entries, const char* name) const {
  bool ok = off.size() == size_t(rows) + 1 && off.front() == 0 && off.back() == int64_t(entries);
  for (size_t i = 1; ok && i < off.size(); ++i) ok = off[i - 1] <= off[i];
  if (!ok) throw TableError(std::string("tables: offsets of ") + name + " are damaged");
}

std::string_view copy_aligned(std::string_view data, std::vector<uint64_t>& to) {
  to.assign((data.size() + 7) / 8, 0);
  std::memcpy(to.data(), data.data(), data.size());
  return {reinterpret_cast<const char*>(to.data()), data.size()};
}

std::string_view aligned(std::string_view data, std::vector<uint64_t>& to) {
  return reinterpret_cast<uintptr_t>(data.data()) % 8 ? copy_aligned(data, to) : data;
}

Tables::Tables(std::string_view data) : data_(data) {
  uint32_t version = 0, n = 0;
  if (data.size() >= 16) {
    std::memcpy(&version, data.data() + 4, 4);
    std::memcpy(&n, data.data() + 8, 4);
  }
  if (data.size() < 16 || data.substr(0, 4) != "AMKT" || version != 1 || n > 4096 || 16 + n * sizeof(Entry) > data.size() ||
      reinterpret_cast<uintptr_t>(data.data()) % 8)
    throw TableError("tables: not AMK tables of version 1");
  auto header = section<int64_t>("header", 8);
  if (header.size() != 7) throw TableError("tables: section header is damaged");
  steps = header[0], n_tasks = header[1], n_queues = header[2], stop_buffer = header[3], stop_task = header[4];
  target_sms = header[5], target_smem = header[6];
  if (n_tasks < 0 || n_queues < 0 || n_tasks > int64_t(data.size()) || n_queues > int64_t(data.size()))
    throw TableError("tables: section header is damaged");
#define I32(x) x = section<int32_t>(#x, 4)
#define I64(x) x = section<int64_t>(#x, 8)
  I32(task_op), I32(task_fences), I32(par), I32(wait_counter), I32(wait_e), I32(sig_counter), I32(acc_buffer), I32(acc_flags);
  I32(acc_label), I32(acc_raff), I32(acc_caff), I32(queue_task), I32(init_buffer), I32(init_raff), I32(init_caff);
  I64(par_off), I64(wait_off), I64(wait_t), I64(sig_off), I64(sig_amount), I64(acc_off), I64(acc_r0), I64(acc_r1), I64(acc_c0);
  I64(acc_c1), I64(queue_off), I64(init_r0), I64(init_r1), I64(init_c0), I64(init_c1), I64(counters);
#undef I32
#undef I64
  affine = section<AffineRow>("affine", 8);
  pools = section<PoolRow>("pools", 8);
  if (has("clusters") && (clusters = section<int64_t>("clusters", 8)).size() != pools.size()) throw TableError("tables: section clusters is damaged");
  buffers = section<BufferRow>("buffers", 8);
  variables = section<VariableRow>("variables", 8);
  auto text = section<char>("names", 1);
  names = {text.data(), text.size()};
  check_offsets(par_off, n_tasks, par.size(), "par");
  check_offsets(wait_off, n_tasks, wait_counter.size(), "wait");
  check_offsets(sig_off, n_tasks, sig_counter.size(), "sig");
  check_offsets(acc_off, n_tasks, acc_buffer.size(), "acc");
  check_offsets(queue_off, n_queues, queue_task.size(), "queue");
  auto same = [](size_t n, auto... spans) { return ((spans.size() == n) && ...); };
  if (!same(size_t(n_tasks), task_op, task_fences) || !same(wait_counter.size(), wait_t, wait_e) ||
      !same(sig_counter.size(), sig_amount) ||
      !same(acc_buffer.size(), acc_flags, acc_label, acc_r0, acc_r1, acc_c0, acc_c1, acc_raff, acc_caff) ||
      !same(init_buffer.size(), init_r0, init_r1, init_c0, init_c1, init_raff, init_caff))
    throw TableError("tables: columns of one kind have different lengths");
}

}  // namespace amk
