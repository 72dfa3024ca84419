// What happens to a pair of dot products (output rows 2j and 2j + 1 of a matrix, one activation row) in each projection: rotation
// and KV append, residual addition, SiLU product, logits.  Shared by the exact and the fast matrix product.
#pragma once
#include "common.cuh"
#include "marked.cuh"
#include "tagged.cuh"

namespace amk {

struct Finish {
  enum Kind : int { kRotate, kResidual, kGate, kLogits };
  Kind kind;
  float* out;  // q, h, act or logits: row 0
  int first;   // first row of the tile; kGate: first activation
  int n;       // dot products of the tile
  const float* residual = nullptr;  // kResidual: what is added

  static __device__ __forceinline__ Finish of(const Context c) {
    switch (c.op()) {
      case kQkv: return {kRotate, c.at(qkv::q), c.p(qkv::row0), c.p(qkv::row1) - c.p(qkv::row0)};
      case kGateUp: return {kGate, c.at(gate_up::act), c.p(gate_up::row0), 2 * (c.p(gate_up::row1) - c.p(gate_up::row0))};
      case kLmHead: {
        const int64_t row = c.p(lm_head::ring) == 1 ? int64_t(c.step()) * kRows : 0;
        return {kLogits, c.at(lm_head::logits) + row * kVocab, c.p(lm_head::row0), c.p(lm_head::row1) - c.p(lm_head::row0)};
      }
      case kOProjCombine: {
        namespace a = o_proj_combine;
        return {kResidual, c.at(a::h), c.p(a::row0), c.p(a::row1) - c.p(a::row0), c.at(a::h)};
      }
      default: {
        namespace a = o_proj;  // down_proj has the same parameters in the same places
        return {kResidual, c.at(a::out), c.p(a::row0), c.p(a::row1) - c.p(a::row0), c.at(a::h)};
      }
    }
  }

  // What `apply` needs from memory: cosine and sine, or the residual pair.
  __device__ __forceinline__ float2 prefetch(const Context c, int local, int r) const {
    if (kind == kResidual) {
#if AMK_MARKED
      uint64_t pair[1];
      auto where = [&](int) { return marked_residual(c, local, r); };
      marked_words_start(pair, [](int) { return true; }, where);
      marked_words_rest(c, pair, where);
      return floats_of(pair[0]);
#endif
      if constexpr (kTagged) {
        uint4 v[1];
        poll(c, v, [](int) { return true; }, [&](int) { return tagged_residual(local, r); });
        return floats_of(v[0]);
      }
      return load_shared_f32x2(residual + r * kHidden + first + local);
    }
    if (kind != kRotate) return make_float2(0.0f, 0.0f);
    const int row = first + local, pos = c.p(qkv::pos_var);
    if (row >= kQSize + kKvSize || !c.active(pos, r)) return make_float2(1.0f, 0.0f);
    const int64_t at = int64_t(c.position(pos, r)) * (kHeadDim / 2) + row % kHeadDim / 2;
    return make_float2(load_table(c.at<const float>(qkv::cos) + at), load_table(c.at<const float>(qkv::sin) + at));
  }

  __device__ __forceinline__ const uint2* tagged_residual(int local, int r) const {
    return reinterpret_cast<const uint2*>(residual) + r * kHidden + first + local;
  }
#if AMK_MARKED
  __device__ __forceinline__ const uint32_t* marked_residual(const Context c, int local, int r) const {
    return marked_words(c, const_cast<float*>(residual), kHidden) + marked_float(r, first + local, kRows);
  }
#endif
  __device__ __forceinline__ uint2* tagged_out(int element) const { return reinterpret_cast<uint2*>(out) + element; }

  // Tagged kGate: two activations of neighbouring pairs become one element; `local` is the first pair's.
  __device__ __forceinline__ void store_gates(const Context c, int local, int r, float a, float b) const {
#if AMK_MARKED
    put_pair<kInter>(c, out, r, first + local / 2, pack_bf16(a, b));
#else
    store_element(tagged_out(r * (kInter / 2) + (first + local / 2) / 2), pack_bf16(a, b), tag_of(c));
#endif
  }
  static __device__ __forceinline__ float gate(float a, float b) { return silu(a) * b; }

  __device__ __forceinline__ void apply(const Context c, int local, int r, float a, float b, float2 pre) const {
    if (kind == kRotate) {
      rotate(c, first + local, r, a, b, pre);
    } else if (kind == kGate) {  // rows 2j and 2j + 1 are gate j and up j
      out[r * kInter + first + local / 2] = gate(a, b);
    } else if (kind == kResidual && kTagged) {
#if AMK_MARKED
      put_floats<kHidden>(c, out, r, first + local, pre.x + a, pre.y + b);
#else
      store_floats(tagged_out(r * kHidden + first + local), pre.x + a, pre.y + b, tag_of(c));
#endif
    } else if (kind == kResidual) {
      *reinterpret_cast<float2*>(out + r * kHidden + first + local) = make_float2(pre.x + a, pre.y + b);
    } else {
      float* to = out + int64_t(r) * kVocab + first + local;
      to[0] = a;
      if (local + 1 < n) to[1] = b;
    }
  }

 private:
  static __device__ __forceinline__ float silu(float x) {
    if constexpr (kExact) return silu_f32(x);
    return x * reciprocal_fast(1.0f + exp_fast(-x));
  }
  __device__ __forceinline__ void rotate(const Context c, int row, int r, float a, float b, float2 pre) const {
    const int pos = c.p(qkv::pos_var);
    const bool on = c.active(pos, r);
    if (row < kQSize + kKvSize) {  // products and differences are rounded one by one: no contraction
      const float a_cos = a * pre.x, b_sin = b * pre.y, b_cos = b * pre.x, a_sin = a * pre.y;
      a = a_cos - b_sin;
      b = b_cos + a_sin;
    }
    if constexpr (kTagged) {  // queries, new keys and new values side by side
      store_floats(tagged_out(r * (kQSize + 2 * kKvSize) + row), on ? a : 0.0f, on ? b : 0.0f, tag_of(c));
      if (row < kQSize) return;
    }
    if (row < kQSize) {
      *reinterpret_cast<float2*>(out + r * kQSize + row) = on ? make_float2(a, b) : make_float2(0.0f, 0.0f);
    } else if (on) {
      const bool key = row < kQSize + kKvSize;
      const int64_t kv_row = int64_t(r / kChunk) * c.p(qkv::ctx) + c.position(pos, r);
      Stored* to = c.at<Stored>(key ? qkv::k : qkv::v) + kv_row * kKvSize + (row - kQSize - (key ? 0 : kKvSize));
      store_kv(to, a, b);
    }
  }
};

}  // namespace amk
