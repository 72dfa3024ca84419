// The tensor cores' product of bf16 on the host, between the fibers of a warp.
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

}  // namespace amk
