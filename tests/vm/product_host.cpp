// One quantised product by kernels/gemv_quant.cuh, its loop as AMK_PAIRS says: run_product(case, ...) of the cases that PRODUCTS names.
#include "common.cuh"
#include "gemv_quant.cuh"

#include <csetjmp>
#include <csignal>

namespace amk {

static sigjmp_buf way_out;
static void leave(int) { siglongjmp(way_out, 1); }

enum Kind : int { kPlain, kInHalves, kWeighted };  // weighted: normalised rows, whose weights stand behind them

template <int K, Kind kKind>
struct HostSource {
  static constexpr bool kNormed = kKind == kWeighted, kHalves = kKind == kInHalves, kPolled = false;
  const float* x;
  static constexpr float eps = 1e-5f;
  float4 load(const Context, int r, int k) const {
    auto value = [&](int at) { return at < K ? x[r * K + at] : 0.0f; };
    return kHalves ? make_float4(value(k), value(k + 1), value(k + 16), value(k + 17)) : make_float4(value(k), value(k + 1), value(k + 2), value(k + 3));
  }
  float4 weight(const Context, int, int k) const {
    auto value = [&](int at) { return at < K ? x[kRows * K + at] : 0.0f; };
    return make_float4(value(k), value(k + 1), value(k + 2), value(k + 3));
  }
};
static const float* activations;
static Finish finish;
template <int kCode, int K, Kind kKind>
static void body() {
  gemv_quant<K, QuantWeights<kCode>>(Context::here(), HostSource<K, kKind>{activations}, finish);
}

template <int kCode, int K>
static void (*body_of(int kind))() {
  using W = QuantWeights<kCode>;
  if constexpr (W::kInteger && Slices<K, W>::kStaged)
    if (kind == kWeighted) return body<kCode, K, kWeighted>;
  return kind == kInHalves ? body<kCode, K, kInHalves> : body<kCode, K, kPlain>;
}

static int chosen(int code, int k, int kind) {
#define PRODUCT(number, length) \
  if (code == number && k == length) return run_fibers(body_of<number, length>(kind)) ? 0 : 1;
  PRODUCTS
  return 2;
}

}  // namespace amk

// 0: done; 1: threads wait for each other for ever; 2: no such case; 3: a read beyond a slot or behind its release, or slots left over.
extern "C" int run_product(
    int code, int k, const uint8_t* tile, uint64_t offset, uint32_t units, uint32_t block, const float* x, float* out, int n, int kind) {
  using namespace amk;
  std::memset(dynamic_shared, 0xff, sizeof dynamic_shared);
  fill_slots(tile, {offset, units, block});
  activations = x, finish = Finish{Finish::kLogits, out, n};
  struct sigaction now {}, before[2];
  now.sa_handler = leave;
  sigaction(SIGSEGV, &now, &before[0]), sigaction(SIGABRT, &now, &before[1]);
  const int failed = sigsetjmp(way_out, 1) ? 3 : chosen(code, k, kind);
  sigaction(SIGSEGV, &before[0], nullptr), sigaction(SIGABRT, &before[1], nullptr);
  return failed;
}
