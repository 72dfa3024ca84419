// Where everything of a program for ranks lies: which value of a tile a lane multiplies, where a part of three sums stands among those
// of all ranks, which position of its piece a lane has.  For host and device, so that a test goes through them without a card.
#pragma once
#include "numerics.h"

namespace amk {

// Words of a task's parameters that no op of a rank program uses; amk_core/vm/rank_program.py fills them.
constexpr int kElementWord = 19;  // parts and their sums: first element of the tile, and the parts of an element above 24 bits
constexpr int kArriveWord = 20;   // barrier of the cluster that the task waits for, -1: none
constexpr int kBytesWord = 21;    // bytes that one phase of it expects from other CTAs
constexpr int kSendWord = 23;     // CTAs of the cluster that are sent the results, and their barrier above 16 bits

constexpr int kMoreWord = 19;      // rank_qkv: the rows of the queue's next task, which its record does too; 0: none
constexpr int kMoreWord2 = 22;     // the same of the task behind that

// Rows of a task that is done along: the first one, and how many above 16 bits.
AMK_HD int more_row(int word) { return word & 0xffff; }
AMK_HD int more_rows(int word) { return int(uint32_t(word) >> 16); }

constexpr int kRankWarps = 8;
constexpr int kPartFloats = 3;  // sums of an element; a tag is behind them

// Of a tile of `units` units of 32 values of K a row: where (row, k) lies, in bf16 from the tile's start (rows of at most 64 units).
AMK_HD int weight_at(int row, int k, int units) { return (((row / 8 * units + k / 32) * 32 + row % 8 * 4 + k % 32 / 8) * 8) + k % 8; }
// The first of the eight values of K that a lane multiplies in a unit.
AMK_HD int lane_k(int unit, int lane) { return unit * 32 + lane % 4 * 8; }
// Whole row groups that a slot of the ring holds.
AMK_HD int slot_groups(int slot_units, int units) { return slot_units / units; }

AMK_HD int part_elements(int values) { return (values + kPartFloats - 1) / kPartFloats; }
AMK_HD int first_element(int word) { return word & 0xffffff; }
AMK_HD int parts_of(int word) { return int(uint32_t(word) >> 24); }
// The parts of an element lie side by side: one access of 16 lanes takes them all.
AMK_HD int part_at(int element, int part, int parts) { return element * parts + part; }

// A head's pieces in its row of the mailbox: first the values of all pieces, on 16 bytes, then their {maximum, sum}.
AMK_HD int piece_value(int piece, int dim, int head_dim) { return piece * head_dim + dim; }
AMK_HD int piece_head(int piece, int pieces, int head_dim) { return pieces * head_dim + 2 * piece; }

// Attention of a piece: its positions are piece, piece + pieces, ..; a lane has eight values of a head.
AMK_HD int piece_length(int last, int piece, int pieces) { return last < piece ? 0 : (last - piece) / pieces + 1; }
AMK_HD int lanes_a_position(int head_dim) { return head_dim / 8; }
AMK_HD int piece_slot(int pass, int warp, int lane, int head_dim) {
  const int lanes = lanes_a_position(head_dim);
  return (pass * kRankWarps + warp) * (32 / lanes) + lane / lanes;
}
AMK_HD int slots_a_pass(int head_dim) { return kRankWarps * (32 / lanes_a_position(head_dim)); }

}  // namespace amk
