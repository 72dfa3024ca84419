// Activations of the fast matrix product: where a warp's share of K lies, what is fetched before the waits, and the sources that
// values come from: plain or tagged rows, with or without RMS normalisation.
#pragma once
#include "common.cuh"
#include "finish.cuh"
#include "marked.cuh"
#include "ring.cuh"
#include "tagged.cuh"
#include "weights.cuh"

namespace amk {

constexpr int kRowTiles = (kRows + 15) / 16;  // row tiles of the activations
constexpr int kRowPairs = (kRows + 1) / 2;     // of activations, for products of integers
constexpr int kTileRows = kRows > 8 ? 16 : (kRows > 4 ? 8 : (kRows > 2 ? 4 : kRows));     // rows kept of a tile
constexpr int kFlushGroups = kTileRows >= 16 ? 2 : 16 / kTileRows;  // row groups between two reductions
// Floats of a warp's sums; several rows: a plane a warp, four warps apart are half the banks apart.
constexpr int kRedPlane = kFlushGroups * kTileRows * 8 + (kRows > 1 ? 4 : 0);
constexpr int kRedFloats = kRedPlane * kWarps;               // one of the two reduction buffers
constexpr int kParts = kWarps / 4;  // lanes that add up one output, four warps' sums each
// What rows of bytes need besides, where a format asks for them: maxima [kRows][kWarps], scales of the rows, and of two times 128 outputs.
constexpr int kByteRows = LayerWeights::kInteger || HeadWeights::kInteger ? up(kRows, 4) : 0, kByteFloats = kByteRows ? kRows * kWarps + kByteRows + 256 : 0;
static_assert(kWarps == 4 || kWarps == 8 || kWarps == 16, "the reduction adds groups of four warps");
constexpr int kItems = kThreads / kParts;  // outputs that are finished at a time
constexpr int kMaxRows = 64;
// Of long marked rows, two pieces: fragments of 16 bytes that a lane has in registers, and accesses of a normalised row it has under way.
constexpr int kLongHeld = kRows > 8 ? 9 : 8, kLongWindow = 8;
static_assert(kExact || kRows <= kMaxRows, "fast mode takes at most 64 rows a step");

// K in units of 32 values, and in records of W::kUnits units, which warps take in turns.
template <int K, class W = LayerWeights>
struct Slices {
  static constexpr int kUnits = up((K + 31) / 32, W::kUnits), kRecords = kUnits / W::kUnits;
  static constexpr int kPerWarp = (kRecords + kWarps - 1) / kWarps, kWarpUnits = kPerWarp * W::kUnits;
  static constexpr int kLoads = (kWarpUnits + 3) / 4;  // one 4-float load a lane covers four units
  static constexpr int kSlotGroups = kRecords <= W::kSlot ? W::kSlot / kRecords : 1;  // whole row groups of a slot
  static constexpr int kPieces = (kRecords + W::kSlot - 1) / W::kSlot;                // slots of a row group
  static constexpr int kPieceLoads = kPieces == 1 ? kPerWarp : W::kSlot / kWarps;     // records of a warp in a piece
  // Long row groups take turns, see ring.cuh: a piece of the activations serves two of them.
  static constexpr bool kTurns = kRecords > W::kPiece;
  static constexpr int kTapePieces = (kRecords + W::kPiece - 1) / W::kPiece, kPieceSlots = W::kPiece / W::kSlot;
  static constexpr bool kLong = kTapePieces == 2 && kHidden > amk::kPieceUnits * 32;  // marked: both pieces at once, like a normalised row
  static constexpr int kDirectMost = kLong ? kLongHeld : 64;                     // fragments of marked values in registers
  // Activations in shared memory, each warp its own: all of them, or one piece at a time.
  static constexpr int kStagedBytes = kRows * kWarps * kPerWarp * W::kStageBytes, kPieceUnits = W::kPiece * W::kUnits, kPieceBytes = kRows * W::kPiece * W::kStageBytes;
  static constexpr bool kStaged = kStagedBytes <= AMK_STAGE_BYTES;
  static constexpr bool kByPiece = !kStaged && kTurns && kRowTiles <= 2 && kPieceBytes <= AMK_STAGE_BYTES;
  // Where a lane's activations fit its registers beside the weights, they stay there.
  static constexpr int kFragmentWords = W::kInteger ? (kRows > 8 ? 16 : 8) : 9;  // of a quantised record's activations
  static constexpr bool kHeld = kPieces == 1 && kRowTiles == 1 && kStaged && (!W::kQuantised || (W::kInteger ? kPerWarp * kFragmentWords <= 32 : kRowPairs == 1 && kPerWarp <= 4));
  static constexpr int kHeldWords = kHeld ? kPerWarp * kFragmentWords : 0;
  // Row groups whose weights are in registers at once: short rows leave room for several, a power of two.
  static constexpr int kRoom = kPieces > 1 || kRowTiles > 1 ? 1 : (W::kQuantised ? (64 - kHeldWords) / (W::kInteger ? kPerWarp * W::kWords + 4 : kPerWarp * W::kWords * kRowPairs) : 12 / kPerWarp);
  static constexpr int kAhead = kRoom >= 4 && kFlushGroups >= 4 ? 4 : (kRoom >= 2 && kFlushGroups >= 2 ? 2 : 1);
  static constexpr int kTogether = kTurns ? 2 : kAhead;                         // row groups whose sums are in registers
  static constexpr int kFlush = kRowTiles > 1 ? kTogether : kFlushGroups;       // row groups between two reductions
  static_assert(kFlush % kTogether == 0, "row groups that take turns are reduced together");
  static_assert(kExact || (W::kSlot % kWarps == 0 && (W::kPiece % W::kSlot == 0 || (AMK_PAIRS && W::kQuantised)) && kPieceUnits % (4 * kWarps) == 0), "a slot gives every warp equally many records");
};

// Four values of a row, zeros beyond K.
template <int K>
__device__ __forceinline__ float4 load_row4(const float* row, int k) {
  if constexpr (K % 4 == 0) {
    return k < K ? load_shared_f32x4(row + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  } else {
    return make_float4(k < K ? load_shared_f32(row + k) : 0.0f, k + 1 < K ? load_shared_f32(row + k + 1) : 0.0f,
                       k + 2 < K ? load_shared_f32(row + k + 2) : 0.0f, k + 3 < K ? load_shared_f32(row + k + 3) : 0.0f);
  }
}
template <int K>
__device__ __forceinline__ float4 load_table4(const float* row, int k) {  // read-only
  if constexpr (K % 4 == 0) {
    return k < K ? load_table_x4(row + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  } else {
    return make_float4(k < K ? load_table(row + k) : 0.0f, k + 1 < K ? load_table(row + k + 1) : 0.0f, k + 2 < K ? load_table(row + k + 2) : 0.0f,
                       k + 3 < K ? load_table(row + k + 3) : 0.0f);
  }
}
__device__ __forceinline__ float4 times(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }

// Pairs of quantised row groups have the norm weights in registers: shared memory is the ring's.
enum : bool { kNormShared = !AMK_PAIRS || !LayerWeights::kQuantised || !HeadWeights::kQuantised };
// What a task of the Hidden matrices reads from tables goes to shared memory before its waits, since tables never change: the
// norm weights, each warp its own units, and the angles of the first pairs that a thread will finish.
struct Prologue {
  using Head = Slices<kHidden, HeadWeights>;
  static constexpr int kLoads = Slices<kHidden>::kLoads > Head::kLoads ? Slices<kHidden>::kLoads : Head::kLoads, kAngles = 64;
  static_assert(kExact || kItems == 2 * kAngles, "one pair of angles for every pair of outputs of the first round");
  static constexpr int kNormBytes = kNormShared ? kLoads * kThreads * 16 : 0, kBytes = kNormBytes + kAngles * 8;
  static __device__ __forceinline__ float4* norm(const Context c, int i);  // of this lane, for its i-th load
  static __device__ __forceinline__ float2* angle(int item);

  static __device__ __forceinline__ void fetch(const Context c) {
    const int op = c.op();
    if (op != kQkv && op != kGateUp && op != kLmHead) return;
    static_assert(int(qkv::norm_w) == int(gate_up::norm_w) && int(qkv::norm_w) == int(lm_head::norm_w), "one place for all");
    if constexpr (kNormShared && kHidden % 4 == 0) {
      const float* weight = c.at<const float>(qkv::norm_w);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        int k = (c.warp + kWarps * (4 * i + c.lane / 8)) * 32 + c.lane % 8 * 4;
#if AMK_QUANT
        if ((op == kLmHead ? HeadWeights::kUnits : LayerWeights::kUnits) == 4) k = (c.warp + kWarps * i) * 128 + c.lane * 4;
#endif
        if (k < kHidden) copy_16(norm(c, i), weight + k);  // never one address by many lanes: L2 serves them one by one
      }
    }
    if (op == kQkv && c.thread % (2 * kParts) == 0) {
      const int item = c.thread / kParts, local = item / (kTileRows * 8) * 8 + (item & 7), r = item / 8 % kTileRows;
      const int row = c.p(qkv::row0) + local, pos = c.p(qkv::pos_var);
      if (row < c.p(qkv::row1) && row < kQSize + kKvSize && r < kRows && c.active(pos, r)) {
        const int64_t at = int64_t(c.position(pos, r)) * (kHeadDim / 2) + row % kHeadDim / 2;
        copy_4(&angle(item)->x, c.at<const float>(qkv::cos) + at);
        copy_4(&angle(item)->y, c.at<const float>(qkv::sin) + at);
      }
    }
  }
  static __device__ __forceinline__ void wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

 private:
  static __device__ __forceinline__ void copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
  static __device__ __forceinline__ void copy_4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
  }
};

// Shared memory of one product: two reduction buffers, sums of squares, the prologue's tables or staged activations.
struct FastWork {
  static __device__ __forceinline__ float* red(int parity) { return reinterpret_cast<float*>(dynamic_shared) + parity * kRedFloats; }
  static __device__ __forceinline__ float* squares() { return red(2); }  // [kRows][kWarps]
  static __device__ __forceinline__ uint32_t* maxima(int r) { return reinterpret_cast<uint32_t*>(squares() + kRows * kWarps) + r * kWarps; }
  static __device__ __forceinline__ float* row_scales() { return squares() + 2 * kRows * kWarps; }
  static __device__ __forceinline__ float* weight_scales(int parity) { return row_scales() + kByteRows + parity * 128; }
  static __device__ __forceinline__ uint8_t* staged() { return reinterpret_cast<uint8_t*>(squares() + kRows * kWarps + kByteFloats); }
  // Behind the staged activations of the Hidden matrices.
  static __device__ __forceinline__ uint8_t* tables() { return dynamic_shared + kWorkBytes - Prologue::kBytes; }
  __host__ __device__ static constexpr int bytes(int staged) { return (2 * kRedFloats + kRows * kWarps + kByteFloats) * 4 + staged; }
};
static_assert(kExact || FastWork::bytes(AMK_STAGE_BYTES) <= kWorkBytes, "the work area is too small for the staged activations");
template <class S>
__host__ __device__ constexpr int staged_bytes() { return S::kStaged ? S::kStagedBytes : 0; }
static_assert(kExact || (FastWork::bytes(staged_bytes<Slices<kHidden>>()) + Prologue::kBytes <= kWorkBytes && FastWork::bytes(staged_bytes<Prologue::Head>()) + Prologue::kBytes <= kWorkBytes),
              "the work area is too small for the tables of the Hidden matrices");
__device__ __forceinline__ float4* Prologue::norm(const Context c, int i) {
  return reinterpret_cast<float4*>(FastWork::tables()) + i * kThreads + c.thread;
}
__device__ __forceinline__ float2* Prologue::angle(int item) {
  return reinterpret_cast<float2*>(FastWork::tables() + kNormBytes) + item / 2;
}

// Where activations come from: rows of a buffer, rows to be normalised, or attention partials (combine.cuh).
template <int K>
struct PlainSource {
  static constexpr bool kNormed = false, kHalves = false, kPolled = false;  // kHalves: a lane's four values are 0, 1, 16, 17 from k on
  const float* x;
  static constexpr float eps = 0.0f;
  __device__ __forceinline__ float4 load(const Context, int r, int k) const { return load_row4<K>(x + int64_t(r) * K, k); }
  __device__ __forceinline__ float4 weight(const Context, int, int) const { return make_float4(1.0f, 1.0f, 1.0f, 1.0f); }
};

// RMS normalisation: the weight is applied to the activations, the factor 1 / rms at the end, so nothing waits for the sum of
// squares.
struct NormSource {
  static constexpr bool kNormed = true, kHalves = false, kPolled = false;
  const float *h, *table;
  float eps;
  __device__ __forceinline__ float4 load(const Context, int r, int k) const { return load_row4<kHidden>(h + int64_t(r) * kHidden, k); }
  __device__ __forceinline__ float4 weight(const Context c, int i, int k) const {
    if (kNormShared && kHidden % 4 == 0 && i >= 0)  // what lies beyond K was not fetched: 0 * garbage may be NaN
      return kHidden % (AMK_QUANT ? 128 : 32) == 0 || k < kHidden ? *Prologue::norm(c, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return load_table4<kHidden>(table, k);
  }
};

// The same activations as tagged values.  A lane's four values: two accesses of floats, or one of bf16 pairs.
struct TaggedNormSource {
  static constexpr bool kNormed = true, kHalves = false, kPolled = true;
  static constexpr int kAccesses = 2;
  const uint2* h;
  const float* table;
  float eps;
  __device__ __forceinline__ const uint2* address(int r, int k, int part) const { return h + r * kHidden + k + 2 * part; }
  __device__ __forceinline__ float4 weight(const Context c, int i, int k) const {
    if (i < 0) return load_table4<kHidden>(table, k);
    return *Prologue::norm(c, i);
  }
};
template <int K>
struct TaggedPairSource {
  static constexpr bool kNormed = false, kHalves = false, kPolled = true;
  static constexpr int kAccesses = 1;
  const uint2* x;
  static constexpr float eps = 0.0f;
  __device__ __forceinline__ const uint2* address(int r, int k, int) const { return x + r * (K / 2) + k / 2; }
};

#if AMK_MARKED
// Marked values, which go straight to the lanes that multiply them: eight values of a row are two accesses of floats, or one of pairs.
// `kUnitWords`, `kPartWords`: words from one unit of K to the next, and from one access of a unit to the next.
struct MarkedNormSource {
  static constexpr bool kNormed = true, kHalves = false, kPolled = false;
  static constexpr int kAccesses = 2, kUnitWords = 32 * kRows, kPartWords = 16 * kRows;
  const uint32_t* h;  // this step's half
  float eps;
  __device__ __forceinline__ const uint32_t* address(int r, int k) const { return h + marked_float(r, k, kRows); }
  // Norm weights of values 4 part .. + 4 of the lane's eight at the warp's j-th unit; another lane fetched them.
  __device__ __forceinline__ float4 weight(const Context c, int j, int part) const {
    return *Prologue::norm({c.turn, c.warp, c.lane, c.thread - c.lane + j % 4 * 8 + c.lane % 4 * 2 + part}, j / 4);
  }
};
template <int K>
struct MarkedPairSource {
  static constexpr bool kNormed = false, kHalves = false, kPolled = false;
  static constexpr int kAccesses = 1, kUnitWords = 16 * kRows, kPartWords = 0;
  const uint32_t* x;
  static constexpr float eps = 0.0f;
  __device__ __forceinline__ const uint32_t* address(int r, int k) const { return x + marked_pair(r, k, kRows); }
};
#endif
static_assert(!kTagged || (kHidden % 4 == 0 && kQSize % 4 == 0 && kInter % 4 == 0), "tagged rows are read four values at a time");

}  // namespace amk
