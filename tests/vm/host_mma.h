// The tensor cores' products on the host, between the fibers of a warp.
#pragma once
#include "host_fibers.h"

namespace amk {

// mma.m16n8k16: lane (g, t) has rows g and g + 8 of the first operand, column g of the second, columns 2t and 2t + 1 of the sum.
inline void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const Shown shown({a0, a1, a2, a3, b0, b1});
  auto half = [](uint32_t word, int k) { return f32_of_bf16(uint16_t(k & 1 ? word >> 16 : word)); };
  for (int i = 0; i < 4; ++i) {
    const int row = current % 32 / 4, high = i / 2, column = current % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k)
      c[i] += half(shown.of[row * 4 + k % 8 / 2][high + (k >= 8 ? 2 : 0)], k) * half(shown.of[column * 4 + k % 8 / 2][4 + (k >= 8)], k);
  }
}

// PTX ISA, m16n8k32 of signed bytes: a lane (g, t) has bytes 4t .. 4t + 3 and 16 more of rows g (words 0, 2) and g + 8 (words 1, 3) of A and
// of column g of B, and columns 2t and 2t + 1 of rows g and g + 8 of C.
inline void mma_s8(int32_t (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  const Shown shown({a.x, a.y, a.z, a.w, b0, b1});
  const int g = current % 32 / 4, t = current % 4;
  for (int i = 0; i < 4; ++i)
    for (int from = 0; from < 4; ++from)
      for (int half = 0; half < 2; ++half) {
        const uint32_t left = shown.of[4 * g + from][2 * half + i / 2], right = shown.of[4 * (2 * t + i % 2) + from][4 + half];
        for (int k = 0; k < 4; ++k) c[i] += int32_t(int8_t(left >> 8 * k)) * int8_t(right >> 8 * k);
      }
}
inline void mma_s8_from(int32_t bias, int32_t (&c)[4], uint4 a, uint32_t b0, uint32_t b1) {
  for (int i = 0; i < 4; ++i) c[i] = bias;
  mma_s8(c, a, b0, b1);
}

}  // namespace amk
