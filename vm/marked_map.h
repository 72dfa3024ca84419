// Where marked values stand (kernels/marked.cuh): in halves of words of 32 bits by the parity of the step, inside a half in the order
// in which lanes multiply them.  For host and device, so that a test goes through them without a card.
//
// A buffer of rows * k elements of 8 bytes in the tables is two halves of as many floats; one of rows * k / 2 elements, pairs of bf16,
// is two halves of as many pairs.  K is a multiple of 32: units of 32 values, of which lane (g, t) takes values 8t .. 8t + 8 of row g.
#pragma once
#include "numerics.h"

namespace amk {

constexpr uint32_t kUnwritten = 0xffffffffu;  // a NaN that no instruction gives: they give 0x7fffffff, as bf16 0x7fff

AMK_HD int marked_half(int step, int rows, int words_a_row) { return (step & 1) * rows * words_a_row; }
// Word of value k of a row of floats: a lane's eight values are two accesses of 16 bytes, each access of a warp is contiguous.
AMK_HD int marked_float(int row, int k, int rows) { return (k / 32 * 2 + k % 8 / 4) * rows * 16 + row * 16 + k % 32 / 8 * 4 + k % 4; }
// Word of values k and k + 1 (k even) of a row of pairs: a lane's eight values are one access.
AMK_HD int marked_pair(int row, int k, int rows) { return k / 32 * rows * 16 + row * 16 + k % 32 / 2; }

}  // namespace amk
