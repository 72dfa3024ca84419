// What a task's parameters must satisfy before its body may run: every access stays inside its buffer for all steps, and dtypes
// are those the body reads.  The certificate decides order; this decides memory safety, from the tables alone.
#include <algorithm>
#include <bit>
#include <cmath>

#include "cpu_ops.hpp"
#include "numerics.h"

namespace amk {
namespace {

constexpr int64_t kBf16Dtype = 8;  // position of "bf16" in ir.DTYPES
constexpr int64_t kMaxRows = 4096, kMaxHeadDim = 1024, kMaxBlock = 65536, kMaxBlocks = 1 << 20;

int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

const char* name_of(int32_t op) {
  static constexpr const char* kNames[kOpCount] = {"opaque", "embed", "qkv", "attn", "attn_combine", "o_proj",
                                                   "o_proj_combine", "gate_up", "down_proj", "lm_head", "sample",
                                                   "o_part", "down_part", "o_sum", "down_sum", "rank_qkv", "rank_attn"};
  return op >= 0 && op < kOpCount ? kNames[op] : "?";
}

int param_count(int32_t op) {
  static constexpr int kCount[kOpCount] = {0, embed::count, qkv::count, attn::count, attn_combine::count, o_proj::count,
                                           o_proj_combine::count, gate_up::count, down_proj::count, lm_head::count,
                                           sample::count, o_part::count, down_part::count, o_sum::count, down_sum::count, rank_qkv::count, rank_attn::count};
  return kCount[op];
}

struct Check {
  const Machine& mc;
  const Tables& tb = *mc.tables;
  int32_t task;
  int32_t op = tb.task_op[size_t(task)];
  const int32_t* par = tb.par.data() + tb.par_off[size_t(task)];
  std::vector<Geometry>* geometries;
  int64_t tile_bytes = 0;
  bool any_tagged = false, any_plain = false;

  int64_t p(int i) const { return par[i]; }

  [[noreturn]] void fail(const std::string& what) const {
    throw LoadError("task " + std::to_string(task) + " (" + name_of(op) + "): " + what);
  }

  void range(const char* what, int64_t x, int64_t lo, int64_t hi) const {
    if (x < lo || x > hi)
      fail(std::string(what) + " is " + std::to_string(x) + ", required is " + std::to_string(lo) + " to " + std::to_string(hi));
  }

  enum Use { kReads, kWrites };

  // An activation that may be tagged; `packed`: then an element holds a pair of values.
  const BufferRow& activation(int i, Use use, int64_t rows, int64_t cols, bool packed = false) {
    any_tagged |= p(i) >= 0 && p(i) < int64_t(tb.buffers.size()) && tb.buffers[size_t(p(i))].tagged;
    any_plain |= p(i) >= 0 && p(i) < int64_t(tb.buffers.size()) && !tb.buffers[size_t(p(i))].tagged;
    return buffer(i, use, rows, packed ? up(cols, 2) / 2 : cols, false, true);
  }

  // Packed rows go with tagged activations: one token of each sequence in the fast plan.
  void packing(int64_t packed, int64_t chunk = 1) const {
    range("packed", packed, 0, 1);
    if (any_tagged && any_plain) fail("some of its activations are tagged and some are not");
    if ((packed != 0) != any_tagged) fail("packed rows are tagged ones");
    if (packed && (chunk != 1 || !mc.fast)) fail("packed rows are one token of each sequence in the fast plan");
  }

  const BufferRow& buffer(int i, Use use, int64_t rows, int64_t cols, bool bf16_allowed = false, bool handed = false) const {
    const std::string which = "buffer parameter " + std::to_string(i);
    if (p(i) < 0 || p(i) >= int64_t(tb.buffers.size())) fail(which + " is " + std::to_string(p(i)) + ", which does not exist");
    const BufferRow& b = tb.buffers[size_t(p(i))];
    if (rows > b.rows || cols > b.cols)
      fail(which + " is " + std::to_string(b.rows) + " x " + std::to_string(b.cols) + ", the task needs " + std::to_string(rows) +
           " x " + std::to_string(cols));
    const bool bf16 = b.dtype == kBf16Dtype;
    if (b.tagged ? !handed : !(b.bits == 32 || (bf16 && bf16_allowed)))
      fail(which + " has a dtype that the CPU kernels do not read (32-bit" + (bf16_allowed ? " or bf16" : "") + " is required)");
    if (b.kind == kWeight) fail(which + " is a weight; weights are read from the tape");
    if (use == kWrites && (b.kind == kTable || b.kind == kInput)) fail(which + " is read-only and would be written");
    return b;
  }

  void tile(int i, int64_t row0, int64_t row1, int64_t k) {
    range("row0", row0, 0, row1 - 1);
    range("k", k, 1, 1 << 24);
    if (p(i) < 0 || p(i) >= int64_t(tb.buffers.size())) fail("weight buffer does not exist");
    const BufferRow& b = tb.buffers[size_t(p(i))];
    if (b.kind != kWeight || b.rows < row1 || b.cols != k)
      fail("weight buffer is " + std::to_string(b.rows) + " x " + std::to_string(b.cols) + ", the task needs rows up to " +
           std::to_string(row1) + " of " + std::to_string(k) + " columns in a buffer of kind weight");
    QuantFormat format;
    if (QuantFormat::of(b.dtype, &format)) {
      if (format.integer && k > kMostIntegerK)
        fail("K is " + std::to_string(k) + ", integer sums with activations of 8 bits take at most " + std::to_string(kMostIntegerK));
      tile_bytes = format.tile_bytes(row1 - row0, k);
      return;
    }
    if (mc.tape_bf16 ? b.dtype != kBf16Dtype : b.bits != 32) fail("dtype of the weight buffer is not the dtype of the tape");
    tile_bytes = (row1 - row0) * up(k, kLanes) * (mc.tape_bf16 ? 2 : 4);
  }

  void eps(int i) const {
    const float e = std::bit_cast<float>(par[i]);
    if (!(e >= 0.0f) || !std::isfinite(e)) fail("eps is not a finite number of at least 0");
  }

  void rows(int64_t m) const { range("m", m, 1, kMaxRows); }

  void sequences(int64_t m, int64_t chunk, int64_t batch, int64_t ctx, int64_t pos_var, bool certain) const {
    rows(m);
    range("chunk", chunk, 1, m);
    range("batch", batch, m / chunk, m / chunk);
    if (m % chunk) fail("m is not a multiple of chunk");
    range("ctx", ctx, 1, int64_t{1} << 31);
    range("pos_var", pos_var, 0, int64_t(tb.variables.size()) - 2 * batch);
    const Geometry g{int32_t(pos_var), int32_t(batch), int32_t(chunk), int32_t(std::min<int64_t>(ctx, INT32_MAX)), certain};
    if (std::find(geometries->begin(), geometries->end(), g) == geometries->end()) geometries->push_back(g);
  }

  void heads(int64_t n_heads, int64_t n_kv, int64_t d) const {
    range("n_heads", n_heads, 1, 1 << 16);
    range("n_kv", n_kv, 1, n_heads);
    range("head_dim", d, 2, kMaxHeadDim);
    if (n_heads % n_kv || d % 2) fail("n_heads must be a multiple of n_kv and head_dim even");
  }

  void blocks(int64_t splits, int64_t n, int64_t block, int64_t ctx) const {
    range("splits", splits, 1, kMaxBlocks);
    range("blocks", n, 1, kMaxBlocks);
    range("block", block, 1, kMaxBlock);
    if (splits * n * block < ctx) fail("splits * blocks * block is less than ctx: late positions would have no partial");
  }

  void group(int64_t g, int64_t n_heads, int64_t n_kv) const { range("group", g, n_heads / n_kv, n_heads / n_kv); }

  void embed() {
    const int64_t m = p(embed::m), chunk = p(embed::chunk);
    rows(m);
    range("chunk", chunk, 1, m);
    if (m % chunk) fail("m is not a multiple of chunk");
    range("feed", p(embed::feed), 0, 1);
    if (p(embed::feed) == 0 && chunk != 1) fail("a fed-back token needs chunk 1");
    range("col0", p(embed::col0), 0, p(embed::col1) - 1);
    range("vocab", p(embed::vocab), 1, INT32_MAX);
    buffer(embed::token, kReads, m / chunk, p(embed::feed) == 0 ? 1 : tb.steps * chunk);
    buffer(embed::table, kReads, p(embed::vocab), p(embed::col1), true);
    activation(embed::out, kWrites, m, p(embed::col1));
  }

  void qkv() {
    const int64_t m = p(qkv::m), d = p(qkv::head_dim), hidden = p(qkv::hidden), ctx = p(qkv::ctx), batch = p(qkv::batch);
    sequences(m, p(qkv::chunk), batch, ctx, p(qkv::pos_var), p(qkv::partial) == 0);
    heads(p(qkv::n_heads), p(qkv::n_kv), d);
    const int64_t q_end = p(qkv::n_heads) * d, kv = p(qkv::n_kv) * d, row0 = p(qkv::row0), row1 = p(qkv::row1);
    tile(qkv::w, row0, row1, hidden);
    range("row1", row1, row0 + 1, q_end + 2 * kv);
    if ((row0 < q_end + kv && row0 % 2) || (row1 < q_end + kv && row1 % 2)) fail("a tile boundary cuts a rotary pair");
    eps(qkv::eps);
    activation(qkv::h, kReads, m, hidden);
    buffer(qkv::norm_w, kReads, 1, hidden);
    buffer(qkv::cos, kReads, ctx, d / 2);
    buffer(qkv::sin, kReads, ctx, d / 2);
    activation(qkv::q, kWrites, m, p(qkv::packed) ? q_end + 2 * kv : q_end);
    packing(p(qkv::packed), p(qkv::chunk));
    for (const int cache : {qkv::k, qkv::v})
      if (buffer(cache, kWrites, batch * ctx, kv, true).bits != 16 && p(qkv::packed)) fail("packed rows go with keys and values of bf16");
  }

  void attn() {
    namespace a = amk::attn;
    const int64_t m = p(a::m), d = p(a::head_dim), ctx = p(a::ctx), batch = p(a::batch), n_kv = p(a::n_kv);
    sequences(m, p(a::chunk), batch, ctx, p(a::pos_var), p(a::partial) == 0);
    heads(p(a::n_heads), n_kv, d);
    group(p(a::group), p(a::n_heads), n_kv);
    blocks(p(a::splits), p(a::blocks), p(a::block), ctx);
    range("seq", p(a::seq), 0, batch - 1);
    range("kv_head", p(a::kv_head), 0, n_kv - 1);
    range("split", p(a::split), 0, p(a::splits) - 1);
    activation(a::q, kReads, m, (p(a::n_heads) + (p(a::packed) ? 2 * n_kv : 0)) * d);
    for (const int cache : {a::k, a::v})
      if (buffer(cache, kReads, batch * ctx, n_kv * d, true).bits != 16 && p(a::packed)) fail("packed rows go with keys and values of bf16");
    activation(a::part, kWrites, m * p(a::n_heads), p(a::splits) * p(a::blocks) * (d + 2));
    if (p(a::out) >= 0) {
      range("split", p(a::split), 0, 0);
      activation(a::out, kWrites, m, p(a::n_heads) * d, p(a::packed));
      if (!p(a::packed) && p(a::splits) > 1) fail("a task that merges the partials of others needs them tagged");
    } else if (p(a::packed) && p(a::split) == 0) {
      fail("where values are tagged the task of split 0 merges the partials: its out is missing");
    }
    packing(p(a::packed), p(a::chunk));
  }

  void attn_combine() const {
    namespace a = amk::attn_combine;
    const int64_t m = p(a::m), d = p(a::head_dim), batch = p(a::batch), n_kv = p(a::n_kv);
    sequences(m, p(a::chunk), batch, p(a::ctx), p(a::pos_var), false);
    heads(p(a::n_heads), n_kv, d);
    group(p(a::group), p(a::n_heads), n_kv);
    blocks(p(a::splits), p(a::blocks), p(a::block), p(a::ctx));
    range("seq", p(a::seq), 0, batch - 1);
    range("kv_head", p(a::kv_head), 0, n_kv - 1);
    buffer(a::part, kReads, m * p(a::n_heads), p(a::splits) * p(a::blocks) * (d + 2));
    buffer(a::out, kWrites, m, p(a::n_heads) * d);
  }

  void project() {  // o_proj and down_proj
    namespace a = amk::o_proj;
    rows(p(a::m));
    tile(a::w, p(a::row0), p(a::row1), p(a::k));
    activation(a::x, kReads, p(a::m), p(a::k), p(a::packed));
    activation(a::h, kReads, p(a::m), p(a::row1));
    activation(a::out, kWrites, p(a::m), p(a::row1));
    packing(p(a::packed));
  }

  void o_proj_combine() {
    namespace a = amk::o_proj_combine;
    const int64_t m = p(a::m), d = p(a::head_dim), n_kv = p(a::n_kv);
    sequences(m, p(a::chunk), p(a::batch), p(a::ctx), p(a::pos_var), false);
    heads(p(a::n_heads), n_kv, d);
    group(p(a::group), p(a::n_heads), n_kv);
    blocks(p(a::splits), p(a::blocks), p(a::block), p(a::ctx));
    range("k", p(a::k), p(a::n_heads) * d, p(a::n_heads) * d);
    tile(a::w, p(a::row0), p(a::row1), p(a::k));
    buffer(a::part, kReads, m * p(a::n_heads), p(a::splits) * p(a::blocks) * (d + 2));
    buffer(a::h, kWrites, m, p(a::row1));
  }

  void gate_up() {
    const int64_t m = p(gate_up::m), hidden = p(gate_up::hidden);
    rows(m);
    range("row1", p(gate_up::row1), 1, 1 << 29);
    tile(gate_up::w, 2 * p(gate_up::row0), 2 * p(gate_up::row1), hidden);
    eps(gate_up::eps);
    activation(gate_up::h, kReads, m, hidden);
    buffer(gate_up::norm_w, kReads, 1, hidden);
    activation(gate_up::act, kWrites, m, p(gate_up::row1), p(gate_up::packed));
    if (p(gate_up::packed) && (p(gate_up::row0) % 2 || p(gate_up::row1) % 2)) fail("a tile boundary cuts a packed pair");
    packing(p(gate_up::packed));
  }

  void rank_qkv() {
    namespace a = amk::rank_qkv;
    const int64_t d = p(a::head_dim), hidden = p(a::hidden), ctx = p(a::ctx);
    sequences(p(a::m), 1, 1, ctx, p(a::pos_var), true);
    heads(p(a::n_heads), p(a::n_kv), d);
    const int64_t q_end = p(a::n_heads) * d, kv = p(a::n_kv) * d, row0 = p(a::row0), row1 = p(a::row1);
    tile(a::w, row0, row1, hidden);
    range("row1", row1, row0 + 1, q_end + 2 * kv);
    if ((row0 < q_end + kv && row0 % 2) || (row1 < q_end + kv && row1 % 2)) fail("a tile boundary cuts a rotary pair");
    eps(a::eps);
    buffer(a::h, kReads, 1, hidden);
    buffer(a::norm_w, kReads, 1, hidden);
    buffer(a::cos, kReads, ctx, d / 2);
    buffer(a::sin, kReads, ctx, d / 2);
    buffer(a::q, kWrites, 1, q_end + 2 * kv);
    for (const int cache : {a::k, a::v}) buffer(cache, kWrites, ctx, kv, true);
  }

  void rank_attn() {
    namespace a = amk::rank_attn;
    const int64_t d = p(a::head_dim), n_kv = p(a::n_kv), ctx = p(a::ctx);
    sequences(p(a::m), 1, 1, ctx, p(a::pos_var), true);
    heads(p(a::n_heads), n_kv, d);
    range("kv_head", p(a::kv_head), 0, n_kv - 1);
    range("heads", p(a::heads), 1, p(a::n_heads));
    range("head", p(a::head), 0, p(a::n_heads) - p(a::heads));
    range("pieces", p(a::pieces), 1, kMaxBlocks);
    range("piece", p(a::piece), 0, p(a::pieces) - 1);
    buffer(a::q, kReads, 1, (p(a::n_heads) + 2 * n_kv) * d);
    for (const int cache : {a::k, a::v}) buffer(cache, kReads, ctx, n_kv * d, true);
    buffer(a::attn, kWrites, p(a::head) + p(a::heads), p(a::pieces) * (d + 2));
  }

  void o_part() {
    namespace a = amk::o_part;
    const int64_t d = p(a::head_dim);
    range("m", p(a::m), 1, 1);
    range("head_dim", d, 2, kMaxHeadDim);
    range("k0", p(a::k0), 0, p(a::k1) - 1);
    if (p(a::k0) % d || p(a::k1) % d) fail("a part of the output projection is of whole heads");
    range("pieces", p(a::pieces), 1, kMaxBlocks);
    range("part", p(a::part), 0, kMaxParts - 1);
    tile(a::w, p(a::row0), p(a::row1), p(a::k1) - p(a::k0));
    buffer(a::attn, kReads, p(a::k1) / d, p(a::pieces) * (d + 2));
    activation(a::out, kWrites, p(a::part) + 1, p(a::row1));
  }

  void down_part() {
    namespace a = amk::down_part;
    rows(p(a::m));
    range("k0", p(a::k0), 0, p(a::k1) - 1);
    range("part", p(a::part), 0, kMaxParts - 1);
    tile(a::w, p(a::row0), p(a::row1), p(a::k1) - p(a::k0));
    activation(a::x, kReads, p(a::m), p(a::k1));
    activation(a::out, kWrites, (p(a::part) + 1) * p(a::m), p(a::row1));
  }

  void sum() {  // o_sum and down_sum
    namespace a = amk::o_sum;
    rows(p(a::m));
    range("n", p(a::n), 1, kMaxParts);
    range("col0", p(a::col0), 0, p(a::col1) - 1);
    activation(a::parts, kReads, p(a::n) * p(a::m), p(a::col1));
    activation(a::h, kReads, p(a::m), p(a::col1));
    activation(a::out, kWrites, p(a::m), p(a::col1));
  }

  void lm_head() {
    const int64_t m = p(lm_head::m), hidden = p(lm_head::hidden);
    rows(m);
    range("ring", p(lm_head::ring), 0, 1);
    tile(lm_head::w, p(lm_head::row0), p(lm_head::row1), hidden);
    eps(lm_head::eps);
    activation(lm_head::h, kReads, m, hidden);
    buffer(lm_head::norm_w, kReads, 1, hidden);
    buffer(lm_head::logits, kWrites, p(lm_head::ring) == 1 ? tb.steps * m : m, p(lm_head::row1));
    if (p(lm_head::amax) < 0) return;
    range("tile", p(lm_head::tile), 0, 1 << 28);
    buffer(lm_head::amax, kWrites, m, 2 * p(lm_head::tile) + 2);
  }

  void sample() const {
    namespace a = amk::sample;
    const int64_t m = p(a::m);
    rows(m);
    range("vocab", p(a::vocab), 1, INT32_MAX);
    range("n_stop_ids", p(a::n_stop_ids), 0, 1 << 20);
    range("pos_var", p(a::pos_var), 0, int64_t(tb.variables.size()) - 2 * m);
    buffer(a::logits, kReads, m, p(a::vocab));
    if (p(a::amax) >= 0) {
      range("tiles", p(a::tiles), 1, 1 << 28);
      buffer(a::amax, kReads, m, 2 * p(a::tiles));
    }
    buffer(a::control, kReads, m, control::count);
    if (p(a::n_stop_ids) > 0) buffer(a::stop_ids, kReads, m, p(a::n_stop_ids));
    buffer(a::token, kWrites, m, 1);
    buffer(a::out, kWrites, tb.steps, m);
    buffer(a::stop, kWrites, tb.steps, 1);
    buffer(a::done, kWrites, m, 1);
  }

  void run() {
    if (op <= kOpaque || op >= kOpCount)
      fail(op == kOpaque ? "an opaque task has no code; a VM runs real ops only" : "op code " + std::to_string(op) + " is unknown");
    const int64_t n = tb.par_off[size_t(task) + 1] - tb.par_off[size_t(task)];
    range("number of parameters", n, param_count(op), param_count(op));
    switch (op) {
      case kEmbed: return embed();
      case kQkv: return qkv();
      case kAttn: return attn();
      case kAttnCombine: return attn_combine();
      case kOProj:
      case kDownProj: return project();
      case kOProjCombine: return o_proj_combine();
      case kGateUp: return gate_up();
      case kLmHead: return lm_head();
      case kRankQkv: return rank_qkv();
      case kRankAttn: return rank_attn();
      case kOPart: return o_part();
      case kDownPart: return down_part();
      case kOSum:
      case kDownSum: return sum();
      default: return sample();
    }
  }
};

}  // namespace

void check_task(const Machine& machine, int32_t task, int64_t* tile_bytes, std::vector<Geometry>* geometries) {
  Check check{.mc = machine, .task = task, .geometries = geometries};
  check.run();
  *tile_bytes = check.tile_bytes;
}

int64_t scratch_floats(const Task& t) {
  auto p = [&](int i) { return int64_t(t.p[i]); };
  auto part = [](int64_t floats) { return up(floats, 16); };
  auto tile = [&](int m, int row0, int row1, int64_t times) { return part(p(m) * (p(row1) - p(row0)) * times); };
  if (t.quant.bits) {
    Task plain = t;
    plain.quant.bits = 0;
    return scratch_floats(plain) + 2 * part(kGroupRows * t.quant.groups(t.weight_k)) + part(kGroupRows * up(t.weight_k, kLanes));
  }
  switch (t.op) {
    case kQkv:
      return part(p(qkv::m) * up(p(qkv::hidden), kLanes)) + tile(qkv::m, qkv::row0, qkv::row1, 1);
    case kAttn: {
      const int64_t rows = p(attn::chunk) * p(attn::group), d = p(attn::head_dim), dp = up(d, kLanes), block = p(attn::block);
      return part(rows * dp) + part(block * dp) + part(rows * up(block, kLanes)) + part(rows * d) + part(2 * p(attn::splits) * p(attn::blocks)) +
             part(kMostNearBlocks * p(attn::group) * (d + 2));
    }
    case kAttnCombine: return part(2 * p(attn_combine::splits) * p(attn_combine::blocks));
    case kOProj:
    case kDownProj: return part(p(o_proj::m) * up(p(o_proj::k), kLanes)) + tile(o_proj::m, o_proj::row0, o_proj::row1, 1);
    case kOProjCombine:
      return part(2 * p(o_proj_combine::splits) * p(o_proj_combine::blocks)) +
             part(p(o_proj_combine::m) * up(p(o_proj_combine::k), kLanes)) +
             tile(o_proj_combine::m, o_proj_combine::row0, o_proj_combine::row1, 1);
    case kGateUp:
      return part(p(gate_up::m) * up(p(gate_up::hidden), kLanes)) + tile(gate_up::m, gate_up::row0, gate_up::row1, 2);
    case kRankQkv: return part(up(p(rank_qkv::hidden), kLanes)) + tile(rank_qkv::m, rank_qkv::row0, rank_qkv::row1, 1);
    case kRankAttn: {
      const int64_t d = p(rank_attn::head_dim), dp = up(d, kLanes), most = (p(rank_attn::ctx) + p(rank_attn::pieces) - 1) / p(rank_attn::pieces);
      return part(dp) + part(most * dp) + part(up(most, kLanes)) + part(d);
    }
    case kOPart:
      return part(2 * p(o_part::pieces)) + part(up(p(o_part::k1) - p(o_part::k0), kLanes)) + tile(o_part::m, o_part::row0, o_part::row1, 1);
    case kDownPart:
      return part(p(down_part::m) * up(p(down_part::k1) - p(down_part::k0), kLanes)) + tile(down_part::m, down_part::row0, down_part::row1, 1);
    case kLmHead: return part(p(lm_head::m) * up(p(lm_head::hidden), kLanes));
    default: return 0;
  }
}

}  // namespace amk
