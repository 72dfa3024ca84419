// attn, fast: tensor cores on bf16 keys and values.  Queries and probabilities enter as two bf16 halves (value and rest), so that
// rounding is left to what is stored.  A tile of 16 query rows at a time; row r is token r / group, query head r % group.
//
// A block of positions (as many as registers hold, see attn_block of lower.py) is spread over the warps, and a warp's keys and values
// stay in registers: scores, maximum, exponentials and products with the values need nobody else.  Values are turned for the second
// product by movmatrix.  Then the warps' results are merged in shared memory, warps ascending.  No sum depends on the other rows, on
// the split or on the chunk.
//
// Tagged: queries, the newest key and the newest value are polled, all other keys and values are on their way before: those of the
// first block ahead of the queries, those of a later one as soon as its predecessor's have been used.  The task of split 0 merges the
// blocks of all splits.  Heads of more than 64 values: attention_long.cuh.
#pragma once
#include "attention_long.cuh"
#include "attention_short.cuh"
#include "combine.cuh"
#include "marked.cuh"
#include "tagged.cuh"

namespace amk {

#if !AMK_EXACT
#if AMK_TAGGED
// One token of one sequence.
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  static_assert(kGroup <= 16, "the queries of a task are one tile");
  const AttentionWork work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), pos = c.p(attn::pos_var);
  const bool merges = c.p(attn::out) >= 0;
  [[maybe_unused]] uint2* const out = c.at<uint2>(attn::out) + (seq * kQSize + head * kGroup * D) / 2;
  if (c.tokens(pos, seq) == 0) {  // the readers of the output wait for every row
    if (merges)
      for (int i = c.thread; i < kGroup * D / 2; i += kThreads)
#if AMK_MARKED
        put_pair<kQSize>(c, c.at<void>(attn::out), seq, head * kGroup * D + 2 * i, 0);
#else
        store_element(out + i, 0, tag_of(c));
#endif
    return;
  }
  const int position = c.first(pos, seq), last = position / kBlock, splits = c.p(attn::splits), warp = c.warp, g = c.lane >> 2, t = c.lane & 3;
  int b = c.p(attn::split);
#if AMK_HEAD_DIM > 64
  const bool near = position < kNear;
  if (b > (near ? 0 : last)) return;
  auto stored = [&](int b) { return near || b == last ? position - b * kBlock : kBlock; };
#else
  if (b > last) return;

  // Positions of block b that lie in the cache; the newest one of the last block comes with the queries.
  auto stored = [&](int b) { return b == last ? position - b * kBlock : kBlock; };
#endif
  [[maybe_unused]] const int64_t row0 = (int64_t(seq) * c.p(attn::ctx)) * kKvSize + head * D;
#if AMK_HEAD_DIM > 64  // worked out anew where it is needed: registers are short
  auto place = [&](int what, int b) {
    return c.at<const uint16_t>(what) + (int64_t(c.p(attn::seq)) * c.p(attn::ctx) + b * kBlock) * kKvSize + c.p(attn::kv_head) * D;
  };
#else
  auto place = [&](int what, int b) { return c.at<const uint16_t>(what) + row0 + b * (kBlock * kKvSize); };
#endif
  H held;
  auto load_keys = [&](int b) { H::load(held.key, place(attn::k, b), warp, stored(b), g, t); };
  auto load_values = [&](int b) { H::load(held.value, place(attn::v, b), warp, stored(b), g, t); };
  load_keys(b), load_values(b);
  {
    constexpr int kMost = (kGroup + 2) * (D / 2), kPolls = (kMost + kThreads - 1) / kThreads, kQueries = kGroup * (D / 2);
    uint4 v[kPolls];
    auto wanted = [&](int i) { return c.thread + i * kThreads < kMost; };
    auto address = [&](int i) {
      const int at = c.thread + i * kThreads, beyond = at - kQueries;
      const int element = beyond < 0 ? head * kGroup * D + 2 * at
                                     : (beyond < D / 2 ? (kHeads + head) * D + 2 * beyond : (kHeads + kKvHeads + head) * D + 2 * beyond - D);
      return c.at<const uint2>(attn::q) + seq * (kQSize + 2 * kKvSize) + element;
    };
    poll_start(v, tag_of(c), wanted, address);
    held.ready();
    poll_rest(c, v, tag_of(c), address);
#pragma unroll
    for (int i = 0; i < kPolls; ++i) {
      const int at = c.thread + i * kThreads;
      const float2 x = floats_of(v[i]);
      if (at < kQueries)
        put_query(work, at / (D / 2), at % (D / 2) * 2, x);
      else if (at < kMost)
        reinterpret_cast<uint32_t*>(work.newest)[at - kQueries] = pack_bf16(x.x, x.y);
    }
    note_arrival(c);
  }
  sync_tasks();
  const float scale = c.real(attn::scale);
#pragma unroll 1
  for (;;) {
#if AMK_HEAD_DIM > 64
    const bool newest = near || b == last, alone = near;
    const int there = newest ? position + 1 - b * kBlock : kBlock, next = b + splits;
    const bool more = !near && next <= last;
#else
    const bool newest = b == last;
    const int there = b == last ? position + 1 - b * kBlock : kBlock, next = b + splits;
    const bool more = next <= last;
#endif
    if (H::start(warp) < there) {
      if (newest) held.put(warp, there - 1, work.newest, g, t);
      attend(work, held, warp, there, there, there, kGroup, scale, g, t, [&] {
        if (H::kLate > 0) held.forget_keys(), held.load_late(place(attn::v, b), warp, stored(b), g, t);
        else if (more) load_keys(next);
      }, [&] { if (H::kLate == 0 && more) load_values(next); });
    }
    sync_tasks();
    if (H::kLate > 0) {
      held.forget();
      if (more) load_keys(next);
    }
#if AMK_HEAD_DIM > 64
    const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits);
    [[maybe_unused]] uint2* const out = c.at<uint2>(attn::out) + (seq * kQSize + head * kGroup * D) / 2;
#else
    const bool alone = last == 0;
#endif
    const int64_t stride = int64_t(splits) * c.p(attn::blocks) * (D + kPartHead);
    uint2* const part = c.at<uint2>(attn::part) + (seq * kHeads + head * kGroup) * stride +
                        (c.p(attn::split) * c.p(attn::blocks) + b / splits) * (D + kPartHead);
    merge_warps(c, work, there, 0, kGroup, [&](int r, int e, float2 x, float top, float total) {
      if (alone) {  // what merging these blocks gives
        const float inverse = reciprocal_fast(total);
#if AMK_MARKED
        put_pair<kQSize>(c, c.at<void>(attn::out), seq, (head * kGroup + r) * D + e, pack_bf16(x.x * inverse, x.y * inverse));
#else
        store_element(out + (r * D + e) / 2, pack_bf16(x.x * inverse, x.y * inverse), tag_of(c));
#endif
      } else {
        if (e == 0) store_floats(part + r * stride, top, total, tag_of(c));
        store_floats(part + r * stride + kPartHead + e, x.x, x.y, tag_of(c));
      }
    });
    if (!more) break;
    if (H::kLate > 0) load_values(next);
    sync_tasks();  // the next block's results go where these are
    held.ready();
    b = next;
  }
#if AMK_HEAD_DIM > 64
  if (near) return;
#endif
  if (merges && last > 0) merge_group(c, Partials{c.at<const float>(attn::part), splits, c.p(attn::blocks)}, seq, head, last + 1, c.at<uint2>(attn::out));
}
#elif AMK_HEAD_DIM > 64
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  const AttentionWork work(c.work());
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, c.p(attn::seq)), first = c.first(pos, c.p(attn::seq)), end = first + tokens;
  if (tokens == 0) return;
  const int near_rows = first >= kNear ? 0 : (end < kNear ? tokens : kNear - first) * kGroup;
  const int warp = c.warp, g = c.lane >> 2, t = c.lane & 3;
  // Parameters are read where they are needed: registers are short.
  auto partial = [&](int r, int b) {
    const int64_t stride = int64_t(c.p(attn::splits)) * c.p(attn::blocks) * (D + kPartHead);
    return c.at(attn::part) + (int64_t(c.p(attn::seq) * kKvHeads + c.p(attn::kv_head)) * kChunk * kGroup + r) * stride +
           (c.p(attn::split) * c.p(attn::blocks) + b / c.p(attn::splits)) * (D + kPartHead);
  };

  // Rows of near positions first, all of them with split 0; block 1 has nothing to add to them.
#pragma unroll 1
  for (int b = c.p(attn::split) == 0 && near_rows > 0 ? -1 : c.p(attn::split); b * kBlock < end; b += b < 0 ? 1 : c.p(attn::splits)) {
    const bool near = b < 0;
    const int start = near ? 0 : b * kBlock, size = near ? kNear : kBlock;
    const int there = end - start < size ? end - start : size;  // positions of the block that exist
    const int skip = near ? 0 : (start - first) * kGroup > near_rows ? (start - first) * kGroup : near_rows;  // rows before it end before, or are near
    const int rows_end = near ? near_rows : tokens * kGroup;
    if (b == 1)
      for (int i = c.thread; i < near_rows * (D / 2); i += kThreads) {
        const int r = i / (D / 2), e = i % (D / 2) * 2;
        if (first + r / kGroup < start) continue;
        float* to = partial(r, b);
        if (e == 0) *reinterpret_cast<float2*>(to) = make_float2(kMinusInfinity, 0.0f);
        *reinterpret_cast<float2*>(to + kPartHead + e) = make_float2(0.0f, 0.0f);
      }
    if (skip >= rows_end) continue;
    H held;
    auto place = [&](int what) {
      return c.at<const uint16_t>(what) + (int64_t(c.p(attn::seq)) * c.p(attn::ctx) + start) * kKvSize + c.p(attn::kv_head) * D;
    };
    H::load(held.key, place(attn::k), warp, there, g, t), H::load(held.value, place(attn::v), warp, there, g, t);
    held.ready();
#pragma unroll 1
    for (int r0 = skip / 16 * 16; r0 < rows_end; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = rows_end - r0 < 16 ? rows_end - r0 : 16;
      for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
        const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
        put_query(work, r - r0, e, load_shared_f32x2(c.at<const float>(attn::q) + int64_t(c.p(attn::seq) * kChunk + r / kGroup) * kQSize +
                                                     (c.p(attn::kv_head) * kGroup + r % kGroup) * D + e));
      }
      sync_tasks();
      auto seen = [&](int r) {  // positions of the block at or before the row's
        const int n = first + r / kGroup + 1 - start;
        return n < there ? n : there;
      };
      if (H::start(warp) < there)
        attend(work, held, warp, there, seen(r0 + g), seen(r0 + g + 8), tile_rows, c.real(attn::scale), g, t, [&] {
          if (AttentionWork::kRowsOf <= 16) held.forget_keys();  // there is one tile of rows
          held.load_late(place(attn::v), warp, there, g, t);
        }, [] {});
      sync_tasks();
      merge_warps(c, work, there, skip - r0, tile_rows, [&](int r, int e, float2 x, float top, float total) {
        float* to = partial(r0 + r, near ? 0 : b);
        if (e == 0) *reinterpret_cast<float2*>(to) = make_float2(top, total);
        *reinterpret_cast<float2*>(to + kPartHead + e) = x;
      });
      sync_tasks();  // the next round writes here
    }
  }
}
#else
__device__ __forceinline__ void run_attn_fast(const Context c) {
  constexpr int D = kHeadDim;
  using H = HeldTiles;
  const AttentionWork work(c.work());
  const int seq = c.p(attn::seq), head = c.p(attn::kv_head), splits = c.p(attn::splits), blocks = c.p(attn::blocks), split = c.p(attn::split);
  const int pos = c.p(attn::pos_var), tokens = c.tokens(pos, seq), first = c.first(pos, seq), n_rows = tokens * kGroup;
  if (tokens == 0) return;
  const float scale = c.real(attn::scale);
  const int64_t part_stride = int64_t(splits) * blocks * (D + kPartHead);
  float* part = c.at(attn::part) + int64_t(seq * kKvHeads + head) * kChunk * kGroup * part_stride;
  const int64_t kv_row0 = int64_t(seq) * c.p(attn::ctx);
  const int warp = c.warp, g = c.lane >> 2, t = c.lane & 3;

  int slot = split * blocks * (D + kPartHead);  // of block b: this split's blocks lie side by side
#pragma unroll 1
  for (int b = split; b * kBlock <= first + tokens - 1; b += splits, slot += D + kPartHead) {
    const int start = b * kBlock;
    const int there = first + tokens - start < kBlock ? first + tokens - start : kBlock;  // positions of the block that exist
    H held;
    H::load(held.key, c.at<const uint16_t>(attn::k) + (kv_row0 + start) * kKvSize + head * D, warp, there, g, t);
    H::load(held.value, c.at<const uint16_t>(attn::v) + (kv_row0 + start) * kKvSize + head * D, warp, there, g, t);
    held.ready();
    const int skip = start > first ? (start - first) * kGroup : 0;  // rows before it end before this block
#pragma unroll 1
    for (int r0 = skip / 16 * 16; r0 < n_rows; r0 += 16) {
      // Rows that do not exist keep whatever is there: a row of the products depends on nothing but itself.
      const int tile_rows = n_rows - r0 < 16 ? n_rows - r0 : 16;
      for (int i = c.thread; i < tile_rows * (D / 2); i += kThreads) {
        const int r = r0 + i / (D / 2), e = i % (D / 2) * 2;
        put_query(work, r - r0, e, load_shared_f32x2(c.at<const float>(attn::q) + int64_t(seq * kChunk + r / kGroup) * kQSize +
                                                     (head * kGroup + r % kGroup) * D + e));
      }
      sync_tasks();
      auto seen = [&](int r) {  // positions of the block at or before the row's
        const int n = first + r / kGroup + 1 - start;
        return n < there ? n : there;
      };
      if (H::start(warp) < there) attend(work, held, warp, there, seen(r0 + g), seen(r0 + g + 8), tile_rows, scale, g, t, [] {}, [] {});
      sync_tasks();
      merge_warps(c, work, there, skip - r0, tile_rows, [&](int r, int e, float2 x, float top, float total) {
        float* to = part + (r0 + r) * part_stride + slot;
        if (e == 0) *reinterpret_cast<float2*>(to) = make_float2(top, total);
        *reinterpret_cast<float2*>(to + kPartHead + e) = x;
      });
      if (r0 + 16 < n_rows || (b + splits) * kBlock <= first + tokens - 1) sync_tasks();  // the next round writes here
    }
  }
}
#endif
#endif

}  // namespace amk
