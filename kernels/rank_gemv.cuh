// Matrix products of a rank: a tile of rows times one activation row that lies in this CTA's mailboxes.  Weights come through the ring
// in the fragment order of the tape (gemv_fast.cuh says what that is); unit u of K belongs to warp u % 8, and a warp keeps what it
// multiplies in registers for the whole tile.  Two row groups are the 16-row operand; all columns of the other one are the same, so
// a lane finds its sums in the first.  The first weights of a tile go through registers before the activations come.
//
// Numbers are those of `fast`: inputs of products rounded to bf16, the norm weight before and 1 / rms behind the product; per warp
// ascending units, even and odd halves apart, then the warps by pairs.
#pragma once
#include "rank_parts.cuh"
#include "weights.cuh"

namespace amk {

// Units of K that a warp has at most: of the normed products, of the output and of the down projection.
constexpr int kNormUnits = (up(kHidden, 32) / 32 + kWarps - 1) / kWarps, kOUnits = AMK_RANK_O_UNITS, kDownUnits = AMK_RANK_DOWN_UNITS;
constexpr int kAheadLoads = AMK_RANK_AHEAD;  // 16-byte loads of weights that a lane has in registers before the activations come

// What a warp multiplies: eight values a lane and unit, rounded to bf16.
template <int U>
struct Activations {
  uint2 even[U], odd[U];

  __device__ __forceinline__ void set(int i, const float (&x)[8]) {
    even[i] = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    odd[i] = make_uint2(pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
  }
};

__device__ __forceinline__ void load_8(const float* from, float (&x)[8]) {
  const float4 a = reinterpret_cast<const float4*>(from)[0], b = reinterpret_cast<const float4*>(from)[1];
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// Work memory of a product: sums of squares by warp, then the sums of each warp over its units, [warp][row].
__device__ __forceinline__ float* rank_squares(const Context c) { return reinterpret_cast<float*>(c.work()); }
__device__ __forceinline__ float* rank_sums(const Context c) { return rank_squares(c) + kWarps; }

// Row groups of what is multiplied together: of one tile, or of up to three that follow each other.
struct Groups {
  int all, cut1, cut2;  // and behind which of them another tile begins, in another slot of the ring

  __device__ __forceinline__ explicit Groups(int rows) : all((rows + 7) / 8), cut1(all), cut2(all) {}
  __device__ __forceinline__ Groups(int rows, int more, int more2)
      : all((rows + 7) / 8 + (more + 7) / 8 + (more2 + 7) / 8), cut1((rows + 7) / 8), cut2((rows + 7) / 8 + (more + 7) / 8) {}
  __device__ __forceinline__ int end(int group) const { return group < cut1 ? cut1 : (group < cut2 ? cut2 : all); }
};

// A pair of row groups: the groups of a slot go two by two.
struct PairAt {
  int first = 0, next = 0;  // row groups in the slots before this one, of this one before the pair

  __device__ __forceinline__ int in_slot(const Groups& groups, int together) const {
    const int left = groups.end(first) - first;
    return left < together ? left : together;
  }
  __device__ __forceinline__ int count(int n) const { return n - next < 2 ? n - next : 2; }
  // True behind the last pair of a slot.
  __device__ __forceinline__ bool step(int n) {
    next += 2;
    if (next < n) return false;
    first += n, next = 0;
    return true;
  }
};

// The product of a tile; made ahead of the wait.
template <int U>
struct Product {
  static constexpr int kAhead = kAheadLoads / (2 * U), kPairs = kAhead > 0 ? kAhead : 1;  // pairs of row groups
  struct Pair {
    uint4 low[U], high[U];
  };

  RingCursor at;  // the first slot that is not released
  Place seen;     // the one that is read
  const uint8_t* slot;
  const Groups groups;
  const int units, together;  // units of a row, row groups of a slot
  PairAt place;
  Pair ahead[kPairs];

  __device__ __forceinline__ Product(const Context c, const Groups& all, int row_units)
      : seen(at), slot(nullptr), groups(all), units(row_units), together(slot_groups(kSlotUnits, row_units)) {
#pragma unroll
    for (int p = 0; p < kAhead; ++p) {
#pragma unroll
      for (int i = 0; i < U; ++i) ahead[p].low[i] = ahead[p].high[i] = make_uint4(0, 0, 0, 0);
      if (place.first < groups.all) take(c, ahead[p]);
    }
  }

  // The weights of the next pair.
  __device__ __forceinline__ void take(const Context c, Pair& w) {
    const int n = place.in_slot(groups, together);
    if (place.next == 0) slot = slot_of(seen) + c.lane * 16;
#pragma unroll
    for (int i = 0; i < U; ++i) {
      const int unit = c.warp + i * kWarps;
      const uint8_t* from = slot + (place.next * units + unit) * kUnitBytes;
      w.low[i] = w.high[i] = make_uint4(0, 0, 0, 0);
      if (unit < units) w.low[i] = *reinterpret_cast<const uint4*>(from);
      if (unit < units && place.count(n) > 1) w.high[i] = *reinterpret_cast<const uint4*>(from + units * kUnitBytes);
    }
    if (place.step(n)) seen.next();
  }
  // Slots are released behind the products of what was ahead, not before: a release is a place where a warp meets, and around those
  // the compiler spills what is in registers.
  __device__ __forceinline__ void release(const Context c) {
    while (at.slot != seen.slot) at.release(c.warp, c.lane);
  }
  static __device__ __forceinline__ void multiply(float (&acc)[2][4], const Pair& w, const Activations<U>& x, int i) {
    mma_bf16(acc[0], w.low[i].x, w.high[i].x, w.low[i].y, w.high[i].y, x.even[i].x, x.even[i].y);
    mma_bf16(acc[1], w.low[i].z, w.high[i].z, w.low[i].w, w.high[i].w, x.odd[i].x, x.odd[i].y);
  }
  static __device__ __forceinline__ void keep(const Context c, const float (&acc)[2][4], float* sums, int count) {
    if (c.lane % 4 != 0) return;
    sums[c.lane / 4] = acc[0][0] + acc[1][0];
    if (count > 1) sums[8 + c.lane / 4] = acc[0][2] + acc[1][2];
  }

  // The tile's sums come to lie in work memory; a barrier of the task warps is behind it.
  __device__ __forceinline__ void run(const Context c, const Activations<U>& x) {
    float* sums = rank_sums(c) + c.warp * groups.all * 8;
    PairAt done;
    if constexpr (kAhead > 0) {
      float acc[kPairs][2][4] = {};
#pragma unroll
      for (int i = 0; i < U; ++i) {
        if (c.warp + i * kWarps >= units) break;
#pragma unroll
        for (int p = 0; p < kAhead; ++p) multiply(acc[p], ahead[p], x, i);
      }
#pragma unroll
      for (int p = 0; p < kAhead; ++p) {
        if (done.first >= groups.all) break;
        const int n = done.in_slot(groups, together);
        keep(c, acc[p], sums + (done.first + done.next) * 8, done.count(n));
        done.step(n);
      }
    }
    release(c);
#pragma unroll 1
    while (done.first < groups.all) {
      const int n = done.in_slot(groups, together);
      float acc[2][4] = {};
      Pair w;
      take(c, w);
#pragma unroll
      for (int i = 0; i < U; ++i) {
        if (c.warp + i * kWarps >= units) break;
        multiply(acc, w, x, i);
      }
      keep(c, acc, sums + (done.first + done.next) * 8, done.count(n));
      done.step(n);
      release(c);
    }
    sync_tasks();
    at.keep(c.thread);
  }
};
__device__ __forceinline__ float rank_total(const Context c, int rows, int row) {
  const float* s = rank_sums(c) + row;
  const int n = up(rows, 8);
  return ((s[0] + s[n]) + (s[2 * n] + s[3 * n])) + ((s[4 * n] + s[5 * n]) + (s[6 * n] + s[7 * n]));
}

// The norm's weights of this lane; read-only, so they are fetched ahead of the wait.
struct NormWeights {
  float w[kNormUnits][8];

  __device__ __forceinline__ NormWeights(const Context c, const float* from) {
#pragma unroll
    for (int i = 0; i < kNormUnits; ++i) {
      const int k = lane_k(c.warp + i * kWarps, c.lane);
      float4 a = make_float4(0, 0, 0, 0), b = a;
      if (k < kHidden) a = load_table_x4(from + k), b = load_table_x4(from + k + 4);
      w[i][0] = a.x, w[i][1] = a.y, w[i][2] = a.z, w[i][3] = a.w, w[i][4] = b.x, w[i][5] = b.y, w[i][6] = b.z, w[i][7] = b.w;
    }
  }
};

// A product with the normed residual stream; returns 1 / rms.
__device__ __forceinline__ float rank_normed(const Context c, const float* weight, float eps, const Groups& groups) {
  const NormWeights norm(c, weight);
  Product<kNormUnits> product(c, groups, up(kHidden, 32) / 32);
  await_mail(c);
  const float* h = box(c, rank_qkv::h);  // first parameter of qkv, gate_up and lm_head too
  Activations<kNormUnits> x;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kNormUnits; ++i) {
    float v[8] = {};
    const int k = lane_k(c.warp + i * kWarps, c.lane);
    if (k < kHidden) {
      load_8(h + k, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = squares + v[j] * v[j], v[j] = v[j] * norm.w[i][j];
    }
    x.set(i, v);
  }
  squares = squares + __shfl_xor_sync(~0u, squares, 1);  // the four lanes of a row have different values, the eight rows the same
  squares = squares + __shfl_xor_sync(~0u, squares, 2);
  if (c.lane == 0) rank_squares(c)[c.warp] = squares;
  product.run(c, x);
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total = total + rank_squares(c)[w];
  return rsqrt_fast(total * (1.0f / kHidden) + eps);
}

__device__ __noinline__ void run_rank_qkv(const Context c) {
  namespace a = rank_qkv;
  const int row0 = c.p(a::row0), n0 = c.p(a::row1) - row0, pos = c.p(a::pos_var);
  const int more = c.p(kMoreWord), more2 = c.p(kMoreWord2), n1 = more_rows(more), n = n0 + n1 + more_rows(more2);
  const Groups groups(n0, n1, more_rows(more2));
  const bool on = c.active(pos, 0);
  const int position = c.position(pos, 0);
  auto row_of = [&](int i) {  // of the weight, of the i-th row
    return i < n0 ? row0 + i : (i < n0 + n1 ? more_row(more) + i - n0 : more_row(more2) + i - n0 - n1);
  };
  auto sum_of = [&](int i) { return i < n0 ? i : (i < n0 + n1 ? groups.cut1 * 8 + i - n0 : groups.cut2 * 8 + i - n0 - n1); };
  auto angle = [&](int i) {  // cosine and sine of the i-th result; queries and keys are turned
    const int row = row_of(i / kCluster * 2);
    if (i >= n / 2 * kCluster || row >= kQSize + kKvSize || !on) return make_float2(1.0f, 0.0f);
    const int64_t at = int64_t(position) * (kHeadDim / 2) + row % kHeadDim / 2;
    return make_float2(load_table(c.at<const float>(a::cos) + at), load_table(c.at<const float>(a::sin) + at));
  };
  float2 turn = angle(c.thread);  // read-only: ahead of the wait
  const float rms = rank_normed(c, c.at<const float>(a::norm_w), c.real(a::eps), groups);
  const Route route(c);
  for (int i = c.thread; i < n / 2 * kCluster; i += kThreads) {
    const int local = i / kCluster * 2, cta = i % kCluster, row = row_of(local), at = sum_of(local);
    if (i != c.thread) turn = angle(i);
    if (!route.goes_to(cta)) continue;
    float x = rank_total(c, groups.all * 8, at) * rms, y = rank_total(c, groups.all * 8, at + 1) * rms;
    if (row < kQSize + kKvSize) {
      const float x_cos = x * turn.x, y_sin = y * turn.y, y_cos = y * turn.x, x_sin = x * turn.y;
      x = x_cos - y_sin, y = y_cos + x_sin;
    }
    if (!on) x = y = 0.0f;
    route.send(box(c, a::q) + row, cta, x, y);
    if (cta == route.own && on && row >= kQSize) {
      const bool key = row < kQSize + kKvSize;
      store_kv(c.at<Stored>(key ? a::k : a::v) + int64_t(position) * kKvSize + (row - kQSize - (key ? 0 : kKvSize)), x, y);
    }
  }
}

__device__ __noinline__ void run_rank_gate_up(const Context c) {
  namespace a = gate_up;
  const int first = c.p(a::row0), n = c.p(a::row1) - first;
  const float rms = rank_normed(c, c.at<const float>(a::norm_w), c.real(a::eps), Groups(2 * n));
  const Route route(c);
  for (int i = c.thread; i < n * kCluster; i += kThreads) {
    const int unit = i / kCluster, cta = i % kCluster;
    if (!route.goes_to(cta)) continue;
    const float gate = rank_total(c, 2 * n, 2 * unit) * rms, value = rank_total(c, 2 * n, 2 * unit + 1) * rms;
    route.send(box(c, a::act) + first + unit, cta, gate * reciprocal_fast(1.0f + exp_fast(-gate)) * value);
  }
}

__device__ __noinline__ void run_rank_head(const Context c) {
  namespace a = lm_head;
  const int row0 = c.p(a::row0), n = c.p(a::row1) - row0;
  const float rms = rank_normed(c, c.at<const float>(a::norm_w), c.real(a::eps), Groups(n));
  float* to = c.at(a::logits) + (c.p(a::ring) == 1 ? int64_t(c.step()) * kVocab : 0) + row0;
  for (int i = c.thread; i < n; i += kThreads) to[i] = rank_total(c, n, i) * rms;
}

// Sums of a tile as parts: element e has rows 3 e to 3 e + 2.
__device__ __forceinline__ void store_parts(const Context c, ulonglong2* parts, int part, int rows) {
  const int word = c.p(kElementWord);
  for (int e = c.thread; e * kPartFloats < rows; e += kThreads) {
    float v[kPartFloats];
#pragma unroll
    for (int j = 0; j < kPartFloats; ++j) v[j] = e * kPartFloats + j < rows ? rank_total(c, rows, e * kPartFloats + j) : 0.0f;
    store_part(parts + part_at(first_element(word) + e, part, parts_of(word)), v[0], v[1], v[2], tag_of(c));
  }
}

// The output projection's part of some heads, whose pieces it merges.
__device__ __noinline__ void run_o_part(const Context c) {
  namespace a = o_part;
  const int n = c.p(a::row1) - c.p(a::row0), width = c.p(a::k1) - c.p(a::k0), pieces = c.p(a::pieces);
  Product<kOUnits> product(c, Groups(n), (width + 31) / 32);
  await_mail(c);
  const float* attn = box(c, a::attn) + c.p(a::k0) / kHeadDim * pieces * (kHeadDim + kPartHead);
  Activations<kOUnits> x;
#pragma unroll
  for (int i = 0; i < kOUnits; ++i) {
    float v[8] = {};
    const int k = lane_k(c.warp + i * kWarps, c.lane);
    if (k < width) {
      const float* row = attn + k / kHeadDim * pieces * (kHeadDim + kPartHead);
      float most = kMinusInfinity, total = 0.0f;
      for (int p = 0; p < pieces; ++p) most = fmaxf(most, row[piece_head(p, pieces, kHeadDim)]);
#pragma unroll 4
      for (int p = 0; p < pieces; ++p) {
        const float2 head = *reinterpret_cast<const float2*>(row + piece_head(p, pieces, kHeadDim));
        const float f = exp_fast(head.x - most);
        total = total + f * head.y;
        float x8[8];
        load_8(row + piece_value(p, k % kHeadDim, kHeadDim), x8);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = v[j] + f * x8[j];
      }
      const float scale = 1.0f / total;
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * scale;
    }
    x.set(i, v);
  }
  product.run(c, x);
  store_parts(c, c.at<ulonglong2>(a::out), c.p(a::part), n);
}

__device__ __noinline__ void run_down_part(const Context c) {
  namespace a = down_part;
  const int n = c.p(a::row1) - c.p(a::row0), width = c.p(a::k1) - c.p(a::k0);
  Product<kDownUnits> product(c, Groups(n), (width + 31) / 32);
  await_mail(c);
  const float* act = box(c, a::x) + c.p(a::k0);
  Activations<kDownUnits> x;
#pragma unroll
  for (int i = 0; i < kDownUnits; ++i) {
    float v[8] = {};
    const int k = lane_k(c.warp + i * kWarps, c.lane);
    if (k < width) load_8(act + k, v);
    x.set(i, v);
  }
  product.run(c, x);
  store_parts(c, c.at<ulonglong2>(a::out), c.p(a::part), n);
}

}  // namespace amk
