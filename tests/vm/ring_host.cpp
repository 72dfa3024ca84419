// vm/ring.cuh on the host: its own text, with the hardware primitives replaced, under a scheduler that picks the next agent at
// random before every access to shared state.  Prints what happened, one event a line in the words of amk_bench/adversary/
// ring_model.py, an empty line behind each run.  Arguments: runs, seed.  RING_TEXT, AMK_SLOTS, AMK_FLIGHT_HIGH, AMK_FLIGHT_MID, AMK_FLIGHT_LOW,
// RING_BULK, RING_TASK and RING_ABORT come from the command line of the compiler.
#include "host_strand.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol.h"

constexpr int kLaneAgents = 2, kWarpAgents = 2;

// ---- agents and their scheduler
struct Fiber {
  Strand strand;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(1 << 18);
  std::function<void()> body;
  std::string name;
  bool done = false;
  int weight = 1;
};
static std::vector<std::unique_ptr<Fiber>> g_fibers;
static Fiber* g_self = nullptr;
static Strand g_scheduler;
static uint64_t g_random = 1;
static std::string g_events;

static uint64_t dice(uint64_t n) {
  g_random ^= g_random << 13, g_random ^= g_random >> 7, g_random ^= g_random << 17;
  return (g_random >> 20) % n;
}
static void step() {
  if (g_self) g_scheduler.take_over(g_self->strand);
}
static void event(const std::string& text) { g_events += text + "\n"; }
static void trampoline() {
  g_self->body();
  g_self->done = true;
  g_scheduler.take_over(g_self->strand);
}

// All of n agents meet; the last one to come runs `then`.
struct Meeting {
  int wanted, come = 0, round = 0;
  void operator()(const std::function<void()>& then) {
    const int mine = round;
    if (++come == wanted) {
      then();
      come = 0, ++round;
    } else {
      while (round == mine) step();
    }
  }
};

// ---- what ring.cuh needs of CUDA
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __shared__
#define __CUDA_ARCH__ (RING_BULK ? 900 : 800)
#define AMK_SLOT_UNITS 2
#define AMK_WARPS 2

struct int2 {
  int x, y;
};
static int2 make_int2(int x, int y) { return {x, y}; }
static struct { int x = 0; } blockIdx;
static void __nanosleep(int) {}
static void __syncwarp() {}
static Meeting g_vote{kLaneAgents};
static bool g_any = false, g_answer = false;
static bool __any_sync(unsigned, bool mine) {
  step();
  g_any |= mine;
  g_vote([] {
    g_answer = g_any, g_any = false;
    event("V " + std::to_string(g_answer));
  });
  return g_answer;
}

// A word of shared memory that several agents use: every access is a step.
struct Shared32 {
  uint32_t value = 0;
  const char* name = "";
  operator uint32_t() const;
  Shared32& operator=(uint32_t x);
};

namespace amk {
struct TileRef {
  int64_t offset;
  uint32_t units, block;
};
struct Launch {
  const TileRef* tiles;
  const int* tile_off;
  const uint8_t* tape;
  int steps;
};
static struct { int2 cursor{}; } shared;

bool barrier_test(uint64_t* b, uint32_t parity);
bool barrier_try(uint64_t* b, uint32_t parity);
void barrier_init(uint64_t* b, uint32_t count);
void barrier_arrive(uint64_t* b);
void copy_slot(int slot, const uint8_t* from, uint32_t bytes, int lane);
uint8_t* ring_data();

#include RING_TEXT

// ---- the primitives: an mbarrier is phase << 32 | expected << 16 | arrivals
static uint8_t g_data[kSlots * kSlotBytes];
struct Copy {
  int lane, slot;
  const uint8_t* from;
  uint32_t bytes;
};
static std::vector<Copy> g_flying;
static int parts() { return RING_BULK ? 1 : kLaneAgents; }

uint8_t* ring_data() { return g_data; }
void barrier_init(uint64_t* b, uint32_t count) { *b = uint64_t(count) << 16; }
static void complete(uint64_t* b) {
  const uint64_t count = *b >> 16 & 0xffff;
  if ((*b & 0xffff) + 1 == count)
    *b = (*b >> 32 << 32) + (uint64_t{1} << 32) + (count << 16);
  else
    ++*b;
}
static bool passed(const uint64_t* b, uint32_t parity) { return (*b >> 32 & 1) != parity; }
static std::string place(const uint64_t* b, uint32_t parity) {
  const bool full = b >= ring.full && b < ring.full + kSlots;
  return (full ? " full " : " empty ") + std::to_string(b - (full ? ring.full : ring.empty)) + " " + std::to_string(parity);
}
bool barrier_test(uint64_t* b, uint32_t parity) {
  step();
  const bool ok = passed(b, parity);
  event(g_self->name + place(b, parity) + (ok ? " 1" : " 0"));
  return ok;
}
bool barrier_try(uint64_t* b, uint32_t parity) {
  step();
  if (!passed(b, parity)) return false;
  event(g_self->name + place(b, parity) + (g_self->name[0] == 'L' ? " 1" : ""));
  return true;
}
void barrier_arrive(uint64_t* b) {
  step();
  event(g_self->name + " release " + std::to_string(b - ring.empty));
  complete(b);
}
void copy_slot(int slot, const uint8_t* from, uint32_t bytes, int lane) {
  step();
  event(g_self->name + " copy " + std::to_string(slot));
  if (bytes > uint32_t(kSlotBytes)) std::abort();
  if (lane == 0 || !RING_BULK) g_flying.push_back({lane, slot, from, bytes});
}
static void land(size_t k) {
  const Copy c = g_flying[k];
  g_flying.erase(g_flying.begin() + long(k));
  const uint32_t each = c.bytes / uint32_t(parts());
  std::memcpy(g_data + c.slot * kSlotBytes + (RING_BULK ? 0 : uint32_t(c.lane) * each), c.from + (RING_BULK ? 0 : uint32_t(c.lane) * each), each);
  event("E" + std::to_string(c.lane) + " land " + std::to_string(c.slot));
  complete(&ring.full[c.slot]);
}
}  // namespace amk

Shared32::operator uint32_t() const {
  if (!g_self) return value;
  if (g_self->name[0] == 'L' && *name) {
    step();
    event(g_self->name + " " + name + " " + std::to_string(value));
  }
  return value;
}
Shared32& Shared32::operator=(uint32_t x) {
  if (g_self && std::strcmp(name, "eaten") == 0) step(), event(g_self->name + " eaten");
  if (g_self && std::strcmp(name, "leave") == 0) step(), event(g_self->name + " gone");
  value = x;
  return *this;
}

// ---- one launch
using namespace amk;

struct Piece {
  const uint8_t* from;
  uint32_t bytes;
};

static void launch_once(uint64_t seed) {
  g_random = seed * 0x9E3779B97F4A7C15u + 1;
  for (int k = 0; k < 8; ++k) dice(2);
  std::vector<uint8_t> tape(1 << 16);
  for (auto& x : tape) x = uint8_t(dice(256));
  // tiles of whole and broken blocks: what a slot takes must never reach over the end of a block
  std::vector<TileRef> tiles;
  const int n_tiles = int(dice(3)), steps = 1 + int(dice(2));
  int64_t at = 0;
  std::vector<Piece> pieces;
  for (int k = 0; k < n_tiles; ++k) {
    const uint32_t block = 1 + uint32_t(dice(5)), blocks = 1 + uint32_t(dice(2));
    tiles.push_back({at, block * blocks, block});
    for (uint32_t b = 0; b < blocks; ++b)
      for (uint32_t left = block; left > 0;) {
        const uint32_t units = left < uint32_t(kSlotUnits) ? left : uint32_t(kSlotUnits);
        pieces.push_back({tape.data() + at, units * kUnitBytes});
        at += units * kUnitBytes, left -= units;
      }
  }
  const int off[2] = {0, n_tiles};
  const Launch launch{tiles.data(), off, tape.data(), steps};
  const int chunks = int(pieces.size()) * steps;
  event("chunks " + std::to_string(chunks));

  g_fibers.clear();
  ring.leave.name = "", ring.eaten.name = "";
  ring_init(20'000'000'000);
#if !RING_BULK
  for (auto& b : ring.full) barrier_init(&b, kLaneAgents);  // as many lanes as there are here
#endif
  ring.leave.name = "leave", ring.eaten.name = "eaten";
  shared.cursor = make_int2(0, 0);
  Meeting meet{kWarpAgents};
  bool go = true;
  auto add = [&](std::string name, std::function<void()> body) {
    g_fibers.push_back(std::make_unique<Fiber>());
    Fiber& f = *g_fibers.back();
    f.name = std::move(name), f.body = std::move(body), f.weight = 1 + int(dice(4)) * int(dice(4));
    f.strand.prepare(f.stack.get(), 1 << 18, trampoline);
  };
  for (int lane = 0; lane < kLaneAgents; ++lane)
    add("L" + std::to_string(lane), [&, lane] {
      run_loader(launch, lane);
      step();
      for (const Copy& c : g_flying)
        if (c.lane == lane) event("BAD a copy is under way");
      event("L" + std::to_string(lane) + " gone");
    });
  for (int warp = 0; warp < kWarpAgents; ++warp)
    add("W" + std::to_string(warp), [&, warp] {
      for (int chunk = 0;;) {
        step();
        meet([&] {
          go = chunk < chunks && !(RING_ABORT && dice(8) == 0);
          event(go ? "G go" : "G leave");
        });
        if (!go) break;
        RingCursor cursor;
        for (int k = 0; k < RING_TASK && chunk < chunks; ++k, ++chunk) {
          const uint8_t* data = cursor.wait();
          const Piece want = pieces[size_t(chunk) % pieces.size()];
          step();
          if (std::memcmp(data, want.from, want.bytes) != 0) event("BAD bytes of chunk " + std::to_string(chunk));
          cursor.release(warp, 0);
        }
        meet([] {});
        cursor.keep(warp == 0 ? 0 : 1);
      }
      if (warp == 0)
        ring.leave = 1;
      else
        step(), event("W" + std::to_string(warp) + " gone");
    });

  for (uint64_t turn = 0; turn < 100'000; ++turn) {
    std::vector<size_t> ready;
    for (size_t k = 0; k < g_fibers.size(); ++k)
      if (!g_fibers[k]->done) ready.insert(ready.end(), size_t(g_fibers[k]->weight), k);
    if (!g_flying.empty() && (ready.empty() || dice(6) == 0)) {
      size_t k = size_t(dice(g_flying.size()));
      if (!RING_BULK)  // in order for each lane
        for (size_t j = 0; j < k; ++j)
          if (g_flying[j].lane == g_flying[k].lane) k = j;
      land(k);
      continue;
    }
    if (ready.empty()) return;
    g_self = g_fibers[ready[size_t(dice(ready.size()))]].get();
    g_self->strand.take_over(g_scheduler);
    g_self = nullptr;
  }
  event("BAD it does not end");
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int runs = std::atoi(argv[1]);
  for (int r = 0; r < runs; ++r) {
    launch_once(std::strtoull(argv[2], nullptr, 10) * 100003 + uint64_t(r));
    std::printf("%s\n", g_events.c_str());
    if (g_events.find("BAD") != std::string::npos) return 0;
    g_events.clear();
    g_flying.clear();
  }
  return 0;
}
