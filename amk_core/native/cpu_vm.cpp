#include "cpu_vm.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocol.h"

namespace amk {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
int64_t bytes_of(const BufferRow& b) { return (b.rows * b.cols * b.bits + 7) / 8; }

// Seeded delays: a few pauses, a lost time slice or a short sleep, at about a third of the places that ask.
class Jitter {
 public:
  Jitter(bool on, uint64_t seed, uint64_t queue) : on_(on), state_(seed * 0x9E3779B97F4A7C15u + queue) {}
  void operator()() {
    if (!on_) return;
    const uint64_t r = next();
    switch (r % 12) {
      case 0: {
        const timespec nap{0, long(1000 + (r >> 8) % 40000)};
        nanosleep(&nap, nullptr);
        break;
      }
      case 1: sched_yield(); break;
      case 2:
      case 3:
        for (uint64_t i = 0; i < (r >> 8) % 2000; ++i) relax(0);
        break;
      default: break;
    }
  }

 private:
  uint64_t next() {  // SplitMix64 (Steele, Lea, Flood 2014)
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  bool on_;
  uint64_t state_;
};

// Weights are read-only, so they may be fetched before the waits of the task hold.
void prefetch_weights(const Task& task) {
  constexpr int64_t kPrefetchBytes = 64 * 1024;
  if (!task.weight) return;
  for (int64_t i = 0; i < kPrefetchBytes; i += 64) __builtin_prefetch(static_cast<const char*>(task.weight) + i, 0, 2);
}

}  // namespace

std::vector<const Kernels*> available_kernels() {
  std::vector<const Kernels*> out;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (kernels_avx512() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma"))
    out.push_back(kernels_avx512());
  if (kernels_avx2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out.push_back(kernels_avx2());
#endif
  out.push_back(kernels_baseline());
  return out;
}

void Program::Unmap::operator()(uint8_t* p) const { munmap(p, size_t(size)); }

Program::Memory Program::map(int64_t size) {
  size = up(std::max<int64_t>(size, 1), kPageBytes);
  void* p = mmap(nullptr, size_t(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw LoadError("no memory for a pool of " + std::to_string(size) + " bytes");
  return Memory(static_cast<uint8_t*>(p), Unmap{size});
}

Program::Program(const Setup& setup)
    : tables_(copy_aligned(setup.tables, table_words_)), bound_(setup.bound), counters_(nullptr, Unmap{0}) {
  machine_ = {&tables_, setup.kernels, setup.tape_bf16, setup.fast};
  if (tables_.steps < 1) throw LoadError("tables: steps is " + std::to_string(tables_.steps) + ", required is at least 1");
  allocate(setup);
  compile(setup);
}

Program::~Program() {
  abort();
  wait_for(-1);
}

void Program::allocate(const Setup& setup) {
  std::vector<int64_t> extent(tables_.pools.size(), 0);
  for (size_t i = 0; i < tables_.buffers.size(); ++i) {
    const BufferRow& b = tables_.buffers[i];
    const std::string which = "buffer " + std::to_string(i);
    if (b.rows < 1 || b.cols < 1 || b.bits < 4 || b.bits > 64 || b.rows > (int64_t{1} << 50) / b.cols)
      throw LoadError(which + ": impossible shape");
    if (auto it = bound_.find(int64_t(i)); it != bound_.end()) {
      if (b.kind != kTable && b.kind != kInput) throw LoadError(which + " is bound, but only tables and inputs may be");
      if (it->second.size != bytes_of(b))
        throw LoadError(which + " is bound to " + std::to_string(it->second.size) + " bytes, required are " +
                        std::to_string(bytes_of(b)));
      continue;
    }
    if (b.kind == kWeight) continue;  // lives in the tape
    if (b.pool < 0 || b.pool >= int64_t(tables_.pools.size()) || b.offset < 0 || b.offset > (int64_t{1} << 50) || b.offset % 4)
      throw LoadError(which + " lies in no pool, or its offset is negative or not a multiple of 4");
    const PoolRow& pool = tables_.pools[size_t(b.pool)];
    const int64_t end = b.offset + bytes_of(b);
    if (pool.bytes >= 0 && end > pool.bytes)
      throw LoadError(which + " ends at byte " + std::to_string(end) + " of a pool of " + std::to_string(pool.bytes));
    extent[size_t(b.pool)] = std::max(extent[size_t(b.pool)], end);
  }
  for (const auto& [index, bytes] : bound_)
    if (index < 0 || index >= int64_t(tables_.buffers.size())) throw LoadError("a bound buffer does not exist");
  for (size_t p = 0; p < tables_.pools.size(); ++p) {
    const int64_t copies = tables_.pools[p].per_queue ? std::max<int64_t>(1, tables_.n_queues) : 1;
    std::vector<Bytes> memory;
    if (auto it = setup.pools.find(int64_t(p)); it != setup.pools.end()) {
      if (tables_.pools[p].per_queue) throw LoadError("pool " + std::to_string(p) + " is per queue and cannot be given from outside");
      if (it->second.size < extent[p] || reinterpret_cast<uintptr_t>(it->second.data) % 16)
        throw LoadError("pool " + std::to_string(p) + " is given " + std::to_string(it->second.size) + " bytes, required are " +
                        std::to_string(extent[p]) + ", aligned to 16");
      memory.push_back(it->second);
    } else {
      for (int64_t c = 0; c < copies; ++c) {
        owned_.push_back(map(extent[p]));
        memory.push_back({owned_.back().get(), extent[p]});
      }
    }
    pools_.push_back(std::move(memory));
  }
  counters_ = map(int64_t(tables_.counters.size()) * kCounterStride * 4);
}

uint8_t* Program::address(int64_t buffer, int64_t queue) const {
  if (auto it = bound_.find(buffer); it != bound_.end()) return it->second.data;
  const BufferRow& b = tables_.buffers[size_t(buffer)];
  if (b.kind == kWeight) return nullptr;
  const auto& copies = pools_[size_t(b.pool)];
  return copies[copies.size() > 1 ? size_t(queue) : 0].data + b.offset;
}

void Program::compile(const Setup& setup) {
  const size_t n = size_t(tables_.n_tasks);
  if (setup.task_weight.size() != n)
    throw LoadError("task_weight has " + std::to_string(setup.task_weight.size()) + " entries for " + std::to_string(n) + " tasks");
  for (size_t c = 0; c < tables_.counters.size(); ++c)
    if (tables_.counters[c] < 0 || tables_.counters[c] > INT32_MAX / tables_.steps)
      throw LoadError("counter " + std::to_string(c) + " does not fit 31 bits over all steps");
  for (size_t w = 0; w < tables_.wait_counter.size(); ++w)
    if (tables_.wait_counter[w] < 0 || size_t(tables_.wait_counter[w]) >= tables_.counters.size())
      throw LoadError("a wait names counter " + std::to_string(tables_.wait_counter[w]) + ", which does not exist");
  for (size_t s = 0; s < tables_.sig_counter.size(); ++s)
    if (tables_.sig_counter[s] < 0 || size_t(tables_.sig_counter[s]) >= tables_.counters.size() || tables_.sig_amount[s] < 0 ||
        tables_.sig_amount[s] > INT32_MAX)
      throw LoadError("a signal names counter " + std::to_string(tables_.sig_counter[s]) + ", which does not exist, or its amount is out of range");
  if (tables_.stop_buffer >= 0) {
    const bool exists = size_t(tables_.stop_buffer) < tables_.buffers.size() && tables_.stop_task >= 0 && tables_.stop_task < tables_.n_tasks;
    if (!exists || tables_.buffers[size_t(tables_.stop_buffer)].rows < tables_.steps ||
        tables_.buffers[size_t(tables_.stop_buffer)].bits != 32 || bound_.count(tables_.stop_buffer) ||
        tables_.buffers[size_t(tables_.stop_buffer)].kind == kWeight)
      throw LoadError("the stop buffer or task does not exist, or the buffer is not one 32-bit row a step");
  }

  tasks_.resize(n);
  queues_ = std::make_unique<QueueState[]>(size_t(tables_.n_queues));
  std::vector<char> placed(n, 0);
  for (int64_t q = 0; q < tables_.n_queues; ++q) {
    for (int64_t at = tables_.queue_off[size_t(q)]; at < tables_.queue_off[size_t(q) + 1]; ++at) {
      const int32_t id = tables_.queue_task[size_t(at)];
      if (id < 0 || size_t(id) >= n || placed[size_t(id)]) throw LoadError("task " + std::to_string(id) + " is not in exactly one queue");
      placed[size_t(id)] = 1;
      int64_t tile_bytes = 0;
      check_task(machine_, id, &tile_bytes, &geometries_);
      Task& t = tasks_[size_t(id)];
      t.op = tables_.task_op[size_t(id)], t.id = id, t.queue = int32_t(q), t.position = int32_t(at - tables_.queue_off[size_t(q)]);
      t.p = tables_.par.data() + tables_.par_off[size_t(id)];
      for (int i = 0; i < buffer_params(t.op); ++i)
        if (t.p[i] >= 0 && size_t(t.p[i]) < tables_.buffers.size()) t.at[i] = address(t.p[i], q);
      const int64_t weight = setup.task_weight[size_t(id)];
      if (weight_param(t.op) < 0) {
        if (weight != -1) throw LoadError("task " + std::to_string(id) + " reads no weight, but task_weight gives it one");
      } else {
        if (weight < 0 || weight % 64 || weight > setup.tape.size || tile_bytes > setup.tape.size - weight)
          throw LoadError("task " + std::to_string(id) + ": its weight tile of " + std::to_string(tile_bytes) + " bytes at offset " +
                          std::to_string(weight) + " is not inside the tape of " + std::to_string(setup.tape.size) +
                          " bytes, or not aligned to 64");
        t.weight = setup.tape.data + weight;
        const BufferRow& b = tables_.buffers[size_t(t.p[weight_param(t.op)])];
        t.weight_k = b.cols;
        QuantFormat::of(b.dtype, &t.quant);
      }
      queues_[size_t(q)].scratch_floats = std::max(queues_[size_t(q)].scratch_floats, scratch_floats(t));
      compile_tagged(t);
    }
  }
  if (std::find(placed.begin(), placed.end(), 0) != placed.end()) throw LoadError("a task stands in no queue");
  for (int64_t q = 0; q < tables_.n_queues; ++q) {
    queues_[size_t(q)].scratch = map(queues_[size_t(q)].scratch_floats * 4);
    queues_[size_t(q)].mirror = map(queues_[size_t(q)].mirror_floats * 4);
  }
  for (Task& t : tasks_) {  // mirrors stand side by side, those of the next task in the same place
    float* mirror = reinterpret_cast<float*>(queues_[size_t(t.queue)].mirror.get());
    for (size_t i = 0; i < t.tagged.size(); ++i) {
      TaggedParam& p = t.tagged[i];
      if (!p.elements) continue;
      p.mirror = mirror;
      t.at[i] = reinterpret_cast<uint8_t*>(mirror);
      mirror += up(tables_.buffers[size_t(t.p[i])].rows * p.cols * p.width, 16);
    }
  }
}

// The tagged buffers of a task, and how it reaches them.
void Program::compile_tagged(Task& t) {
  int64_t floats = 0;
  for (int i = 0; i < buffer_params(t.op); ++i) {
    if (t.p[i] < 0 || size_t(t.p[i]) >= tables_.buffers.size() || !tables_.buffers[size_t(t.p[i])].tagged) continue;
    const BufferRow& b = tables_.buffers[size_t(t.p[i])];
    if (b.bits != 64 || reinterpret_cast<uintptr_t>(t.at[i]) % 8) throw LoadError("task " + std::to_string(t.id) + ": tagged elements are aligned 8-byte pairs");
    t.tagged.resize(size_t(buffer_params(t.op)));
    const int packed = t.op == kAttn ? t.p[attn::packed] : t.op == kGateUp ? t.p[gate_up::packed] : t.op == kOProj || t.op == kDownProj ? t.p[o_proj::packed] : 0;
    TaggedParam& p = t.tagged[size_t(i)];
    p.elements = reinterpret_cast<uint64_t*>(t.at[i]), p.cols = b.cols, p.width = packed && holds_pairs(t.op, i) ? 2 : 1;
    floats += up(b.rows * b.cols * p.width, 16);
    for (int64_t a = tables_.acc_off[size_t(t.id)]; a < tables_.acc_off[size_t(t.id) + 1]; ++a) {
      if (tables_.acc_buffer[size_t(a)] != t.p[i]) continue;
      const TaggedAccess x{i, (tables_.acc_flags[size_t(a)] & kWrite) != 0, (tables_.acc_flags[size_t(a)] & kMaybe) != 0,
                           tables_.acc_r0[size_t(a)], tables_.acc_r1[size_t(a)], tables_.acc_c0[size_t(a)], tables_.acc_c1[size_t(a)]};
      const bool fits = tables_.acc_raff[size_t(a)] < 0 && tables_.acc_caff[size_t(a)] < 0 && x.row0 >= 0 && x.row1 <= b.rows && x.col0 >= 0 && x.col1 <= b.cols;
      if (!fits) throw LoadError("task " + std::to_string(t.id) + ": an access to tagged elements moves, or lies outside its buffer");
      t.tagged_accesses.push_back(x);
    }
  }
  queues_[size_t(t.queue)].mirror_floats = std::max(queues_[size_t(t.queue)].mirror_floats, floats);
}

void Program::clear_tags() {
  for (size_t i = 0; i < tables_.buffers.size(); ++i)
    if (tables_.buffers[i].tagged)
      for (const Bytes& copy : pools_[size_t(tables_.buffers[i].pool)])
        std::memset(copy.data + tables_.buffers[i].offset, 0, size_t(bytes_of(tables_.buffers[i])));
}

Bytes Program::buffer(int64_t index) const {
  const BufferRow& b = tables_.buffers[size_t(index)];
  return {address(index, 0), bytes_of(b)};
}

Bytes Program::pool(int64_t index) const { return pools_[size_t(index)][0]; }

void Program::check_launch(int64_t steps, const std::vector<int64_t>& variables) const {
  if (steps < 1 || steps > tables_.steps)
    throw LoadError("steps is " + std::to_string(steps) + ", required is 1 to " + std::to_string(tables_.steps));
  if (variables.size() != tables_.variables.size())
    throw LoadError(std::to_string(variables.size()) + " launch variables given, required are " + std::to_string(tables_.variables.size()));
  for (size_t i = 0; i < variables.size(); ++i)
    if (variables[i] < tables_.variables[i].min || variables[i] > tables_.variables[i].max)
      throw LoadError("launch variable " + std::to_string(i) + " is " + std::to_string(variables[i]) + ", its declared range is " +
                      std::to_string(tables_.variables[i].min) + " to " + std::to_string(tables_.variables[i].max));
  for (const Geometry& g : geometries_)
    for (int64_t seq = 0; seq < g.batch; ++seq) {
      const int64_t p0 = variables[size_t(g.pos_var + seq)], n = variables[size_t(g.pos_var + g.batch + seq)];
      const int64_t tokens = std::min(n, steps * g.chunk);
      if (p0 < 0 || n < 0 || p0 + tokens > g.ctx)
        throw LoadError("sequence " + std::to_string(seq) + ": " + std::to_string(n) + " tokens from position " + std::to_string(p0) +
                        " do not fit " + std::to_string(g.ctx) + " positions");
      if (g.certain && tokens < steps * g.chunk)
        throw LoadError("sequence " + std::to_string(seq) + " has " + std::to_string(n) + " active tokens, but the schedule promises a row for each of " +
                        std::to_string(steps * g.chunk) + "; launch fewer steps, or lower with partial accesses");
    }
}

void Program::poison() {
  std::vector<char> initial(tables_.buffers.size(), 0);
  for (int32_t b : tables_.init_buffer)
    if (b >= 0 && size_t(b) < initial.size()) initial[size_t(b)] = 1;
  for (size_t i = 0; i < tables_.buffers.size(); ++i) {
    const BufferRow& b = tables_.buffers[i];
    if (b.lifetime != kStep || b.kind == kWeight || initial[i] || bound_.count(int64_t(i))) continue;
    for (const Bytes& copy : pools_[size_t(b.pool)]) std::memset(copy.data + b.offset, 0xFF, size_t(bytes_of(b)));
  }
}

void Program::launch(const LaunchOptions& options) {
  if (running_) throw LoadError("a launch is in flight; wait for it or abort it first");
  check_launch(options.steps, options.variables);
  wait_for(-1);
  options_ = options;
  if (options.poison) poison();
  clear_tags();
  std::memset(counters_.get(), 0, tables_.counters.size() * kCounterStride * 4);
  for (int64_t q = 0; q < tables_.n_queues; ++q) queues_[size_t(q)].progress = 0;
  store_release(&abort_flag_, 0);
  store_release(&stop_at_, kNeverStops);
  fault_ = {}, faulted_ = false, published_ = 0;
  live_ = tables_.n_queues;
  running_ = tables_.n_queues > 0;
  try {
    for (int64_t q = 0; q < tables_.n_queues; ++q) threads_.emplace_back([this, q] { run_queue(int32_t(q)); });
  } catch (const std::system_error& e) {
    abort();
    {
      std::lock_guard lock(mutex_);
      live_ -= tables_.n_queues - int64_t(threads_.size());
      if (live_ == 0) running_ = false;
    }
    wait_for(-1);
    throw LoadError(std::string("no thread for every queue: ") + e.what());
  }
}

bool Program::wait_for(int64_t milliseconds) {
  {
    std::unique_lock lock(mutex_);
    auto over = [this] { return !running_; };
    if (milliseconds < 0)
      ended_.wait(lock, over);
    else if (!ended_.wait_for(lock, std::chrono::milliseconds(milliseconds), over))
      return false;
  }
  std::lock_guard lock(join_);  // several callers may wait
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  return true;
}

int64_t Program::published() const {
  if (tables_.stop_task >= 0) return published_.load(std::memory_order_acquire);
  int64_t least = options_.steps;
  for (int64_t q = 0; q < tables_.n_queues; ++q) {
    if (tables_.queue_off[size_t(q)] == tables_.queue_off[size_t(q) + 1]) continue;
    least = std::min(least, queues_[size_t(q)].progress.load(std::memory_order_acquire));
  }
  return least;
}

Outcome Program::outcome() const {
  return {published(), int64_t(stop_at_) < options_.steps, abort_flag_ != 0 && !faulted_, fault_};
}

void Program::abort() { store_release(&abort_flag_, 1); }

void Program::fail(const Fault& fault) {
  if (!faulted_.exchange(true)) fault_ = fault;
  abort();
}

void Program::run_queue(int32_t queue) {
  QueueState& me = queues_[size_t(queue)];
  const int64_t first = tables_.queue_off[size_t(queue)], last = tables_.queue_off[size_t(queue) + 1];
  const Spin spin{&abort_flag_, &stop_at_, uint64_t(std::min(options_.spin_timeout_s, 1e9) * 1e9)};
  auto* counters = reinterpret_cast<uint32_t*>(counters_.get());
  auto* scratch = reinterpret_cast<float*>(me.scratch.get());
  const uint8_t* stop = tables_.stop_buffer >= 0 ? address(tables_.stop_buffer, queue) : nullptr;
  const int64_t stop_stride = stop ? tables_.buffers[size_t(tables_.stop_buffer)].cols * 4 : 0;
  Jitter jitter(options_.perturb, options_.perturb_seed, uint64_t(queue));

  bool leave = first == last;
  for (int64_t step = 0; step < options_.steps && !leave; ++step) {
    for (int64_t at = first; at < last && !leave; ++at) {
      const Task& task = tasks_[size_t(tables_.queue_task[size_t(at)])];
      Fault fault{kNoFault, task.id, task.op, queue, task.position, -1, int32_t(step), -1, 0, 0};
      jitter();
      for (int64_t w = tables_.wait_off[size_t(task.id)]; w < tables_.wait_off[size_t(task.id) + 1]; ++w) {
        const int32_t counter = tables_.wait_counter[size_t(w)];
        const uint32_t* address = counters + int64_t(counter) * kCounterStride;
        const int64_t needs = threshold(step, tables_.wait_e[size_t(w)], tables_.counters[size_t(counter)], tables_.wait_t[size_t(w)]);
        if (int64_t(load_acquire(address)) >= needs) continue;
        prefetch_weights(task);
        const WaitStatus status = wait_at_least(address, needs, step, spin, &fault.has);
        if (status == kReady) continue;
        leave = true;
        if (status == kTimedOut) {
          fault.kind = kSpinTimeout, fault.counter = counter, fault.needs = needs;
          fail(fault);
        }
        break;
      }
      if (leave || load_acquire(&abort_flag_) != 0) {
        leave = true;
        break;
      }
      // Ordered behind the sampler of the step before by the waits, so every queue sees the same decision.
      if (at == first && int64_t(load_acquire(&stop_at_)) <= step) {
        leave = true;
        break;
      }
      jitter();
      TagPort port(task.tagged, task.tagged_accesses, step, &spin, &fault);
      if (!run_body(machine_, task, step, options_.variables, scratch, &fault, task.tagged.empty() ? nullptr : &port)) {
        if (!port.aborted() || port.failed()) fail(fault);
        leave = true;
        break;
      }
      jitter();
      if (task.id == tables_.stop_task) {
        published_.store(step + 1, std::memory_order_release);
        if (*reinterpret_cast<const int32_t*>(stop + step * stop_stride) != 0) store_release(&stop_at_, uint32_t(step + 1));
      }
      for (int64_t s = tables_.sig_off[size_t(task.id)]; s < tables_.sig_off[size_t(task.id) + 1]; ++s)
        signal(counters + int64_t(tables_.sig_counter[size_t(s)]) * kCounterStride, uint32_t(tables_.sig_amount[size_t(s)]));
    }
    if (!leave) me.progress.store(step + 1, std::memory_order_release);
  }
  if (live_.fetch_sub(1) == 1) {
    std::lock_guard lock(mutex_);
    running_ = false;
    ended_.notify_all();
  }
}

Outcome Program::run_task(int64_t task, int64_t step, const std::vector<int64_t>& variables) {
  if (running_) throw LoadError("a launch is in flight; wait for it or abort it first");
  if (task < 0 || task >= tables_.n_tasks) throw LoadError("task " + std::to_string(task) + " does not exist");
  if (step < 0) throw LoadError("step is " + std::to_string(step) + ", required is at least 0");
  check_launch(step + 1, variables);
  const Task& t = tasks_[size_t(task)];
  Outcome out{.steps = step + 1, .stopped = false, .aborted = false,
              .fault = {kNoFault, t.id, t.op, t.queue, t.position, -1, int32_t(step), -1, 0, 0}};
  TagPort port(t.tagged, t.tagged_accesses, step, nullptr, &out.fault);
  run_body(machine_, t, step, variables, reinterpret_cast<float*>(queues_[size_t(t.queue)].scratch.get()), &out.fault,
           t.tagged.empty() ? nullptr : &port);
  return out;
}

}  // namespace amk
