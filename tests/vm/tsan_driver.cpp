// Runs packed tables on the CPU VM from a file, without Python, so that ThreadSanitizer sees every access of every queue.
// Arguments: tables, weight offsets (int64), tape bytes, steps, seed, launch variables ...
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "cpu_vm.hpp"

static std::string read(const char* path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

int main(int argc, char** argv) {
  const std::string tables = read(argv[1]), weights = read(argv[2]);
  std::vector<uint8_t> tape(size_t(std::atoll(argv[3])), 0);
  amk::Setup setup;
  setup.tables = tables;
  setup.task_weight = {reinterpret_cast<const int64_t*>(weights.data()), weights.size() / 8};
  setup.tape = {tape.data(), int64_t(tape.size())};
  setup.kernels = amk::kernels_baseline();
  for (const amk::BufferRow& b : amk::Tables(setup.tables).buffers)  // the fast plan stores weights in 16 bits
    setup.tape_bf16 = setup.fast = setup.fast || (b.kind == amk::kWeight && b.bits == 16);
  amk::Program program(setup);
  for (size_t b = 0; b < program.tables().buffers.size(); ++b)  // no stop id, no token, greedy
    if (program.tables().buffers[b].kind == amk::kInput) {
      const amk::Bytes bytes = program.buffer(int64_t(b));
      std::fill(bytes.data, bytes.data + bytes.size, uint8_t{0xFF});
    }
  amk::LaunchOptions options;
  options.steps = std::atoll(argv[4]);
  options.perturb = true;
  options.perturb_seed = std::strtoull(argv[5], nullptr, 10);
  for (int i = 6; i < argc; ++i) options.variables.push_back(std::atoll(argv[i]));
  program.launch(options);
  program.wait_for(-1);
  const amk::Outcome out = program.outcome();
  std::printf("steps %lld fault %d\n", static_cast<long long>(out.steps), int(out.fault.kind));
  return out.fault.kind == amk::kNoFault ? 0 : 3;
}
