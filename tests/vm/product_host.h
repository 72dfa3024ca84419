// The quantised product of one task on the host, by the kernel's own code: this file stands in for the headers that speak to the card.
// A slot of the ring is memory of its own that ends where its bytes end and goes when every warp has released it: a read beyond them, or
// too late, is SIGSEGV.
#pragma once
#include "host_fibers.h"
#include "host_mma.h"

#include <sys/mman.h>

#include <vector>

#include "device.h"

#define AMK_EXACT 0
#define AMK_TAGGED 0
#define __shared__ static
#define __host__
#define kMinusInfinity __int_as_float(int(0xff800000u))

namespace amk {

constexpr int kRows = AMK_ROWS, kChunk = 1, kBatch = kRows, kHidden = AMK_HIDDEN, kHeadDim = 64, kQSize = AMK_HIDDEN, kKvSize = 64, kInter = 576;
constexpr bool kExact = false, kTagged = false;
constexpr int kWarps = AMK_WARPS, kWorkBytes = AMK_WORK_BYTES, kVocab = 1 << 20;
constexpr int up(int n, int to) { return (n + to - 1) / to * to; }
alignas(128) static uint8_t dynamic_shared[AMK_WORK_BYTES];

struct Context {
  int turn, warp, lane, thread;
  static Context here() { return {0, current / 32, current % 32, current}; }
  int step() const { return 0; }
  int op() const { return -1; }
  int p(int) const { return 0; }
  template <class T = float>
  T* at(int) const { return nullptr; }
  bool active(int, int) const { return true; }
  int position(int, int) const { return 0; }
};

inline float __shfl_down_sync(uint32_t, float v, int) { return v; }  // of gates alone
inline void __syncwarp() { warps[current / 32].wait(32); }
inline float tree_sum(float v) {
  for (int off = 16; off > 0; off >>= 1) v = v + __shfl_xor_sync(~0u, v, off);
  return v;
}
inline uint32_t pack_bf16(float low, float high) { return uint32_t(bf16_of(high)) << 16 | bf16_of(low); }
inline float rsqrt_fast(float x) { return 1.0f / std::sqrt(x); }
inline float load_table(const float* p) { return *p; }
inline float4 load_table_x4(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline float load_shared_f32(const float* p) { return *p; }
inline float4 load_shared_f32x4(const float* p) { return *reinterpret_cast<const float4*>(p); }
inline uint32_t shared_address(const void*) { return 0; }
inline void note_arrival(const Context) {}
inline uint32_t tag_of(const Context) { return 1; }
inline float2 floats_of(uint4 v) { return make_float2(float_of(v.x), float_of(v.z)); }

struct Finish {
  enum Kind : int { kRotate, kResidual, kGate, kLogits };
  Kind kind = kLogits;
  float* out;
  int n, first = 0;
  float2 prefetch(const Context, int, int) const { return {}; }
  const uint2* tagged_residual(int, int) const { return nullptr; }
  void store_gates(const Context, int, int, float, float) const {}
  static float gate(float a, float) { return a; }
  void apply(const Context, int local, int r, float a, float b, float2) const {
    out[r * n + local] = a;
    if (local + 1 < n) out[r * n + local + 1] = b;
  }
};

// ---- the ring
constexpr int kSlots = 4, kSlotUnits = AMK_SLOT_UNITS, kUnitBytes = 512, kPieceUnits = 64;
#include "tile_runs.inc"  // of vm/ring.cuh

struct Slot {
  uint8_t *pages, *data;
  size_t bytes;
  int released = 0;
};
static std::vector<Slot> slots;
inline void fill_slots(const uint8_t* from, const TileRef& tile) {
  constexpr size_t kPage = 4096;
  for (const Slot& s : slots) munmap(s.pages, s.bytes);
  slots.clear();
  for (TileRuns runs(tile); runs.left > 0;) {  // as the loader does
    const uint32_t units = runs.run < runs.unit.slot ? runs.run : runs.unit.slot;
    const size_t bytes = units * runs.unit.bytes, whole = (bytes + kPage - 1) / kPage * kPage;
    if (bytes > AMK_SLOT_BYTES) std::abort();
    auto* pages = static_cast<uint8_t*>(mmap(nullptr, whole + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (pages == MAP_FAILED || mprotect(pages + whole, kPage, PROT_NONE)) std::abort();
    slots.push_back({pages, pages + whole - bytes, whole + kPage});
#if AMK_PAIRS
    std::memcpy(slots.back().data, from + runs.at * runs.unit.bytes, bytes);
#else
    std::memcpy(slots.back().data, from, bytes);
    from += bytes;
#endif
    runs.take(units);
  }
}
struct Ring {
  volatile uint32_t polling;
  uint64_t full[4096];
};
static Ring ring;
inline void poke(volatile uint32_t&, uint32_t) {}
inline bool barrier_try(uint64_t*, uint32_t) { return true; }
inline bool barrier_try_at(uint32_t, uint32_t) { return true; }
inline void barrier_wait(uint64_t*, uint32_t) {}
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;
  const uint8_t* data() const { return slots.at(size_t(slot)).data; }
  const uint8_t* wait() const { return data(); }
  void release(int, int lane) {
    __syncwarp();
    Slot& s = slots.at(size_t(slot++));
    if (lane == 0 && ++s.released == kWarps) mprotect(s.pages, s.bytes, PROT_NONE);
  }
  void keep(int thread) const {
    if (size_t(slot) != slots.size()) std::abort();  // every warp passes every slot
  }
};

}  // namespace amk
