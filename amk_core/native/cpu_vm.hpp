// The CPU VM: a program is checked tables bound to memory; a launch runs its queues, one thread each.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu_ops.hpp"
#include "tables.hpp"

namespace amk {

struct Bytes {
  uint8_t* data = nullptr;
  int64_t size = 0;
};

// Everything a program is made from.  The memory behind `tape`, `bound` and `pools` must outlive the program.
struct Setup {
  std::string_view tables;
  std::span<const int64_t> task_weight;  // byte offset of each task's weight tile in the tape, -1: none
  Bytes tape;
  bool tape_bf16 = false;
  bool fast = false;
  const Kernels* kernels = nullptr;
  std::map<int64_t, Bytes> bound;  // buffer index -> memory that replaces its place in the pool
  std::map<int64_t, Bytes> pools;  // pool index -> memory owned by the caller
};

struct LaunchOptions {
  int64_t steps = 1;
  std::vector<int64_t> variables;
  double spin_timeout_s = 10.0;
  bool perturb = false;
  uint64_t perturb_seed = 0;
  bool poison = false;
};

struct Outcome {
  int64_t steps = 0;  // steps that every reader may rely on
  bool stopped = false, aborted = false;
  Fault fault{};
};

// Instruction sets that this machine can run, best first.
std::vector<const Kernels*> available_kernels();

class Program {
 public:
  explicit Program(const Setup& setup);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void launch(const LaunchOptions& options);
  bool wait_for(int64_t milliseconds);  // true when no launch is in flight any more
  Outcome outcome() const;              // of the launch that ended last
  int64_t published() const;            // steps whose results the host may read while the launch runs
  bool running() const { return running_; }
  void abort();

  // Runs the body of one task on the calling thread, without waits and signals.
  Outcome run_task(int64_t task, int64_t step, const std::vector<int64_t>& variables);

  const Tables& tables() const { return tables_; }
  const Kernels& kernels() const { return *machine_.kernels; }
  Bytes buffer(int64_t index) const;                // queue 0's copy where the pool is per queue
  Bytes pool(int64_t index) const;

 private:
  struct Unmap {
    int64_t size;
    void operator()(uint8_t* p) const;
  };
  using Memory = std::unique_ptr<uint8_t, Unmap>;
  struct QueueState {
    alignas(64) std::atomic<int64_t> progress{0};
    int64_t scratch_floats = 0;
    int64_t mirror_floats = 0;  // plain copies of a task's tagged buffers
    Memory scratch, mirror;
  };

  static Memory map(int64_t size);
  void allocate(const Setup& setup);
  void compile(const Setup& setup);
  uint8_t* address(int64_t buffer, int64_t queue) const;
  void check_launch(int64_t steps, const std::vector<int64_t>& variables) const;
  void poison();
  void compile_tagged(Task& task);
  void clear_tags();
  void run_queue(int32_t queue);
  void fail(const Fault& fault);

  std::vector<uint64_t> table_words_;
  Tables tables_;
  Machine machine_;
  std::vector<Memory> owned_;
  std::vector<std::vector<Bytes>> pools_;  // [pool][queue, or one entry]
  std::map<int64_t, Bytes> bound_;
  std::vector<Task> tasks_;
  std::vector<Geometry> geometries_;
  std::unique_ptr<QueueState[]> queues_;
  Memory counters_;

  LaunchOptions options_;
  std::vector<std::thread> threads_;
  std::mutex mutex_, join_;
  std::condition_variable ended_;
  std::atomic<bool> running_{false};
  std::atomic<int64_t> live_{0}, published_{0};
  std::atomic<bool> faulted_{false};
  alignas(64) uint32_t abort_flag_ = 0;
  uint32_t stop_at_ = 0;
  Fault fault_{};
};

}  // namespace amk
