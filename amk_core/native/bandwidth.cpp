// How fast this processor's cores read memory together: the physical floor of anything that reads the same bytes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace amk {

#if defined(__x86_64__) && defined(__gnu_linux__)
#define AMK_EVERY_WIDTH __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AMK_EVERY_WIDTH
#endif

constexpr size_t kLine = 8;  // words of 8 bytes in a cache line

// Exclusive or of n words, n a multiple of a line; ahead is the prefetch distance in words, 0 leaves it to the hardware.
AMK_EVERY_WIDTH uint64_t read_words(const uint64_t* p, size_t n, size_t ahead) {
  uint64_t sum[4 * kLine] = {};
  size_t i = 0;
  if (ahead == 0) {
    for (; i + 4 * kLine <= n; i += 4 * kLine)
      for (size_t j = 0; j < 4 * kLine; ++j) sum[j] ^= p[i + j];
  } else {
    for (; i + 4 * kLine <= n; i += 4 * kLine) {
      for (size_t line = 0; line < 4; ++line) __builtin_prefetch(p + std::min(i + ahead + line * kLine, n - 1));
      for (size_t j = 0; j < 4 * kLine; ++j) sum[j] ^= p[i + j];
    }
  }
  uint64_t all = 0;
  for (; i < n; ++i) all ^= p[i];
  for (uint64_t s : sum) all ^= s;
  return all;
}

namespace {

using Words = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Seconds of each of `repeats` passes over `words` by `threads` threads, each on its own part.
std::vector<double> read_passes(Words words, int threads, int repeats, size_t ahead) {
  if (threads < 1 || threads > 4096 || repeats < 1 || repeats > 10000)
    throw std::invalid_argument("read_passes: 1 to 4096 threads and 1 to 10000 repeats are required");
  nb::gil_scoped_release unlocked;
  const uint64_t* data = words.data();
  const size_t n = words.shape(0);
  std::atomic<int> pass{-1}, done{0};
  std::atomic<uint64_t> sink{0};
  std::vector<std::thread> crew;
  for (int t = 1; t < threads; ++t)
    crew.emplace_back([&, t] {
      for (int r = 0; r < repeats; ++r) {
        while (pass.load(std::memory_order_acquire) < r) std::this_thread::yield();
        sink.fetch_xor(read_words(data + n * t / threads, n * (t + 1) / threads - n * t / threads, ahead));
        done.fetch_add(1, std::memory_order_release);
      }
    });
  std::vector<double> seconds;
  for (int r = 0; r < repeats; ++r) {
    const auto start = std::chrono::steady_clock::now();
    pass.store(r, std::memory_order_release);
    sink.fetch_xor(read_words(data, n / threads, ahead));
    while (done.load(std::memory_order_acquire) < (r + 1) * (threads - 1)) std::this_thread::yield();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  for (std::thread& t : crew) t.join();
  return seconds;
}

}  // namespace

void bind_bandwidth(nb::module_& m) {
  m.def("read_passes", &read_passes, "words"_a, "threads"_a, "repeats"_a, "ahead"_a = 0,
        "Seconds of each pass of `threads` threads over a uint64 array, each reading its own part.");
}

}  // namespace amk
