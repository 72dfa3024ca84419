// kernels/weights.cuh and vm/quant.h on the host: what every lane takes of a tile of records, and the values of a packed tile.
// Arguments: number of a format, K, rows, file.  Mode `fast` prints float32 [row group][record][lane]{32 values, scales of rows 2t and
// 2t + 1 by group, minima likewise}, mode `exact` the values [rows][K].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
constexpr int kSlotUnits = 32, kPieceUnits = 64, kQuantPiece = 32, kUnitBytes = 512;
#define AMK_QUANT 1
#define AMK_LAYER_FORMAT 0
#define AMK_HEAD_FORMAT 0
#include "quant.h"
#include WEIGHTS_TEXT  // without its includes

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

template <int kCode>
static void fast(const std::vector<uint8_t>& tape) {
  using W = QuantWeights<kCode>;
  for (size_t at = 0; at < tape.size(); at += W::kBytes)
    for (int lane = 0; lane < 32; ++lane) {
      typename W::Record r;
      W::clear(r);
      W::load(r, tape.data() + at + lane * 16, lane);
      for (int s = 0; s < 4; ++s) {
        uint32_t pairs[4];
        W::decode(r, s, pairs);
        for (uint32_t p : pairs) put(f32_of_bf16(uint16_t(p))), put(f32_of_bf16(uint16_t(p >> 16)));
      }
      for (int g = 0; g < W::kGroups; ++g) {
        const float2 scale = W::both(r.scale[g]);
        put(scale.x), put(scale.y);
      }
      for (int g = 0; g < W::kGroups; ++g) {
        const float2 minimum = W::F::kKind == W::F::kMin ? W::both(r.offset[g]) : make_float2(0.0f, 0.0f);
        put(minimum.x), put(minimum.y);
      }
    }
}

template <int kCode, int K>
static void exact(const std::vector<uint8_t>& tape, int rows) {
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < K; ++k) put(quant_value<QuantFormat<kCode>, K>(tape.data(), r, k));
}

int main(int n, char** args) {
  if (n != 6) return 2;
  const bool in_records = std::strcmp(args[1], "fast") == 0;
  const int code = std::atoi(args[2]), k = std::atoi(args[3]), rows = std::atoi(args[4]);
  const auto tape = contents(args[5]);
#define CASE(number)                                                     \
  case number:                                                           \
    if (in_records) fast<number>(tape);                                  \
    else if (k == 576) exact<number, 576>(tape, rows);                   \
    else if (k == 200) exact<number, 200>(tape, rows);                   \
    else return 3;                                                       \
    return 0;
  switch (code) {
    FORMATS
  }
  return 4;
}
