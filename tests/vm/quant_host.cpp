// kernels/weights.cuh and vm/quant.h on the host: a warp of 32 threads that meet where the hardware's instructions do, and the values
// of a packed tile.  Arguments: what, number of a format, K, rows, file of the tape, file of activations.
// `fast`, `pairs` and `floats` print float32 [row group][8 rows]: the sums of one warp that takes all records, of activations as they are,
// handed on as pairs of bf16, or as floats; `exact` prints the values [rows][K].
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline
struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr int kSlotUnits = 32, kPieceUnits = 64, kQuantPiece = 32, kUnitBytes = 512;
#define AMK_QUANT 1
#define AMK_PAIRS 0
#define AMK_LAYER_FORMAT 0
#define AMK_HEAD_FORMAT 0
#include "quant.h"

// ---- a warp: every exchange is a meeting of all lanes before and behind it
static std::barrier<> g_meeting(32);
static thread_local int t_lane;
template <class T>
static std::vector<T> exchange(T mine) {
  static T all[32];
  all[t_lane] = mine;
  g_meeting.arrive_and_wait();
  const std::vector<T> out(all, all + 32);
  g_meeting.arrive_and_wait();
  return out;
}
static uint32_t __reduce_max_sync(uint32_t, uint32_t x) {
  uint32_t most = 0;
  for (uint32_t other : exchange(x)) most = other > most ? other : most;
  return most;
}
namespace amk {
// PTX ISA, m16n8k32 of signed bytes: a lane (g, t) has bytes 4t .. 4t + 3 and 16 more of rows g (words 0, 2) and g + 8 (words 1, 3) of A and
// of column g of B, and columns 2t and 2t + 1 of rows g and g + 8 of C.
static void mma_s8(int32_t (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  const auto all = exchange(Operands{{a.x, a.y, a.z, a.w}, {b0, b1}});
  const int g = t_lane / 4, t = t_lane % 4;
  auto byte = [](uint32_t word, int i) { return int32_t(int8_t(word >> 8 * i)); };
  for (int i = 0; i < 4; ++i)
    for (int from = 0; from < 4; ++from)
      for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 4; ++k)
          c[i] += byte(all[4 * g + from].a[2 * half + i / 2], k) * byte(all[4 * (2 * t + i % 2) + from].b[half], k);
}
static void mma_s8_from(int32_t, int32_t (&)[4], uint4, uint32_t, uint32_t) { std::abort(); }  // of pairs: test_quant_product.py
static uint32_t pack_bf16(float low, float high) { return bf16_of(low) | uint32_t(bf16_of(high)) << 16; }
}  // namespace amk
#include WEIGHTS_TEXT  // without its includes and its instruction

using namespace amk;

static std::vector<uint8_t> contents(const char* path) {
  FILE* f = std::fopen(path, "rb");
  std::vector<uint8_t> out;
  uint8_t block[4096];
  for (size_t n; (n = std::fread(block, 1, sizeof block, f)) > 0;) out.insert(out.end(), block, block + n);
  std::fclose(f);
  return out;
}
static void put(float x) { std::fwrite(&x, 4, 1, stdout); }

// What kernels/gemv_quant.cuh does with one row of activations, in one warp.
template <int kCode>
static void fast(const std::vector<uint8_t>& tape, const float* activations, int k, int rows, char what) {
  using W = QuantWeights<kCode>;
  const int records = (k + 127) / 128, groups = (rows + 7) / 8;
  std::vector<uint8_t> staged(size_t(records) * W::kStageBytes);
  std::vector<float> out(size_t(groups) * 8 * 4);  // [row][limb]
  auto lane_of = [&](int lane) {
    t_lane = lane;
    for (int r = 0; r < records; ++r) {
      auto x = [&](int i) { return r * 128 + i < k ? activations[r * 128 + i] : 0.0f; };
      const int first = HALVES ? lane / 8 * 32 + lane % 8 * 2 : 4 * lane, second = first + (HALVES ? 16 : 2);
      float4 v{x(first), x(first + 1), x(second), x(second + 1)};
      if (what == 'p') v = Limbs::of_pairs(pack_bf16(v.x, v.y), pack_bf16(v.z, v.w));
      if (what == 'f') v = Limbs::of_floats(v);
      Limbs::put<HALVES != 0>(staged.data() + r * W::kStageBytes, lane, v, Limbs::most(v));
    }
    g_meeting.arrive_and_wait();
    for (int group = 0; group < groups; ++group) {
      float total[2] = {0.0f, 0.0f};
      for (int r = 0; r < records; ++r) {
        const typename W::Record w = W::load(tape.data() + (size_t(group) * records + r) * W::kBytes + lane * 16, lane);
        uint32_t b[4][2];
        for (int s = 0; s < 4; ++s) W::decode(w, s, b[s][0], b[s][1]);
        const uint8_t* from = Limbs::of(staged.data() + r * W::kStageBytes, lane);
        uint4 act[2];
        std::memcpy(&act[0], from, 16), std::memcpy(&act[1], from + Limbs::kHalfBytes, 16);
        float scale;
        std::memcpy(&scale, staged.data() + r * W::kStageBytes + Limbs::kScaleAt, 4);
        W::add(total, w, b, act, scale * Limbs::weight(lane, W::kCodeScale));
      }
      const int g = lane / 4, t = lane % 4;
      if (g < 4)
        for (int i = 0; i < 2; ++i) out[(group * 8 + 2 * t + i) * 4 + g] = total[i];
    }
  };
  std::vector<std::thread> warp;
  for (int lane = 0; lane < 32; ++lane) warp.emplace_back(lane_of, lane);
  for (auto& lane : warp) lane.join();
  for (int r = 0; r < groups * 8; ++r) put((out[r * 4] + out[r * 4 + 1]) + (out[r * 4 + 2] + out[r * 4 + 3]));
}

template <int kCode, int K>
static void exact(const std::vector<uint8_t>& tape, int rows) {
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < K; ++k) put(quant_value<QuantFormat<kCode>, K>(tape.data(), r, k));
}

int main(int n, char** args) {
  if (n != 7) return 2;
  const bool in_records = std::strcmp(args[1], "exact") != 0;
  const char what = std::strcmp(args[1], "fast") == 0 ? 'a' : args[1][0];
  const int code = std::atoi(args[2]), k = std::atoi(args[3]), rows = std::atoi(args[4]);
  const auto tape = contents(args[5]), activations = contents(args[6]);
#define CASE(number)                                                                                             \
  case number:                                                                                                   \
    if (in_records) fast<number>(tape, reinterpret_cast<const float*>(activations.data()), k, rows, what);       \
    else if (k == 576) exact<number, 576>(tape, rows);                                                           \
    else if (k == 200) exact<number, 200>(tape, rows);                                                           \
    else return 3;                                                                                               \
    return 0;
  switch (code) {
    FORMATS
  }
  return 4;
}
