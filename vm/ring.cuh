// The weight ring: one loader warp copies the queue's tape, tile by tile and ahead of all waits (weights are read-only), into
// slots of shared memory; the task warps consume the slots in order.  A slot is refilled only after every task warp released it.
//
// Bytes in flight are capped apart from the depth of the ring: with the whole ring in flight every activation load queues behind
// the weights.  While the ring is empty kInFlightHigh slots may be under way, as soon as one waits in it kInFlightMid, and while
// the task warps wait for activations too, kInFlightLow.
//
// sm_90 and later: one bulk copy a slot, completing on the slot's mbarrier.  Before: 16-byte cp.async by all lanes of the loader
// warp, whose completion arrives on the same mbarrier.
//
// AMK_CHECKED is for race detectors, which know neither the order that phases of an mbarrier give nor words that only steer: a slot
// holds the address of its weights, and the task warps read them where they lie, in global memory; that address and the steering
// words are read and written atomically.
#pragma once
#include <stdint.h>

#include "common.cuh"
#include "device.h"
#include "protocol.h"

namespace amk {

#ifndef AMK_QUANT  // some weights are quantised
#define AMK_QUANT 0
#endif
#ifndef AMK_PAIRS  // quantised weights are multiplied two row groups at a time, which a slot holds side by side: see kernels/quant_pairs.cuh
#define AMK_PAIRS 0
#endif
constexpr int kSlots = AMK_SLOTS, kSlotUnits = AMK_SLOT_UNITS, kUnitBytes = 512;
#if AMK_QUANT
constexpr int kSlotBytes = AMK_SLOT_BYTES;
#else
constexpr int kSlotBytes = kSlotUnits * kUnitBytes;
#endif
constexpr int kPieceUnits = 64;  // a longer row group is cut into pieces of so many units, and two row groups take turns
constexpr int kInFlightHigh = AMK_FLIGHT_HIGH, kInFlightMid = AMK_FLIGHT_MID, kInFlightLow = AMK_FLIGHT_LOW;
static_assert(kInFlightHigh <= kSlots && kInFlightMid <= kSlots && kInFlightLow <= kSlots, "a copy that laps one not seen to land makes its parity ambiguous");

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

#ifndef AMK_CHECKED
#define AMK_CHECKED 0
#endif

// Words that are written and read without any order: they steer, and nothing depends on when they are seen.
__device__ __forceinline__ uint32_t peek(volatile uint32_t& word) {
#if AMK_CHECKED
  return atomicAdd(const_cast<uint32_t*>(&word), 0u);
#else
  return word;
#endif
}
__device__ __forceinline__ void poke(volatile uint32_t& word, uint32_t value) {
#if AMK_CHECKED
  atomicExch(const_cast<uint32_t*>(&word), value);
#else
  word = value;
#endif
}

enum Broken : uint32_t { kWhole = 0, kWeightsLate = 1, kPollOver = 2 };  // kPollOver: see tagged.cuh

struct Ring {
  uint64_t bound_ns;           // longest wait
  uint64_t full[kSlots], empty[kSlots];
  volatile uint32_t eaten;     // slots that warp 0 has released
  volatile uint32_t polling;   // the first task warp waits for activations
  volatile uint32_t leave;     // set when the task warps stop: drain and exit
  volatile uint32_t broken;    // a bounded wait on an mbarrier ran out: the launch is aborted at the next task boundary
#if AMK_CHECKED
  unsigned long long lies_at[kSlots];  // the address of a slot's weights
#endif
};
__shared__ Ring ring;
__device__ __forceinline__ uint8_t* ring_data() { return dynamic_shared + kWorkBytes; }  // kSlots * kSlotBytes

__device__ __forceinline__ void barrier_init(uint64_t* b, uint32_t count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(shared_address(b)) : "memory");
}
// `b`: an address of shared memory.
__device__ __forceinline__ bool barrier_test_at(uint32_t b, uint32_t parity) {
  uint32_t ok;
  asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(b), "r"(parity) : "memory");
  return ok != 0;
}
// One attempt; from sm_90 on the hardware may suspend the thread for a while.
__device__ __forceinline__ bool barrier_try_at(uint32_t b, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
  uint32_t ok;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(ok) : "r"(b), "r"(parity) : "memory");
  return ok != 0;
#else
  return barrier_test_at(b, parity);
#endif
}
__device__ __forceinline__ bool barrier_test(uint64_t* b, uint32_t parity) { return barrier_test_at(shared_address(b), parity); }
__device__ __forceinline__ bool barrier_try(uint64_t* b, uint32_t parity) { return barrier_try_at(shared_address(b), parity); }

// The patient half of a bounded wait.  False when the bound ran out: the caller goes on with whatever is there, and the launch,
// marked broken, ends at the next task boundary.
__device__ __noinline__ bool barrier_wait_long(uint64_t* b, uint32_t parity) {
  uint64_t start = 0;
  for (uint32_t turn = 1;; ++turn) {
    if (barrier_try(b, parity)) return true;
    if (turn % 1024 == 0) {
      if (peek(ring.broken)) return false;
      const uint64_t now = now_ns();
      if (start == 0) start = now;
      if (now - start > ring.bound_ns) {
        poke(ring.broken, kWeightsLate);
        return false;
      }
    }
  }
}
__device__ __forceinline__ bool barrier_wait(uint64_t* b, uint32_t parity) {
#pragma unroll 1
  for (int i = 0; i < 64; ++i)
    if (barrier_try(b, parity)) return true;
  return barrier_wait_long(b, parity);
}

__device__ __forceinline__ void ring_init(uint64_t bound_ns) {
  ring.bound_ns = bound_ns, ring.eaten = 0, ring.polling = 0, ring.leave = 0, ring.broken = 0;
  for (int s = 0; s < kSlots; ++s) {
#if __CUDA_ARCH__ >= 900 && !AMK_CHECKED
    barrier_init(&ring.full[s], 1);
#else
    barrier_init(&ring.full[s], 32);
#endif
    barrier_init(&ring.empty[s], AMK_WARPS);
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // the initial state is visible to the copy engine
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Starts the copy of one slot.  The slot is free and its `full` barrier is in the phase that this copy completes.
__device__ __forceinline__ void copy_slot(int slot, const uint8_t* from, uint32_t bytes, int lane) {
#if AMK_CHECKED
  if (lane == 0) atomicExch(&ring.lies_at[slot], reinterpret_cast<unsigned long long>(from));
  barrier_arrive(&ring.full[slot]);
#elif __CUDA_ARCH__ >= 900
  uint8_t* to = ring_data() + slot * kSlotBytes;
  if (lane == 0) {
    const uint32_t b = shared_address(&ring.full[slot]);
    constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;  // the weights of a step do not fit L2: do not displace activations
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
    asm volatile(  // bulk copy global -> shared, completing on the barrier
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(b), "l"(kEvictFirst)
        : "memory");
  }
#else
  uint8_t* to = ring_data() + slot * kSlotBytes;
  for (uint32_t i = lane * 16; i < bytes; i += 512)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)), "l"(from + i) : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&ring.full[slot])) : "memory");
#endif
}

// The units of one tile: bytes of one, and how many a slot and a piece hold.  Of quantised weights a unit is a record of
// kernels/weights.cuh; its shape stands above the 48 bits of the tile's offset.
#if AMK_QUANT
constexpr int kQuantPiece = 32;  // of 512 bytes of codes; a longer row group is cut into such pieces
static_assert(!AMK_PAIRS || kSlotUnits == 2 * kQuantPiece, "a slot holds a piece of each row group of a pair");
constexpr int kTurnPairs = 2;  // pairs of row groups longer than a slot that take turns
struct TileUnits {
  uint32_t bytes, slot, piece;
  bool pairs;
  __device__ __forceinline__ explicit TileUnits(uint64_t offset) : bytes(uint32_t(offset >> 48) % 256 * 16) {
    const uint32_t loads = uint32_t(offset >> 56);  // of 512 bytes of codes; 0: not quantised
    slot = loads == 2 ? kSlotUnits / 2 : kSlotUnits;
    piece = loads == 0 ? kPieceUnits : (loads == 2 ? kQuantPiece / 2 : kQuantPiece);
    pairs = AMK_PAIRS && loads > 0;
  }
  static __device__ __forceinline__ uint64_t offset(uint64_t offset) { return offset & 0xffffffffffffull; }
};
#else
struct TileUnits {
  static constexpr uint32_t bytes = kUnitBytes, slot = kSlotUnits, piece = kPieceUnits;
  __device__ __forceinline__ explicit TileUnits(uint64_t) {}
  static __device__ __forceinline__ uint64_t offset(uint64_t offset) { return offset; }
};
#endif

// The units of a tile in the order of the tape, as runs that no slot reaches over: blocks one by one; blocks longer than a piece
// piece by piece, two in turns.
struct TileRuns {
  TileUnits unit;
  uint32_t left, block, done, size, run;  // units left of the tile, of a block, of it behind the run; of the piece, left of the run
  bool paired, again;                     // two blocks take turns; the second one's run of this piece is still to come
#if AMK_PAIRS
  bool pairs;                // blocks are pairs of row groups longer than a slot: kTurnPairs of them in turns, a piece of a pair a run
  uint32_t at, first, pair;  // units from the tile's start to the run, to the first pair of this turn, to the pair of the run
  uint32_t units;            // of the tile
#endif

  __device__ __forceinline__ TileRuns(const TileRef& tile) : unit(tile.offset), left(tile.units), block(tile.block), done(0) {
#if AMK_PAIRS
    pairs = unit.pairs && block > unit.slot;
    at = first = pair = 0, units = tile.units;
    if (unit.pairs && !pairs) unit.piece = unit.slot;
#endif
    piece();
  }
  __device__ __forceinline__ void piece() {
#if AMK_PAIRS
    if (pairs) {
      const uint32_t groups = pair + block <= units ? 2 : 1, row = block / 2;  // of the pair; of each of them `done` units came before
      size = row - done < unit.piece ? row - done : unit.piece;
      at = pair + done * groups, run = size * groups;
      return;
    }
#endif
    if (done == 0) paired = block > unit.piece && left > block;
    size = block - done < unit.piece ? block - done : unit.piece;
    size = size < left ? size : left;
    run = size, again = paired;
  }
  __device__ __forceinline__ void take(uint32_t units) {
    left -= units, run -= units;
#if AMK_PAIRS
    at += units;
    if (pairs && run == 0) {
      pair += block;
      if (pair >= this->units || pair >= first + kTurnPairs * block) {  // the turn is over: the next piece, or the next turn
        done += size;
        if (done >= block / 2) done = 0, first += kTurnPairs * block;
        pair = first;
      }
      piece();
    }
    if (pairs) return;
#endif
    if (run > 0) return;
    if (again) {
      run = size, again = false;
      return;
    }
    done += size;
    if (done >= block) done = 0;
    piece();
  }
};

// The loader warp's whole life: all lanes take the same way, lane 0 decides.
__device__ __forceinline__ void run_loader(const Launch& launch, int lane) {
  const TileRef* first = launch.tiles + launch.tile_off[blockIdx.x];
  const int n = launch.tile_off[blockIdx.x + 1] - launch.tile_off[blockIdx.x];
  int slot = 0, landing = 0;
  uint32_t free_parity = 1, landing_parity = 0, issued = 0, landed = 0;
  bool leave = false;
  for (int step = 0; step < launch.steps && !leave && n > 0; ++step) {
    for (int i = 0; i < n && !leave; ++i) {
      const uint8_t* from = launch.tape + TileUnits::offset(first[i].offset);
      for (TileRuns runs(first[i]); runs.left > 0 && !leave;) {
        const uint32_t units = runs.run < runs.unit.slot ? runs.run : runs.unit.slot;
        for (;;) {
          while (landed != issued && barrier_test(&ring.full[landing], landing_parity)) {
            ++landed;
            if (++landing == kSlots) landing = 0, landing_parity ^= 1;
          }
          if (peek(ring.leave) || peek(ring.broken)) {
            leave = true;
            break;
          }
          const uint32_t flight = issued - landed, waiting = landed - peek(ring.eaten);
          // `eaten` may be read after a slot was released that had not been counted as landed: treat that as an empty ring
          const uint32_t cap = int32_t(waiting) <= 0 ? kInFlightHigh : (peek(ring.polling) ? kInFlightLow : kInFlightMid);
          if (flight < cap && barrier_test(&ring.empty[slot], free_parity)) break;
          __nanosleep(32);  // leave the issue slots to the task warps
        }
        leave = __any_sync(~0u, leave);
        if (leave) break;
#if AMK_PAIRS
        copy_slot(slot, from + runs.at * runs.unit.bytes, units * runs.unit.bytes, lane);
#else
        copy_slot(slot, from, units * runs.unit.bytes, lane);
#endif
        ++issued;
        if (++slot == kSlots) slot = 0, free_parity ^= 1;
#if !AMK_PAIRS
        from += units * runs.unit.bytes;
#endif
        runs.take(units);
      }
    }
  }
  // No copy may be under way when the CTA's shared memory goes back; not in a broken launch either, where nobody else is patient.
  for (const uint64_t start = now_ns(); landed != issued && now_ns() - start <= ring.bound_ns;) {
    if (!barrier_try(&ring.full[landing], landing_parity)) continue;
    ++landed;
    if (++landing == kSlots) landing = 0, landing_parity ^= 1;
  }
}

// A task warp's place in the ring.  Every task warp passes every slot once, in order; between tasks the place stands in shared
// memory, the same for all warps.
struct RingCursor {
  int slot;
  uint32_t parity;

  __device__ __forceinline__ RingCursor() : slot(shared.cursor.x), parity(uint32_t(shared.cursor.y)) {}
  __device__ __forceinline__ const uint8_t* wait() const {
    barrier_wait(&ring.full[slot], parity);
    return data();
  }
  __device__ __forceinline__ const uint8_t* data() const {
#if AMK_CHECKED
    return reinterpret_cast<const uint8_t*>(atomicAdd(&ring.lies_at[slot], 0ull));
#else
    return ring_data() + slot * kSlotBytes;
#endif
  }
  __device__ __forceinline__ void release(int warp, int lane) {
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(&ring.empty[slot]);
      if (warp == 0) poke(ring.eaten, ring.eaten + 1);
    }
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
  // Behind the last barrier inside the task, when every warp has read the old place.
  __device__ __forceinline__ void keep(int thread) const {
    if (thread == 0) shared.cursor = make_int2(slot, int(parity));
  }
};

}  // namespace amk
