// Prints the index maps of vm/rank_maps.h, one a line: name, arguments, result.
#include <cstdio>

#include "rank_maps.h"

int main() {
  using namespace amk;
  const int rows = 19, k = 72, units = (k + 31) / 32;
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < k; ++i) std::printf("weight %d %d %d\n", r, i, weight_at(r, i, units));
  for (int unit = 0; unit < units; ++unit)
    for (int lane = 0; lane < 32; ++lane) std::printf("lane %d %d %d\n", unit, lane, lane_k(unit, lane));
  const int parts = 5, elements = part_elements(40);
  for (int e = 0; e < elements; ++e)
    for (int p = 0; p < parts; ++p) std::printf("part %d %d %d\n", e, p, part_at(e, p, parts));
  for (int dim = 32; dim <= 256; dim *= 2)
    for (int pass = 0; pass < 2; ++pass)
      for (int warp = 0; warp < kRankWarps; ++warp)
        for (int lane = 0; lane < 32; ++lane) std::printf("slot%d %d %d %d\n", dim, pass * slots_a_pass(dim) + warp, lane, piece_slot(pass, warp, lane, dim));
  for (int last = 0; last < 40; ++last)
    for (int piece = 0; piece < 8; ++piece) std::printf("length %d %d %d\n", last, piece, piece_length(last, piece, 8));
  for (int piece = 0; piece < 8; ++piece) {
    for (int dim = 0; dim < 64; ++dim) std::printf("pieces %d %d %d\n", piece, dim, piece_value(piece, dim, 64));
    for (int which = 0; which < 2; ++which) std::printf("pieces %d %d %d\n", piece, 64 + which, piece_head(piece, 8, 64) + which);
  }
  const int word = 77 | 15 << 24;
  std::printf("word 0 0 %d\nword 0 1 %d\n", first_element(word), parts_of(word));
}
