// One decode step of SmolLM2-135M's shape as tensor-parallel ranks, a rank being a thread-block cluster. Random bf16 weights, fp32 residual stream,
// bf16 keys and values. A rank owns query heads and a share of the intermediate units.
//   inside a cluster: q, k, v, attention and activations travel by st.async that completes on the receiver's mbarrier
//   between clusters: partial sums of the output and down projections travel through L2 in 16-byte elements {3 floats, tag};
//   CTA i of every cluster sums the i-th slice of the residual, ranks in a fixed tree, and hands it to its cluster
// Two hand-offs through L2 a layer, four or five inside the cluster. Checked against a float64 step on the host.
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a [-DACQUIRE=1] 26-cluster-step.cu
//   step [C=8|16 R= WA=4|8 push= split= cap= slots= evict= trace= check= pos=,..], pieces piece=0..7 [C=8|16], fit, emulate (index maps, on the host)
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <cuda_runtime.h>
#define CK(x)                                                                 \
  do {                                                                        \
    cudaError_t e_ = (x);                                                     \
    if (e_) {                                                                 \
      printf("CUDA error %s at line %d\n", cudaGetErrorString(e_), __LINE__); \
      fflush(stdout);                                                         \
      _exit(1);                                                               \
    }                                                                         \
  } while (0)
#include <unistd.h>
#ifndef ACQUIRE
#define ACQUIRE 0
#endif
#define HD __host__ __device__ __forceinline__

// ---------------------------------------------------------------- shape, weights by hash, index maps (host and device)
constexpr int H = 576, L = 30, NH = 9, NKV = 3, D = 64, I = 1536, V = 49152, MAXPOS = 1280;
constexpr int PAIRB = 2304, OBYTES = 9216, DBYTES = 18432, QPAIRS = 12, NEL = 192;  // two rows of 576 bf16; NEL elements of 3 floats are the residual
constexpr float EPS = 1e-5f;
enum { QKV, OPROJ, GATE, UP, DOWN, EMB };

HD uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  x ^= x >> 16;
  return x;
}
HD float unit(uint32_t h) { return (float)(int)(h >> 8) * (2.0f / 16777216.0f) - 1.0f; }
HD uint16_t tobf(float f) {
  union {
    float f;
    uint32_t u;
  } v;
  v.f = f;
  return (uint16_t)((v.u + 0x7fffU + ((v.u >> 16) & 1U)) >> 16);
}
HD float frombf(uint16_t b) {
  union {
    float f;
    uint32_t u;
  } v;
  v.u = (uint32_t)b << 16;
  return v.f;
}
HD uint16_t weight(int mat, int layer, int row, int col, int cols) {
  uint32_t h = mix((uint32_t)(mat * 64 + layer) * 0x9e3779b9U + mix((uint32_t)row * (uint32_t)cols + (uint32_t)col + 0x1234567U * (uint32_t)mat));
  return tobf(unit(h) * 0.07f);
}
HD float normw(int which, int k) { return frombf(tobf(1.0f + 0.25f * unit(mix((uint32_t)which * 7919U + (uint32_t)k + 99U)))); }
HD uint16_t kvinit(int layer, int g, int pos, int j) {
  uint32_t h = mix((uint32_t)((layer * NKV + g) * MAXPOS + pos) * 128U + (uint32_t)j + 0x51ed2701U);
  return tobf(unit(h) * (j < D ? 2.0f : 1.0f));
}
// K of the kk-th value (0..17) that a lane multiplies in a row of 576: six elements of three floats a lane
HD int pair_k(int lane, int kk) { return ((kk / 3) * 32 + lane) * 3 + kk % 3; }
HD int qkv_row(int li, int w, int sel, int head) {  // pair w of CTA li (of 8): rows i and i + 32 of q, k or v
  int P = li * QPAIRS + w, type = P / 32, i = P % 32 + 32 * sel;
  return type == 0 ? head * D + i : type == 1 ? H + (head / 3) * D + i : H + NKV * D + (head / 3) * D + i;
}
struct Geo {
  int C, R, U;
  HD int nsm() const { return C * R; }
  HD int lpe() const { return 2 * C; }
  HD int el() const { return NEL / C; }
  HD int hc() const { return (V + 2 * U * nsm() - 1) / (2 * U * nsm()); }
};
// one bf16 of the tapes; idx counts bf16 within the chunk
HD uint16_t tape_pair(int idx, int& w, int& lane, int& sel, int& k) {
  w = idx / (PAIRB / 2);
  int r = idx % (PAIRB / 2), W = r / 2, half = r & 1;
  sel = W & 1;
  lane = (W >> 1) & 31;
  k = pair_k(lane, 2 * (W >> 6) + half);
  return 0;
}
HD uint16_t tape_qkv(int layer, int head, int li, int idx) {
  int w, l, s, k;
  tape_pair(idx, w, l, s, k);
  return weight(QKV, layer, qkv_row(li, w, s, head), k, H);
}
HD uint16_t tape_gu(Geo g, int layer, int sm, int idx) {
  int w, l, s, k;
  tape_pair(idx, w, l, s, k);
  int u = sm * g.U + w;
  return u < I ? weight(s ? UP : GATE, layer, u, k, H) : 0;
}
HD int head_row(Geo g, int hc, int sm, int w, int sel) { return ((hc * g.nsm() + sm) * g.U + w) * 2 + sel; }
HD uint16_t tape_head(Geo g, int hc, int sm, int idx) {
  int w, l, s, k;
  tape_pair(idx, w, l, s, k);
  int r = head_row(g, hc, sm, w, s);
  return r < V ? weight(EMB, 0, r, k, H) : 0;
}
HD int o_k(int q, int j) { return 4 * q + j; }  // K within the head, q of 16 lanes, j of 4
HD uint16_t tape_o(int layer, int head, int li, int idx) {
  int j = idx & 3, t = (idx >> 2) % 384, c = (idx >> 2) / 384;
  return weight(OPROJ, layer, li * 72 + (t / 16) * 3 + c, head * D + o_k(t % 16, j), H);
}
HD int down_k(Geo g, int q, int j) { return (j / 4) * g.lpe() * 4 + 4 * q + (j & 3); }  // K within the rank, q of lpe lanes, j of 8
HD uint16_t tape_down(Geo g, int layer, int rank, int i, int idx) {
  int j = idx & 7, t = (idx >> 3) % 384, c = (idx >> 3) / 384, k = down_k(g, t % g.lpe(), j), u = rank * g.C * g.U + k;
  return k < g.C * g.U && u < I ? weight(DOWN, layer, i * (H / g.C) + (t / g.lpe()) * 3 + c, u, I) : 0;
}
struct Chunks {
  long qkv, o, gu, down, layer, total;
  bool att;
};  // byte offsets within a CTA's tape
HD Chunks chunks(Geo g, bool att) {
  Chunks c;
  c.att = att;
  long qb = att ? QPAIRS * PAIRB : 0, ob = att ? OBYTES : 0;
  c.qkv = 0;
  c.o = qb;
  c.gu = qb + ob;
  c.down = c.gu + g.U * PAIRB;
  c.layer = c.down + DBYTES;
  c.total = c.layer * L + (long)g.hc() * g.U * PAIRB;
  return c;
}
HD bool has_head(int C, int rank, int i, int& head) {
  head = rank * (C / 8) + i / 8;
  return head < NH;
}

// ---------------------------------------------------------------- parameters
struct Par {
  const unsigned char* tape;
  long stride;
  const uint16_t* emb;
  const float* norms;
  uint16_t* kv;
  const float2* rope;
  ulonglong2 *obuf, *dbuf, *cand;
  int* tokens;
  float* hidden;
  float* logits;
  unsigned long long* trace;
  unsigned* err;
  int start, steps, first, R, push, split, cap, nslots, evict;
  unsigned epoch;
};
constexpr int NEV = 16;

// ---------------------------------------------------------------- device
__device__ __forceinline__ unsigned s32(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ unsigned mapa(unsigned a, int cta) {
  unsigned r;
  asm("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(r) : "r"(a), "r"(cta));
  return r;
}
__device__ __forceinline__ void sta1(unsigned a, float v, unsigned b) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0],%1,[%2];" ::"r"(a), "r"(__float_as_uint(v)), "r"(b) : "memory");
}
__device__ __forceinline__ void sta4(unsigned a, float x, float y, float z, float w, unsigned b) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(a), "r"(__float_as_uint(x)),
               "r"(__float_as_uint(y)), "r"(__float_as_uint(z)), "r"(__float_as_uint(w)), "r"(b)
               : "memory");
}
__device__ __forceinline__ void expect(unsigned b, unsigned n) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _,[%0],%1;" ::"r"(b), "r"(n) : "memory");
}
__device__ __noinline__ void fail(unsigned* err, unsigned code) {
  err[1] = blockIdx.x;
  err[2] = threadIdx.x;
  err[0] = code;
  __threadfence_system();
  __trap();
}
template <bool CLUSTER>
__device__ __forceinline__ void mwait(unsigned b, unsigned par, unsigned* err, unsigned code) {
  unsigned ok, n = 0;
  do {
    if (CLUSTER && !ACQUIRE)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p,[%1],%2;\nselp.u32 %0,1,0,p;\n}"
                   : "=r"(ok)
                   : "r"(b), "r"(par)
                   : "memory");
    else if (CLUSTER)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p,[%1],%2;\nselp.u32 %0,1,0,p;\n}"
                   : "=r"(ok)
                   : "r"(b), "r"(par)
                   : "memory");
    else
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2;\nselp.u32 %0,1,0,p;\n}"
                   : "=r"(ok)
                   : "r"(b), "r"(par)
                   : "memory");
    if (!ok && ++n > (1u << 20)) fail(err, code);
  } while (!ok);
  // the plain acquire empties L1; here only shared memory is handed over
  if (CLUSTER && !ACQUIRE) asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}
// 128-bit scalar accesses are single-copy atomic (PTX 8.3): the tag and its three floats arrive together
__device__ __forceinline__ ulonglong2 ld128(const ulonglong2* p) {
  ulonglong2 v;
  asm volatile("{\n.reg .b128 q;\nld.relaxed.gpu.global.b128 q,[%2];\nmov.b128 {%0,%1},q;\n}" : "=l"(v.x), "=l"(v.y) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ void st128(ulonglong2* p, float a, float b, float c, unsigned tag) {
  unsigned long long x = (unsigned long long)__float_as_uint(b) << 32 | __float_as_uint(a), y = (unsigned long long)tag << 32 | __float_as_uint(c);
  asm volatile("{\n.reg .b128 q;\nmov.b128 q,{%1,%2};\nst.relaxed.gpu.global.b128 [%0],q;\n}" ::"l"(p), "l"(x), "l"(y) : "memory");
}
__device__ __forceinline__ float lo32(unsigned long long v) { return __uint_as_float((unsigned)v); }
__device__ __forceinline__ float hi32(unsigned long long v) { return __uint_as_float((unsigned)(v >> 32)); }
__device__ __forceinline__ float blo(unsigned u) { return __uint_as_float(u << 16); }
__device__ __forceinline__ float bhi(unsigned u) { return __uint_as_float(u & 0xffff0000u); }
__device__ __forceinline__ float xadd(float v, int o) { return v + __shfl_xor_sync(~0u, v, o); }
__device__ __forceinline__ float ex2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(r) : "f"(x));
  return r;
}
// waits for the element of this lane, then sums the elements of 16 lanes in a fixed tree
__device__ __forceinline__ void poll3(const ulonglong2* p, bool active, unsigned tag, float& a, float& b, float& c, unsigned* err, unsigned code) {
  ulonglong2 v = {0, 0};
  bool ok = !active;
  unsigned n = 0;
  do {
    if (!ok) {
      v = ld128(p);
      ok = (unsigned)(v.y >> 32) == tag;
    }
    if (++n > (1u << 21)) fail(err, code);
  } while (!__all_sync(~0u, ok));
  a = lo32(v.x);
  b = hi32(v.x);
  c = lo32(v.y);
#pragma unroll
  for (int o = 8; o; o >>= 1) {
    a = xadd(a, o);
    b = xadd(b, o);
    c = xadd(c, o);
  }
}
struct Row2 {
  uint2 w[9];
};  // bf16 pairs of two rows
struct Row2f {
  float a[18], b[18];
};
__device__ __forceinline__ void load_pair(const unsigned char* chunk, int w, int lane, Row2& r) {
  const uint2* p = reinterpret_cast<const uint2*>(chunk + w * PAIRB) + lane;
#pragma unroll
  for (int it = 0; it < 9; it++) r.w[it] = p[it * 32];
}
__device__ __forceinline__ void widen(const Row2& r, Row2f& f) {
#pragma unroll
  for (int it = 0; it < 9; it++) {
    f.a[2 * it] = blo(r.w[it].x);
    f.a[2 * it + 1] = bhi(r.w[it].x);
    f.b[2 * it] = blo(r.w[it].y);
    f.b[2 * it + 1] = bhi(r.w[it].y);
  }
}
__device__ __forceinline__ void pin(Row2f& f) {  // the conversion stays before the wait
#pragma unroll
  for (int k = 0; k < 18; k++) {
    asm volatile("" : "+f"(f.a[k]));
    asm volatile("" : "+f"(f.b[k]));
  }
}
// both sums on every lane
__device__ __forceinline__ void reduce2(float& a, float& b, int lane) {
  bool hi = lane & 16;
  float keep = hi ? b : a, give = hi ? a : b;
  keep += __shfl_xor_sync(~0u, give, 16);
#pragma unroll
  for (int o = 8; o; o >>= 1) keep = xadd(keep, o);
  float other = __shfl_xor_sync(~0u, keep, 16);
  a = hi ? other : keep;
  b = hi ? keep : other;
}
__device__ __forceinline__ void dot_pair(const float4* x, int lane, const Row2f& r, float& a, float& b, float& scale) {
  float s = 0;
  a = b = 0;
#pragma unroll
  for (int j = 0; j < 6; j++) {
    float4 v = x[j * 32 + lane];
    s += v.w;
    a = fmaf(r.a[3 * j], v.x, a);
    a = fmaf(r.a[3 * j + 1], v.y, a);
    a = fmaf(r.a[3 * j + 2], v.z, a);
    b = fmaf(r.b[3 * j], v.x, b);
    b = fmaf(r.b[3 * j + 1], v.y, b);
    b = fmaf(r.b[3 * j + 2], v.z, b);
  }
#pragma unroll
  for (int o = 16; o; o >>= 1) s = xadd(s, o);
  reduce2(a, b, lane);
  scale = rsqrtf(s * (1.0f / H) + EPS);
  a *= scale;
  b *= scale;
}
// merges P attention partials {64 values, maximum, sum} for four dims
template <int P>
__device__ __forceinline__ float4 merge(const float (*part)[68], int dim, float& M, float& S) {
  float2 ms[P];
  M = -INFINITY;
  S = 0;
  float4 r = {0, 0, 0, 0};
#pragma unroll
  for (int p = 0; p < P; p++) {
    ms[p] = *reinterpret_cast<const float2*>(&part[p][64]);
    M = fmaxf(M, ms[p].x);
  }
  if (M == -INFINITY) return r;
#pragma unroll
  for (int p = 0; p < P; p++) {
    float f = ex2(ms[p].x - M);
    float4 v = *reinterpret_cast<const float4*>(&part[p][dim]);
    S = fmaf(f, ms[p].y, S);
    r.x = fmaf(f, v.x, r.x);
    r.y = fmaf(f, v.y, r.y);
    r.z = fmaf(f, v.z, r.z);
    r.w = fmaf(f, v.w, r.w);
  }
  return r;
}
struct __align__(128) Misc {
  float4 x1[NEL], x4[NEL];
  float qkv[192];
  float act[256];
  float part[8][68];
  float part3[8][68];
  uint64_t full[8], empty[8], d[5];
  unsigned long long keys[32], ev[NEV];
};

template <int C, int U, int WA, bool TR>
__global__ void __launch_bounds__(((U > 12 ? U : 12) + 1) * 32, 1) step_kernel(const __grid_constant__ Par p) {
  constexpr int NW = U > 12 ? U : 12, E = NEL / C, LPE = 2 * C, RA = 160 / (4 * WA), SLOT = U * PAIRB;
  extern __shared__ __align__(128) unsigned char smem[];
  Misc& m = *reinterpret_cast<Misc*>(smem);
  unsigned char* ring = smem + sizeof(Misc);
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, q16 = lane & 15, R = p.R;
  const int rank = blockIdx.x / C, i = blockIdx.x % C, sub = i / 8, li = i % 8, sm = blockIdx.x;
  int head;
  const bool att = has_head(C, rank, i, head), attc = rank * (C / 8) < NH;
  const Geo g{C, R, U};
  const int HC = g.hc();
  const Chunks ch = chunks(g, att);
  const unsigned bd = s32(m.d);
  if (tid == 0) {
    for (int k = 0; k < 8; k++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(s32(m.full + k)));
      asm volatile("mbarrier.init.shared::cta.b64 [%0],%1;" ::"r"(s32(m.empty + k)), "r"(NW));
    }
    for (int k = 0; k < 5; k++) asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(bd + 8 * k));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    expect(bd, NEL * 16);
    expect(bd + 8, 192 * 4);
    expect(bd + 16, 8 * 272);
    expect(bd + 24, NEL * 16);
    expect(bd + 32, C * U * 4);
  }
  for (int k = tid; k < 256; k += blockDim.x) m.act[k] = 0;
  __syncthreads();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");

  if (warp == NW) {  // loader
    if (lane == 0) {
      unsigned long long pol;
      if (p.evict)
        asm("createpolicy.fractional.L2::evict_first.b64 %0,1.0;" : "=l"(pol));
      else
        asm("createpolicy.fractional.L2::evict_normal.b64 %0,1.0;" : "=l"(pol));
      const unsigned char* tape = p.tape + (long)sm * p.stride;
      int slot = 0, par = 1, cs = 0, cp = 0;
      long n = 0;
      auto put = [&](const unsigned char* src, unsigned bytes) {
        mwait<false>(s32(m.empty + slot), par, p.err, 1);
        if (n >= p.cap) {
          mwait<false>(s32(m.full + cs), cp, p.err, 2);
          if (++cs == p.nslots) {
            cs = 0;
            cp ^= 1;
          }
        }
        unsigned b = s32(m.full + slot);
        expect(b, bytes);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;" ::"r"(
                         s32(ring + (size_t)slot * SLOT)),
                     "l"(src), "r"(bytes), "r"(b), "l"(pol)
                     : "memory");
        n++;
        if (++slot == p.nslots) {
          slot = 0;
          par ^= 1;
        }
      };
      for (int s = 0; s < p.steps; s++) {
        for (int l = 0; l < L; l++) {
          const unsigned char* t = tape + l * ch.layer;
          if (att) {
            put(t + ch.qkv, QPAIRS * PAIRB);
            put(t + ch.o, OBYTES);
          }
          put(t + ch.gu, U * PAIRB);
          put(t + ch.down, DBYTES);
        }
        for (int h = 0; h < HC; h++) put(tape + L * ch.layer + (long)h * U * PAIRB, U * PAIRB);
      }
    }
  } else {
    int slot = 0, fpar = 0;
    unsigned dpar = 0;  // parity bits of the five barriers of the cluster
    auto chunk = [&]() -> const unsigned char* {
      mwait<false>(s32(m.full + slot), fpar, p.err, 3);
      return ring + (size_t)slot * SLOT;
    };
    auto release = [&]() {
      __syncwarp();
      if (lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _,[%0];" ::"r"(s32(m.empty + slot)) : "memory");
      if (++slot == p.nslots) {
        slot = 0;
        fpar ^= 1;
      }
    };
    auto dwait = [&](int k, unsigned bytes) {
      mwait<true>(bd + 8 * k, dpar >> k & 1, p.err, 10 + k);
      dpar ^= 1u << k;
      if (tid == 0) expect(bd + 8 * k, bytes);
    };
    auto bar = [&]() { asm volatile("bar.sync 1,%0;" ::"n"(NW * 32) : "memory"); };
    const int er = tid >> 4, ge = i * E + er;
    const bool red = er < E;  // reduction: 16 lanes an element
    const int t384 = tid < 384 ? tid : 0, eo = t384 >> 4, ed = t384 / LPE, qd = t384 % LPE;
    const bool w12 = warp < 12;
    constexpr unsigned OD = offsetof(Misc, d), off_x1 = offsetof(Misc, x1), off_x4 = offsetof(Misc, x4), off_qkv = offsetof(Misc, qkv),
                       off_act = offsetof(Misc, act), off_p3 = offsetof(Misc, part3);
    const unsigned peer_b = mapa(s32(&m), lane % C), sub_b = mapa(s32(&m), sub * 8 + lane % 8),
                   xp0 = mapa(s32(&m), q16 % C);  // lane q16 of an element sends it to CTA q16
    const unsigned peer_d = peer_b + OD, sub_d = sub_b + OD, xd0 = xp0 + OD;
    const int P = li * QPAIRS + warp, ptype = P / 32, pi = P % 32;  // pair of q, k or v
    const int KVW = (head % 3 == 0 && li == 0);                     // this CTA stores the new key and value
    unsigned tl = 0;
    if (TR && tid == 0)
      for (int k = 0; k < NEV; k++) m.ev[k] = 0;
    auto stamp = [&](int k) {
      if (TR && tid == 0) {
        unsigned c = clock();
        m.ev[k] += c - tl;
        tl = c;
      }
    };
    float r0 = 0, r1 = 0, r2 = 0;
    int token = p.first;
    unsigned tag = p.epoch;
    if (TR) tl = clock();
    for (int s = 0; s < p.steps; s++) {
      const int t = p.start + s, n = p.split ? (t - li + 8) / 8 : t + 1;  // positions of this CTA: li, li + 8, .. or all
      float2 cs = {1.0f, 0.0f};
      if (ptype < 2) cs = p.rope[t * 32 + pi];
      if (red) {
        const uint16_t* e = p.emb + (long)token * H + ge * 3;
        r0 = frombf(e[0]);
        r1 = frombf(e[1]);
        r2 = frombf(e[2]);
      }
      for (int l = 0; l <= L; l++) {
        uint4 kr[RA], vr[RA];
        Row2 w2;
        Row2f w2f;
        float g0 = 0, g1 = 0, g2 = 0;
#pragma unroll
        for (int r = 0; r < RA; r++) kr[r] = vr[r] = make_uint4(0, 0, 0, 0);
        if (red) {
          const float* n = p.norms + 2 * l * H + ge * 3;
          g0 = n[0];
          g1 = n[1];
          g2 = n[2];
        }
        if (l < L && att) {
          const unsigned char* c = chunk();
          load_pair(c, w12 ? warp : 0, lane, w2);
          release();
          if (warp < WA) {
            const uint4* kv = reinterpret_cast<const uint4*>(p.kv + (long)(l * NKV + head / 3) * MAXPOS * 128) + (lane & 7);
#pragma unroll
            for (int r = 0; r < RA; r++) {
              int sl = (r * WA + warp) * 4 + (lane >> 3), pos = p.split ? sl * 8 + li : sl;
              if (pos < t) {
                kr[r] = kv[(long)pos * 16];
                vr[r] = kv[(long)pos * 16 + 8];
              }
            }
          }
        }
        if (l > 0 && red) {
          float a, b, c;
          const ulonglong2* src = p.dbuf + (size_t)(l & 1) * 16 * NEL * 16 + (p.push ? (size_t)rank * NEL * 16 : 0) + ge * 16 + q16;
          poll3(src, q16 < R, tag + l, a, b, c, p.err, 100 + l);
          r0 += a;
          r1 += b;
          r2 += c;
        }
        stamp(0);
        const bool final = l == L;
        if (red && (final || attc)) {
          if (q16 < C)
            sta4(xp0 + (final ? off_x4 : off_x1) + ge * 16, r0 * g0, r1 * g1, r2 * g2, fmaf(r0, r0, fmaf(r1, r1, r2 * r2)), xd0 + (final ? 24 : 0));
          if (final && rank == 0 && q16 == 0) {
            float* h = p.hidden + (long)s * H + ge * 3;
            h[0] = r0;
            h[1] = r1;
            h[2] = r2;
          }
        }
        stamp(1);
        if (final) break;
        if (attc) {
          dwait(0, NEL * 16);
          stamp(2);
          if (att) {
            if (w12) {
              float a, b, sc;
              widen(w2, w2f);
              dot_pair(m.x1, lane, w2f, a, b, sc);
              float ra = a * cs.x - b * cs.y, rb = b * cs.x + a * cs.y;
              if (ptype == 0) {
                ra *= 0.125f * 1.4426950408889634f;
                rb *= 0.125f * 1.4426950408889634f;
              } else {
                ra = frombf(tobf(ra));
                rb = frombf(tobf(rb));
              }
              if (q16 < 8) sta1(sub_b + off_qkv + (ptype * 64 + pi + (lane & 16 ? 32 : 0)) * 4, lane & 16 ? rb : ra, sub_d + 8);
            }
            stamp(3);
            dwait(1, 192 * 4);
            stamp(4);
            if (KVW && tid < 64) {  // bf16 pairs: already rounded
              float2 v = reinterpret_cast<const float2*>(m.qkv + 64)[tid];
              reinterpret_cast<unsigned*>(p.kv + ((long)(l * NKV + head / 3) * MAXPOS + t) * 128)[tid] =
                  __float_as_uint(v.x) >> 16 | (__float_as_uint(v.y) & 0xffff0000u);
            }
            if (warp < WA) {
              float q[8], sc[RA], acc[8], mx = -INFINITY, sum = 0;
              const int d0 = (lane & 7) * 8;
              *reinterpret_cast<float4*>(q) = *reinterpret_cast<const float4*>(m.qkv + d0);
              *reinterpret_cast<float4*>(q + 4) = *reinterpret_cast<const float4*>(m.qkv + d0 + 4);
#pragma unroll
              for (int r = 0; r < RA; r++) {
                sc[r] = -INFINITY;
                if ((r * WA + warp) * 4 < n) {
                  int sl = (r * WA + warp) * 4 + (lane >> 3), pos = p.split ? sl * 8 + li : sl;
                  if (pos == t) {
                    const float* nk = m.qkv + 64 + d0;
                    unsigned u[8];
                    for (int k = 0; k < 4; k++) {
                      u[k] = __float_as_uint(nk[2 * k]) >> 16 | (__float_as_uint(nk[2 * k + 1]) & 0xffff0000u);
                      u[k + 4] = __float_as_uint(nk[64 + 2 * k]) >> 16 | (__float_as_uint(nk[65 + 2 * k]) & 0xffff0000u);
                    }
                    kr[r] = make_uint4(u[0], u[1], u[2], u[3]);
                    vr[r] = make_uint4(u[4], u[5], u[6], u[7]);
                  }
                  float d = blo(kr[r].x) * q[0], e = bhi(kr[r].x) * q[1];
                  d = fmaf(blo(kr[r].y), q[2], d);
                  e = fmaf(bhi(kr[r].y), q[3], e);
                  d = fmaf(blo(kr[r].z), q[4], d);
                  e = fmaf(bhi(kr[r].z), q[5], e);
                  d = fmaf(blo(kr[r].w), q[6], d);
                  e = fmaf(bhi(kr[r].w), q[7], e);
                  d += e;
                  d = xadd(d, 1);
                  d = xadd(d, 2);
                  d = xadd(d, 4);
                  sc[r] = pos <= t ? d : -INFINITY;
                  mx = fmaxf(mx, sc[r]);
                }
              }
              mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 8));
              mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 16));
              const float base = mx == -INFINITY ? 0.0f : mx;
#pragma unroll
              for (int k = 0; k < 8; k++) acc[k] = 0;
#pragma unroll
              for (int r = 0; r < RA; r++)
                if ((r * WA + warp) * 4 < n) {
                  float f = ex2(sc[r] - base);
                  sum += f;
                  acc[0] = fmaf(f, blo(vr[r].x), acc[0]);
                  acc[1] = fmaf(f, bhi(vr[r].x), acc[1]);
                  acc[2] = fmaf(f, blo(vr[r].y), acc[2]);
                  acc[3] = fmaf(f, bhi(vr[r].y), acc[3]);
                  acc[4] = fmaf(f, blo(vr[r].z), acc[4]);
                  acc[5] = fmaf(f, bhi(vr[r].z), acc[5]);
                  acc[6] = fmaf(f, blo(vr[r].w), acc[6]);
                  acc[7] = fmaf(f, bhi(vr[r].w), acc[7]);
                }
              // sums over the four groups of eight lanes: group g keeps dims 2 g and 2 g + 1 of the lane's eight
              const bool h16 = lane & 16, h8 = lane & 8;
              float k4[4], k2[2];
#pragma unroll
              for (int k = 0; k < 4; k++) k4[k] = (h16 ? acc[k + 4] : acc[k]) + __shfl_xor_sync(~0u, h16 ? acc[k] : acc[k + 4], 16);
#pragma unroll
              for (int k = 0; k < 2; k++) k2[k] = (h8 ? k4[k + 2] : k4[k]) + __shfl_xor_sync(~0u, h8 ? k4[k] : k4[k + 2], 8);
              sum = xadd(sum, 8);
              sum = xadd(sum, 16);
              *reinterpret_cast<float2*>(&m.part[warp][d0 + (h16 ? 4 : 0) + (h8 ? 2 : 0)]) = make_float2(k2[0], k2[1]);
              if (lane == 0) *reinterpret_cast<float2*>(&m.part[warp][64]) = make_float2(mx, sum);
            }
            bar();
            stamp(5);
            uint2 ow[3];
            {
              const unsigned char* c = chunk();
              for (int k = 0; k < 3; k++) ow[k] = reinterpret_cast<const uint2*>(c)[k * 384 + t384];
              release();
            }
            float4 av;
            float M, S;
            if (p.split) {
              if (tid < 136) {
                int e = tid >> 3;
                float4 v = merge<WA>(m.part, e < 16 ? e * 4 : 0, M, S);
                if (e == 16) v = make_float4(M, S, 0, 0);
                sta4(sub_b + off_p3 + li * 272 + e * 16, v.x, v.y, v.z, v.w, sub_d + 16);
              }
              dwait(2, 8 * 272);
              av = merge<8>(m.part3, 4 * q16, M, S);
            } else
              av = merge<WA>(m.part, 4 * q16, M, S);
            stamp(6);
            if (w12) {
              float f = 1.0f / S, o[3];
#pragma unroll
              for (int k = 0; k < 3; k++) {
                o[k] = fmaf(blo(ow[k].x), av.x, fmaf(bhi(ow[k].x), av.y, fmaf(blo(ow[k].y), av.z, bhi(ow[k].y) * av.w))) * f;
              }
#pragma unroll
              for (int x = 8; x; x >>= 1) {
                o[0] = xadd(o[0], x);
                o[1] = xadd(o[1], x);
                o[2] = xadd(o[2], x);
              }
              ulonglong2* dst = p.obuf + (size_t)(li * 24 + eo) * 16 + head + (p.push ? (size_t)q16 * NEL * 16 : 0);
              if (p.push ? q16 < R : q16 == 0) st128(dst, o[0], o[1], o[2], tag + l + 1);
            }
            stamp(7);
          }
        }
        if (red) {
          const float* n = p.norms + (2 * l + 1) * H + ge * 3;
          g0 = n[0];
          g1 = n[1];
          g2 = n[2];
        }
        {
          const unsigned char* c = chunk();
          load_pair(c, warp, lane, w2);
          release();
          widen(w2, w2f);
          pin(w2f);
        }
        if (red) {
          float a, b, c;
          const ulonglong2* src = p.obuf + (p.push ? (size_t)rank * NEL * 16 : 0) + ge * 16 + q16;
          poll3(src, q16 < NH, tag + l + 1, a, b, c, p.err, 200 + l);
          r0 += a;
          r1 += b;
          r2 += c;
          stamp(8);
          if (q16 < C) sta4(xp0 + off_x4 + ge * 16, r0 * g0, r1 * g1, r2 * g2, fmaf(r0, r0, fmaf(r1, r1, r2 * r2)), xd0 + 24);
        }
        stamp(9);
        dwait(3, NEL * 16);
        stamp(10);
        {
          float a, b, sc;
          dot_pair(m.x4, lane, w2f, a, b, sc);
          float v = a / (1.0f + __expf(-a)) * b;
          if (lane < C) sta1(peer_b + off_act + (i * U + warp) * 4, v, peer_d + 32);
        }
        stamp(11);
        uint4 dw[3];
        {
          const unsigned char* c = chunk();
          for (int k = 0; k < 3; k++) dw[k] = reinterpret_cast<const uint4*>(c)[k * 384 + t384];
          release();
        }
        dwait(4, C * U * 4);
        stamp(12);
        if (w12) {
          float4 x = *reinterpret_cast<const float4*>(m.act + 4 * qd), y = *reinterpret_cast<const float4*>(m.act + LPE * 4 + 4 * qd);
          float o[3];
#pragma unroll
          for (int k = 0; k < 3; k++) {
            float u = fmaf(blo(dw[k].x), x.x, fmaf(bhi(dw[k].x), x.y, fmaf(blo(dw[k].y), x.z, bhi(dw[k].y) * x.w)));
            o[k] = u + fmaf(blo(dw[k].z), y.x, fmaf(bhi(dw[k].z), y.y, fmaf(blo(dw[k].w), y.z, bhi(dw[k].w) * y.w)));
          }
#pragma unroll
          for (int z = LPE / 2; z; z >>= 1) {
            o[0] = xadd(o[0], z);
            o[1] = xadd(o[1], z);
            o[2] = xadd(o[2], z);
          }
          ulonglong2* dst = p.dbuf + (size_t)((l + 1) & 1) * 16 * NEL * 16 + (size_t)(i * E + ed) * 16 + rank + (p.push ? (size_t)qd * NEL * 16 : 0);
          if (p.push ? qd < R : qd == 0) st128(dst, o[0], o[1], o[2], tag + l + 1);
        }
        stamp(13);
      }
      // head: rows of the vocabulary, then the largest logit of all CTAs
      dwait(3, NEL * 16);
      float xg[18], ss = 0;
#pragma unroll
      for (int j = 0; j < 6; j++) {
        float4 v = m.x4[j * 32 + lane];
        ss += v.w;
        xg[3 * j] = v.x;
        xg[3 * j + 1] = v.y;
        xg[3 * j + 2] = v.z;
      }
#pragma unroll
      for (int o = 16; o; o >>= 1) ss = xadd(ss, o);
      ss = rsqrtf(ss * (1.0f / H) + EPS);
      float best = -INFINITY;
      int bi = 0;
      for (int h = 0; h < HC; h++) {
        const unsigned char* c = chunk();
        float a = 0, b = 0;
        {
          const uint2* wp = reinterpret_cast<const uint2*>(c + warp * PAIRB) + lane;
#pragma unroll
          for (int it = 0; it < 9; it++) {
            uint2 v = wp[it * 32];
            a = fmaf(blo(v.x), xg[2 * it], a);
            a = fmaf(bhi(v.x), xg[2 * it + 1], a);
            b = fmaf(blo(v.y), xg[2 * it], b);
            b = fmaf(bhi(v.y), xg[2 * it + 1], b);
          }
        }
        release();
        {
          reduce2(a, b, lane);
          a *= ss;
          b *= ss;
          int row = head_row(g, h, sm, warp, 0);
          if (row < V) {
            if (a > best) {
              best = a;
              bi = row;
            }
            if (b > best) {
              best = b;
              bi = row + 1;
            }
            if (p.logits && lane == 0) {
              p.logits[row] = a;
              p.logits[row + 1] = b;
            }
          }
        }
      }
      auto key = [](float f, int idx) {
        unsigned u = __float_as_uint(f);
        u = u & 0x80000000u ? ~u : u | 0x80000000u;
        return (unsigned long long)u << 32 | (unsigned)~idx;
      };
      if (lane == 0) m.keys[warp] = key(best, bi);
      bar();
      if (tid == 0) {
        unsigned long long k = 0;
        for (int w = 0; w < (U < NW ? U : NW); w++) k = max(k, m.keys[w]);
        asm volatile("fence.acq_rel.gpu;" ::: "memory");  // the new keys and values become visible with the candidate
        st128(p.cand + (size_t)(s & 1) * 256 + sm, lo32(k), hi32(k), 0.0f, tag + L + 1);
      }
      bar();
      stamp(14);
      {
        unsigned long long k = 0;
        if (tid < g.nsm()) {
          ulonglong2 v;
          unsigned z = 0;
          do {
            v = ld128(p.cand + (size_t)(s & 1) * 256 + tid);
            if (++z > (1u << 21)) fail(p.err, 300);
          } while ((unsigned)(v.y >> 32) != tag + L + 1);
          asm volatile("fence.acq_rel.gpu;" ::: "memory");
          k = v.x;
        }
#pragma unroll
        for (int o = 16; o; o >>= 1) k = max(k, __shfl_xor_sync(~0u, k, o));
        if (lane == 0) m.keys[16 + warp] = k;
        bar();
        for (int w = 0; w < 4; w++) k = max(k, m.keys[16 + w]);
        token = (int)~(unsigned)k;
        if (sm == 0 && tid == 0) p.tokens[s] = token;
      }
      stamp(15);
      tag += L + 2;
    }
    if (TR && tid == 0)
      for (int k = 0; k < NEV; k++) p.trace[sm * NEV + k] = m.ev[k];
  }
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---------------------------------------------------------------- device set-up
__global__ void fill_tape(unsigned char* tape, long stride, Geo g) {
  const int sm = blockIdx.x, rank = sm / g.C, i = sm % g.C, li = i % 8;
  int head;
  bool att = has_head(g.C, rank, i, head);
  Chunks c = chunks(g, att);
  unsigned char* t0 = tape + (long)sm * stride;
  const int l = blockIdx.y;
  if (l < L) {
    unsigned char* t = t0 + l * c.layer;
    auto u16 = [&](long off) { return reinterpret_cast<uint16_t*>(t + off); };
    if (att) {
      for (int x = threadIdx.x; x < QPAIRS * PAIRB / 2; x += blockDim.x) u16(c.qkv)[x] = tape_qkv(l, head, li, x);
      for (int x = threadIdx.x; x < OBYTES / 2; x += blockDim.x) u16(c.o)[x] = tape_o(l, head, li, x);
    }
    for (int x = threadIdx.x; x < g.U * PAIRB / 2; x += blockDim.x) u16(c.gu)[x] = tape_gu(g, l, sm, x);
    for (int x = threadIdx.x; x < DBYTES / 2; x += blockDim.x) u16(c.down)[x] = tape_down(g, l, rank, i, x);
  } else {
    for (int h = 0; h < g.hc(); h++)
      for (int x = threadIdx.x; x < g.U * PAIRB / 2; x += blockDim.x)
        reinterpret_cast<uint16_t*>(t0 + L * c.layer + (long)h * g.U * PAIRB)[x] = tape_head(g, h, sm, x);
  }
}
__global__ void fill_emb(uint16_t* e) {
  for (long x = blockIdx.x * (long)blockDim.x + threadIdx.x; x < (long)V * H; x += (long)gridDim.x * blockDim.x)
    e[x] = weight(EMB, 0, (int)(x / H), (int)(x % H), H);
}
__global__ void fill_kv(uint16_t* kv, int upto) {
  for (long x = blockIdx.x * (long)blockDim.x + threadIdx.x; x < (long)L * NKV * MAXPOS * 128; x += (long)gridDim.x * blockDim.x) {
    int j = x % 128, pos = x / 128 % MAXPOS, lg = (int)(x / 128 / MAXPOS);
    kv[x] = pos < upto ? kvinit(lg / NKV, lg % NKV, pos, j) : 0x7fc0;  // NaN where nothing was written
  }
}

// ---------------------------------------------------------------- host reference in float64
struct Ref {
  std::vector<float> qkv, o, gate, up, down, emb;
  std::vector<double> kv;
  int nth = std::max(1u, std::thread::hardware_concurrency());
  template <class F>
  void par(long n, F f) {
    std::vector<std::thread> t;
    for (int k = 0; k < nth; k++)
      t.emplace_back([=, &f] {
        for (long x = n * k / nth; x < n * (k + 1) / nth; x++) f(x);
      });
    for (auto& x : t) x.join();
  }
  void build(int layers, bool head) {
    auto fill = [&](std::vector<float>& v, int mat, int nl, int rows, int cols) {
      v.resize((size_t)nl * rows * cols);
      par((long)nl * rows, [&](long r) {
        for (int c = 0; c < cols; c++) v[r * cols + c] = frombf(weight(mat, r / rows, r % rows, c, cols));
      });
    };
    fill(qkv, QKV, layers, 960, H);
    fill(o, OPROJ, layers, H, H);
    fill(gate, GATE, layers, I, H);
    fill(up, UP, layers, I, H);
    fill(down, DOWN, layers, H, I);
    if (head) fill(emb, EMB, 1, V, H);
  }
  void initkv(int upto) {
    kv.assign((size_t)L * NKV * MAXPOS * 128, 0);
    for (int l = 0; l < L; l++)
      for (int g = 0; g < NKV; g++)
        for (int t = 0; t < upto; t++)
          for (int j = 0; j < 128; j++) kv[(((size_t)l * NKV + g) * MAXPOS + t) * 128 + j] = frombf(kvinit(l, g, t, j));
  }
  std::vector<double> mv(const float* w, int rows, int cols, const std::vector<double>& x) {
    std::vector<double> y(rows);
    par(rows, [&](long r) {
      double s = 0;
      for (int c = 0; c < cols; c++) s += (double)w[r * cols + c] * x[c];
      y[r] = s;
    });
    return y;
  }
  static std::vector<double> norm(const std::vector<double>& x, int which) {
    double s = 0;
    for (double v : x) s += v * v;
    s = 1 / std::sqrt(s / H + (double)EPS);
    std::vector<double> y(H);
    for (int k = 0; k < H; k++) y[k] = x[k] * s * normw(which, k);
    return y;
  }
  std::vector<double> step(int token, int t, int layers, const std::vector<float2>& rope, std::vector<double>* logits) {
    std::vector<double> x(H);
    for (int k = 0; k < H; k++) x[k] = frombf(weight(EMB, 0, token, k, H));
    for (int l = 0; l < layers; l++) {
      auto q = mv(&qkv[(size_t)l * 960 * H], 960, H, norm(x, 2 * l));
      for (int hd = 0; hd < NH + NKV; hd++)
        for (int k = 0; k < 32; k++) {
          double a = q[hd * D + k], b = q[hd * D + k + 32], c = rope[t * 32 + k].x, s = rope[t * 32 + k].y;
          q[hd * D + k] = a * c - b * s;
          q[hd * D + k + 32] = b * c + a * s;
        }
      for (int gk = 0; gk < NKV; gk++)
        for (int k = 0; k < D; k++) {
          double* p = &kv[(((size_t)l * NKV + gk) * MAXPOS + t) * 128];
          p[k] = frombf(tobf((float)q[H + gk * D + k]));
          p[D + k] = frombf(tobf((float)q[H + NKV * D + gk * D + k]));
        }
      std::vector<double> at(H, 0.0);
      for (int hd = 0; hd < NH; hd++) {
        std::vector<double> sc(t + 1);
        double mx = -1e300, sum = 0;
        const double* base = &kv[(((size_t)l * NKV + hd / 3) * MAXPOS) * 128];
        for (int u = 0; u <= t; u++) {
          double d = 0;
          for (int k = 0; k < D; k++) d += q[hd * D + k] * base[u * 128 + k];
          sc[u] = d / 8;
          mx = std::max(mx, sc[u]);
        }
        for (int u = 0; u <= t; u++) {
          sc[u] = std::exp(sc[u] - mx);
          sum += sc[u];
        }
        for (int u = 0; u <= t; u++)
          for (int k = 0; k < D; k++) at[hd * D + k] += sc[u] / sum * base[u * 128 + D + k];
      }
      auto ov = mv(&o[(size_t)l * H * H], H, H, at);
      for (int k = 0; k < H; k++) x[k] += ov[k];
      auto nx = norm(x, 2 * l + 1), gv = mv(&gate[(size_t)l * I * H], I, H, nx), uv = mv(&up[(size_t)l * I * H], I, H, nx);
      for (int k = 0; k < I; k++) gv[k] = gv[k] / (1 + std::exp(-gv[k])) * uv[k];
      auto dv = mv(&down[(size_t)l * H * I], H, I, gv);
      for (int k = 0; k < H; k++) x[k] += dv[k];
    }
    if (logits) *logits = mv(emb.data(), V, H, norm(x, 2 * L));
    return x;
  }
};
static std::vector<float2> rope_table() {
  std::vector<float2> r((size_t)MAXPOS * 32);
  for (int t = 0; t < MAXPOS; t++)
    for (int k = 0; k < 32; k++) {
      double a = t * std::pow(10000.0, -2.0 * k / 64);
      r[t * 32 + k] = make_float2((float)std::cos(a), (float)std::sin(a));
    }
  return r;
}

// ---------------------------------------------------------------- emulation on the host: the same maps, ranks and slices, no device
static int emulate(Geo g, int layers) {
  Ref ref;
  ref.build(layers, false);
  auto rope = rope_table();
  const int t0 = 16;
  ref.initkv(t0);
  std::vector<double> kv = ref.kv;
  double worst = 0;
  for (int s = 0; s < 2; s++) {
    int t = t0 + s, token = 1234 + s;
    auto want = ref.step(token, t, layers, rope, nullptr);
    std::vector<double> x(H);
    for (int k = 0; k < H; k++) x[k] = frombf(weight(EMB, 0, token, k, H));
    for (int l = 0; l < layers; l++) {
      auto pairs = [&](const std::function<uint16_t(int)>& tape, int np, int which) {
        double ss = 0;
        for (double v : x) ss += v * v;
        double sc = 1 / std::sqrt(ss / H + (double)EPS);
        std::vector<double> out(np * 2);
        for (int w = 0; w < np; w++)
          for (int lane = 0; lane < 32; lane++)
            for (int it = 0; it < 9; it++)
              for (int sel = 0; sel < 2; sel++)
                for (int half = 0; half < 2; half++) {
                  int kk = 2 * it + half, el = (kk / 3) * 32 + lane, k = el * 3 + kk % 3;
                  out[2 * w + sel] += frombf(tape(w * (PAIRB / 2) + ((it * 32 + lane) * 2 + sel) * 2 + half)) * normw(which, k) * x[k] * sc;
                }
        return out;
      };
      std::vector<double> opart(H, 0.0), dpart(H, 0.0);
      for (int rank = 0; rank < g.R; rank++)
        for (int sub = 0; sub < g.C / 8; sub++) {
          int head;
          if (!has_head(g.C, rank, sub * 8, head)) continue;
          double qkv[192];
          for (int li = 0; li < 8; li++) {
            auto v = pairs([&](int x) { return tape_qkv(l, head, li, x); }, QPAIRS, 2 * l);
            for (int w = 0; w < QPAIRS; w++) {
              int P = li * QPAIRS + w, ty = P / 32, pi = P % 32;
              double a = v[2 * w], b = v[2 * w + 1], c = 1, sn = 0;
              if (ty < 2) {
                c = rope[t * 32 + pi].x;
                sn = rope[t * 32 + pi].y;
              }
              double ra = a * c - b * sn, rb = b * c + a * sn;
              if (ty) {
                ra = frombf(tobf((float)ra));
                rb = frombf(tobf((float)rb));
              }
              qkv[ty * 64 + pi] = ra;
              qkv[ty * 64 + pi + 32] = rb;
            }
          }
          double* base = &kv[(((size_t)l * NKV + head / 3) * MAXPOS) * 128];
          for (int k = 0; k < 128; k++) base[t * 128 + k] = qkv[64 + k];
          double sum = 0, at[64] = {};
          for (int u = 0; u <= t; u++) {
            double d = 0;
            for (int k = 0; k < D; k++) d += qkv[k] * base[u * 128 + k];
            d = std::exp(d / 8);
            sum += d;
            for (int k = 0; k < D; k++) at[k] += d * base[u * 128 + D + k];
          }
          for (int li = 0; li < 8; li++)
            for (int th = 0; th < 384; th++)
              for (int c = 0; c < 3; c++)
                for (int j = 0; j < 4; j++)
                  opart[(li * 24 + th / 16) * 3 + c] += frombf(tape_o(l, head, li, (c * 384 + th) * 4 + j)) * at[o_k(th % 16, j)] / sum;
        }
      for (int k = 0; k < H; k++) x[k] += opart[k];
      for (int rank = 0; rank < g.R; rank++) {
        std::vector<double> act(256, 0.0);
        for (int i = 0; i < g.C; i++) {
          auto v = pairs([&](int x) { return tape_gu(g, l, rank * g.C + i, x); }, g.U, 2 * l + 1);
          for (int w = 0; w < g.U; w++) act[i * g.U + w] = v[2 * w] / (1 + std::exp(-v[2 * w])) * v[2 * w + 1];
        }
        for (int i = 0; i < g.C; i++)
          for (int th = 0; th < 384; th++)
            for (int c = 0; c < 3; c++)
              for (int j = 0; j < 8; j++)
                dpart[(i * g.el() + th / g.lpe()) * 3 + c] +=
                    frombf(tape_down(g, l, rank, i, (c * 384 + th) * 8 + j)) * act[(j / 4) * g.lpe() * 4 + 4 * (th % g.lpe()) + (j & 3)];
      }
      for (int k = 0; k < H; k++) x[k] += dpart[k];
    }
    for (int k = 0; k < H; k++) worst = std::max(worst, std::fabs(x[k] - want[k]) / (1 + std::fabs(want[k])));
  }
  std::vector<char> seen(V, 0);
  for (int h = 0; h < g.hc(); h++)
    for (int sm = 0; sm < g.nsm(); sm++)
      for (int w = 0; w < g.U; w++)
        for (int s = 0; s < 2; s++) {
          int r = head_row(g, h, sm, w, s);
          if (r < V) {
            if (seen[r]) return printf("row %d twice\n", r), 1;
            seen[r] = 1;
          }
        }
  for (char c : seen)
    if (!c) return printf("a row of the vocabulary is missing\n"), 1;
  printf("emulation C=%d R=%d U=%d: largest relative difference %.2e\n", g.C, g.R, g.U, worst);
  return worst > 1e-6;
}

// ---------------------------------------------------------------- pieces: what one hand-off costs
// KIND 0: 24/12 elements of 16 bytes an SM to every CTA of the cluster; 1: two floats a warp to 8 CTAs; 2: one float a warp to all CTAs; 3:
// barrier.cluster; 4: partial sums through L2 (16 lanes an element); 5: the same into a mailbox of each cluster; 6: L2 then DSMEM; 7: every CTA polls
// all 192 elements of all ranks
template <int C, int KIND>
__global__ void __launch_bounds__(416, 1) piece(ulonglong2* buf, int R, int n, unsigned epoch, float* out, unsigned* err) {
  extern __shared__ __align__(128) unsigned char smem[];
  Misc& m = *reinterpret_cast<Misc*>(smem);
  constexpr int E = NEL / C;
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, q16 = lane & 15, rank = blockIdx.x / C, i = blockIdx.x % C, er = tid >> 4,
            ge = i * E + er;
  const bool red = er < E;
  const unsigned bd = s32(m.d);
  constexpr unsigned BY = KIND == 0 || KIND == 6 ? NEL * 16 : KIND == 1 ? 8 * 24 * 4 : C * 13 * 4;
  if (tid == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(bd));
    asm volatile("mbarrier.init.shared::cta.b64 [%0],1;" ::"r"(bd + 8));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    expect(bd, BY);
    expect(bd + 8, BY);
  }
  __syncthreads();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  float acc = 1.0f + tid;
  const unsigned xd = mapa(bd, q16 % C), xb = mapa(s32(&m), q16 % C), ld = mapa(bd, lane % C), lb = mapa(s32(&m), lane % C),
                 sd = mapa(bd, (i & ~7) + lane % 8), sb = mapa(s32(&m), (i & ~7) + lane % 8);
  const unsigned ox = s32(m.x1) - s32(&m), oq = s32(m.qkv) - s32(&m), oa = s32(m.act) - s32(&m);
  for (int it = 0; it < n; it++) {
    const unsigned tag = epoch + it + 1, o8 = 8 * (it & 1);
    ulonglong2* b = buf + (size_t)(it & 1) * 16 * NEL * 16;
    if (KIND == 3) {
      asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
      continue;
    }
    float a0 = acc, a1 = acc, a2 = acc;
    if (KIND >= 4) {
      if (red && (KIND == 5 ? q16 < R : q16 == 0)) st128(b + (KIND == 5 ? (size_t)q16 * NEL * 16 : 0) + ge * 16 + rank, acc, acc, acc, tag);
      if (KIND == 7) {
        acc = 0;
        for (int k = tid; k < NEL * 16; k += 384)
          if (tid < 384) {
            poll3(b + k, q16 < R, tag, a0, a1, a2, err, 400);
            acc += a0 * 1e-3f;
          }
        asm volatile("bar.sync 1,416;" ::: "memory");
      } else if (red) {
        poll3(b + (KIND == 5 ? (size_t)rank * NEL * 16 : 0) + ge * 16 + q16, q16 < R, tag, a0, a1, a2, err, 401);
        acc = a0 * 1e-3f;
      }
      if (KIND == 4 || KIND == 5) asm volatile("bar.sync 1,416;" ::: "memory");
    }
    if (KIND == 0 || KIND == 6) {
      if (red && q16 < C) sta4(xb + ox + ge * 16, a0, a1, a2, acc, xd + o8);
    }
    if (KIND == 1 && warp < 12 && q16 < 8) sta1(sb + oq + ((i % 8) * 24 + warp * 2 + (lane >> 4)) * 4, acc, sd + o8);
    if (KIND == 2 && lane < C) sta1(lb + oa + (i * 13 + warp) * 4, acc, ld + o8);
    if (KIND < 3 || KIND == 6) {
      mwait<true>(bd + o8, it >> 1 & 1, err, 402);
      if (tid == 0) expect(bd + o8, BY);
      acc = KIND == 0 || KIND == 6 ? m.x1[tid % NEL].x * 1e-3f : KIND == 1 ? m.qkv[tid % 192] * 1e-3f : m.act[tid % (13 * 8)] * 1e-3f;
      if (KIND < 3) asm volatile("bar.sync 1,416;" ::: "memory");
    }
  }
  if (acc == 123.456f) *out = acc;
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---------------------------------------------------------------- host
template <class K>
static int fit(K k, int C, int threads, size_t sh) {
  CK(cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sh));
  if (C > 8) CK(cudaFuncSetAttribute(k, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(C);
  c.blockDim = dim3(threads);
  c.dynamicSmemBytes = sh;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeClusterDimension;
  a[0].val.clusterDim.x = C;
  a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
  c.attrs = a;
  c.numAttrs = 1;
  int n = 0;
  CK(cudaOccupancyMaxActiveClusters(&n, k, &c));
  return n;
}
template <class K, class... A>
static cudaError_t launch(K k, int C, int R, int threads, size_t sh, A... args) {
  cudaLaunchConfig_t c = {};
  c.gridDim = dim3(C * R);
  c.blockDim = dim3(threads);
  c.dynamicSmemBytes = sh;
  cudaLaunchAttribute a[1];
  a[0].id = cudaLaunchAttributeClusterDimension;
  a[0].val.clusterDim.x = C;
  a[0].val.clusterDim.y = a[0].val.clusterDim.z = 1;
  c.attrs = a;
  c.numAttrs = 1;
  return cudaLaunchKernelEx(&c, k, args...);
}
static unsigned *herr, *derr;
static void sync_or_die(const char* what) {
  cudaError_t e = cudaDeviceSynchronize();
  if (e) {
    printf("FAILED %s: %s, code %u (1-3 ring, 10-14 cluster barrier, 100+layer down, 200+layer o, 300 token, 400 piece) CTA %u thread %u\n", what,
           cudaGetErrorString(e), herr[0], herr[1], herr[2]);
    fflush(stdout);
    _exit(2);
  }
}
struct Opt {
  int C = 8, R = 0, WA = 8, push = 0, split = 0, cap = 2, nslots = 6, evict = 1, trace = 0, check = 4, reps = 7;
  std::vector<int> pos{16, 128};
};

template <int C, int KIND>
static void piece_run(const char* name, int want) {
  size_t sh = 181 * 1024;
  int R = std::min(fit(piece<C, KIND>, C, 416, sh), std::min(16, want ? want : 16));
  ulonglong2* buf;
  size_t bytes = (size_t)2 * 16 * NEL * 16 * 16;
  CK(cudaMalloc(&buf, bytes));
  CK(cudaMemset(buf, 0, bytes));
  float* o;
  CK(cudaMalloc(&o, 4));
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  std::vector<float> t;
  int n = 2000;
  unsigned ep = 0;
  for (int r = 0; r < 5; r++) {
    cudaEventRecord(a);
    CK(launch(piece<C, KIND>, C, R, 416, sh, buf, R, n, ep, o, derr));
    cudaEventRecord(b);
    sync_or_die(name);
    ep += n;
    float ms;
    cudaEventElapsedTime(&ms, a, b);
    t.push_back(ms);
  }
  std::sort(t.begin(), t.end());
  printf("piece C=%2d R=%2d %-70s %.3f us\n", C, R, name, t[2] * 1e3 / n);
  fflush(stdout);
  cudaFree(buf);
  cudaFree(o);
}
template <int C>
static void pieces(int which) {
  switch (which) {
    case 0:
      piece_run<C, 0>("16-byte elements of the residual to every CTA (3 KiB received)", 0);
      break;
    case 1:
      piece_run<C, 1>("two floats a warp to 8 CTAs (768 B received)", 0);
      break;
    case 2:
      piece_run<C, 2>("a float a warp to every CTA", 0);
      break;
    case 3:
      piece_run<C, 3>("barrier.cluster", 0);
      break;
    case 4:
      piece_run<C, 4>("partial sums of R ranks through L2, own slice only", 0);
      break;
    case 5:
      piece_run<C, 5>("the same, a mailbox for each cluster", 0);
      break;
    case 6:
      piece_run<C, 6>("partial sums through L2, then the slice to every CTA", 0);
      break;
    case 7:
      piece_run<C, 7>("partial sums through L2, every CTA polls everything", 0);
      break;
  }
}

template <int C, int U, int WA, bool TR>
static int run(const Opt& o) {
  auto k = step_kernel<C, U, WA, TR>;
  constexpr int NW = U > 12 ? U : 12, threads = (NW + 1) * 32;
  size_t sh = sizeof(Misc) + (size_t)o.nslots * U * PAIRB;
  cudaFuncAttributes fa;
  CK(cudaFuncGetAttributes(&fa, k));
  int mx = fit(k, C, threads, sh);
  const int R = o.R ? o.R : std::min(mx, 16);
  printf("C=%d U=%d WA=%d: %zu bytes of shared memory, %d registers, %zu bytes local, %d clusters fit, %d used\n", C, U, WA, sh, fa.numRegs,
         fa.localSizeBytes, mx, R);
  fflush(stdout);
  if (R > mx || R * C * U < I || R > 16 || (C == 8 && R < 9) || (C == 16 && R < 5) || C * U > (C == 8 ? 128 : 256)) {
    printf("SKIPPED: does not fit\n");
    return 0;
  }
  Geo g{C, R, U};
  long stride = (std::max(chunks(g, true).total, chunks(g, false).total) + 127) / 128 * 128;
  Par p = {};
  unsigned char* tape;
  CK(cudaMalloc(&tape, stride * g.nsm()));
  fill_tape<<<dim3(g.nsm(), L + 1), 512>>>(tape, stride, g);
  uint16_t *emb, *kv;
  CK(cudaMalloc(&emb, (size_t)V * H * 2));
  fill_emb<<<1024, 256>>>(emb);
  size_t kvb = (size_t)L * NKV * MAXPOS * 256;
  CK(cudaMalloc(&kv, kvb));
  std::vector<float> fn((size_t)(2 * L + 1) * H);
  for (size_t x = 0; x < fn.size(); x++) fn[x] = normw((int)(x / H), (int)(x % H));
  float* dfn;
  CK(cudaMalloc(&dfn, fn.size() * 4));
  CK(cudaMemcpy(dfn, fn.data(), fn.size() * 4, cudaMemcpyHostToDevice));
  auto rope = rope_table();
  float2* dr;
  CK(cudaMalloc(&dr, rope.size() * 8));
  CK(cudaMemcpy(dr, rope.data(), rope.size() * 8, cudaMemcpyHostToDevice));
  size_t ob = (size_t)16 * NEL * 16 * 16;
  ulonglong2 *obuf, *dbuf, *cand;
  CK(cudaMalloc(&obuf, ob));
  CK(cudaMalloc(&dbuf, 2 * ob));
  CK(cudaMalloc(&cand, 512 * 16));
  CK(cudaMemset(obuf, 0, ob));
  CK(cudaMemset(dbuf, 0, 2 * ob));
  CK(cudaMemset(cand, 0, 512 * 16));
  int* tok;
  float *hid, *lg;
  CK(cudaMalloc(&tok, 64 * 4));
  CK(cudaMalloc(&hid, 64 * H * 4));
  CK(cudaMalloc(&lg, V * 4));
  unsigned long long* tr;
  CK(cudaMalloc(&tr, 256 * NEV * 8));
  CK(cudaMemset(tr, 0, 256 * NEV * 8));
  p.tape = tape;
  p.stride = stride;
  p.emb = emb;
  p.norms = dfn;
  p.kv = kv;
  p.rope = dr;
  p.obuf = obuf;
  p.dbuf = dbuf;
  p.cand = cand;
  p.tokens = tok;
  p.hidden = hid;
  p.trace = tr;
  p.err = derr;
  p.first = 1234;
  p.R = R;
  p.push = o.push;
  p.cap = o.cap;
  p.nslots = o.nslots;
  p.evict = o.evict;
  p.epoch = 0;
  cudaEvent_t a, b;
  cudaEventCreate(&a);
  cudaEventCreate(&b);
  Ref ref;
  if (o.check) ref.build(L, true);
  int bad = 0;
  for (int pos : o.pos) {
    const bool split = o.split || pos + 32 > 160;
    p.split = split;
    if (pos + 32 > MAXPOS) {
      printf("pos %d: too far\n", pos);
      continue;
    }
    p.start = pos;
    fill_kv<<<1024, 256>>>(kv, pos);
    sync_or_die("fill");
    double worst = 0, worstl = 0;
    int same = 0;
    std::vector<float> h1;
    if (o.check) {
      p.steps = o.check;
      p.logits = lg;
      CK(launch(k, C, R, threads, sh, p));
      sync_or_die("check");
      p.epoch += (L + 2) * p.steps;
      p.logits = nullptr;
      std::vector<int> ht(o.check);
      std::vector<float> hh(o.check * H), hl(V);
      CK(cudaMemcpy(ht.data(), tok, o.check * 4, cudaMemcpyDeviceToHost));
      CK(cudaMemcpy(hh.data(), hid, hh.size() * 4, cudaMemcpyDeviceToHost));
      CK(cudaMemcpy(hl.data(), lg, V * 4, cudaMemcpyDeviceToHost));
      h1 = hh;
      ref.initkv(pos);
      int token = p.first;
      std::vector<double> rl;
      for (int s = 0; s < o.check; s++) {
        auto x = ref.step(token, pos + s, L, rope, &rl);
        double n2 = 0, d2 = 0;
        for (int c = 0; c < H; c++) {
          n2 += x[c] * x[c];
          d2 += (x[c] - hh[s * H + c]) * (x[c] - hh[s * H + c]);
        }
        worst = std::max(worst, std::sqrt(d2 / n2));
        if (!(d2 == d2)) worst = 1e9;
        int am = std::max_element(rl.begin(), rl.end()) - rl.begin();
        same += am == ht[s];
        token = ht[s];
        if (token < 0 || token >= V) {
          printf("bad token %d\n", token);
          token = 0;
          bad = 1;
        }
      }
      double mxl = 0;
      for (int v = 0; v < V; v++) mxl = std::max(mxl, std::fabs(rl[v]));
      for (int v = 0; v < V; v++) worstl = std::max(worstl, std::fabs(rl[v] - hl[v]) / mxl);
      if (worst > 2e-3 || worstl > 2e-3 || same < o.check) bad = 1;
    }
    p.steps = 32;
    std::vector<float> t;
    std::vector<float> hA(32 * H), hB(32 * H);
    bool bits = true;
    for (int r = 0; r < o.reps + 1; r++) {
      CK(cudaMemset(tr, 0, 256 * NEV * 8));
      cudaEventRecord(a);
      CK(launch(k, C, R, threads, sh, p));
      cudaEventRecord(b);
      sync_or_die("timing");
      p.epoch += (L + 2) * p.steps;
      float ms;
      cudaEventElapsedTime(&ms, a, b);
      if (r) t.push_back(ms * 1e3f / 32);
      CK(cudaMemcpy(r ? hB.data() : hA.data(), hid, 32 * H * 4, cudaMemcpyDeviceToHost));
      if (r && memcmp(hA.data(), hB.data(), 32 * H * 4)) bits = false;
    }
    if (o.check && memcmp(h1.data(), hA.data(), h1.size() * 4)) bits = false;
    std::sort(t.begin(), t.end());
    printf(
        "RESULT C=%d R=%d U=%d WA=%d push=%d split=%d cap=%d slots=%d evict=%d%s pos=%d: %.1f us a token (least %.1f, most %.1f), hidden error %.1e, "
        "logit error %.1e, tokens %d of %d, repeats %s\n",
        C, R, U, WA, o.push, (int)split, o.cap, o.nslots, o.evict, TR ? " traced" : "", pos, t[t.size() / 2], t[0], t.back(), worst, worstl, same,
        o.check, bits ? "equal" : "DIFFER");
    fflush(stdout);
    if (!bits) bad = 1;
    if (TR) {
      std::vector<unsigned long long> ht(256 * NEV);
      CK(cudaMemcpy(ht.data(), tr, ht.size() * 8, cudaMemcpyDeviceToHost));
      const char* nm[NEV] = {"down partials (L2)",
                             "reduce, send x",
                             "wait x",
                             "qkv, send",
                             "wait qkv",
                             "attention to barrier",
                             "merge (and split)",
                             "o, store",
                             "o partials (L2)",
                             "send x",
                             "wait x",
                             "gate/up, send",
                             "wait act",
                             "down, store",
                             "head",
                             "token"};
      int mhz;
      cudaDeviceGetAttribute(&mhz, cudaDevAttrClockRate, 0);
      double f = 1000.0 / mhz;  // us a cycle; the attribute is in kHz
      printf("  trace of warp 0, us a layer (head, token: a step), attention CTAs | other CTAs:\n");
      for (int e = 0; e < NEV; e++) {
        double sa = 0, sb = 0;
        int na = 0, nb = 0;
        for (int x = 0; x < g.nsm(); x++) {
          int hd;
          if (has_head(C, x / C, x % C, hd)) {
            sa += ht[x * NEV + e];
            na++;
          } else {
            sb += ht[x * NEV + e];
            nb++;
          }
        }
        double den = 32.0 * (e < 14 ? L : 1);
        printf("    %-22s %.3f | %.3f\n", nm[e], sa / std::max(na, 1) / den * f, sb / std::max(nb, 1) / den * f);
      }
      fflush(stdout);
    }
  }
  if (bad) printf("WRONG\n");
  return bad;
}
template <int C, int U>
static int run2(const Opt& o) {
  if constexpr (C == 8 && U == 13)
    if (o.WA == 4) return o.trace ? run<C, U, 4, true>(o) : run<C, U, 4, false>(o);
  return o.trace ? run<C, U, 8, true>(o) : run<C, U, 8, false>(o);
}
int main(int argc, char** argv) {
  Opt o;
  std::string mode = argc > 1 ? argv[1] : "step";
  int U = 0, which = -1;
  for (int k = 2; k < argc; k++) {
    std::string s = argv[k];
    size_t e = s.find('=');
    std::string key = s.substr(0, e), val = s.substr(e + 1);
    int v = atoi(val.c_str());
    if (key == "C")
      o.C = v;
    else if (key == "R")
      o.R = v;
    else if (key == "U")
      U = v;
    else if (key == "WA")
      o.WA = v;
    else if (key == "push")
      o.push = v;
    else if (key == "split")
      o.split = v;
    else if (key == "cap")
      o.cap = v;
    else if (key == "slots")
      o.nslots = v;
    else if (key == "evict")
      o.evict = v;
    else if (key == "trace")
      o.trace = v;
    else if (key == "check")
      o.check = v;
    else if (key == "reps")
      o.reps = v;
    else if (key == "piece")
      which = v;
    else if (key == "pos") {
      o.pos.clear();
      for (const char* c = val.c_str(); c; c = strchr(c, ',') ? strchr(c, ',') + 1 : nullptr) o.pos.push_back(atoi(c));
    } else {
      printf("unknown option %s\n", key.c_str());
      return 1;
    }
  }
  if (mode == "emulate")
    return emulate({8, 15, 13}, 2) | emulate({8, 16, 12}, 2) | emulate({8, 14, 14}, 1) | emulate({16, 7, 14}, 2) | emulate({16, 8, 12}, 1);
  CK(cudaHostAlloc(&herr, 64, cudaHostAllocMapped));
  memset(herr, 0, 64);
  CK(cudaHostGetDevicePointer(&derr, herr, 0));
  if (mode == "pieces") {
    if (o.C == 16)
      pieces<16>(which);
    else
      pieces<8>(which);
    return 0;
  }
  if (mode == "fit") {
    for (int kb : {20, 64, 100, 128, 160, 181, 200, 220}) {
      size_t sh = kb * 1024;
      printf("shared memory %3d KiB, 448 threads: clusters of 8: %d, of 16: %d\n", kb, fit(step_kernel<8, 13, 8, false>, 8, 448, sh),
             fit(step_kernel<16, 14, 8, false>, 16, 480, sh));
    }
    return 0;
  }
  if (o.C == 8) {
    int r = o.R ? o.R : std::min(16, fit(step_kernel<8, 13, 8, false>, 8, 448, 181 * 1024));
    o.R = r;
    if (!U) U = (I + r * 8 - 1) / (r * 8);
    if (U == 12) return run2<8, 12>(o);
    if (U == 13) return run2<8, 13>(o);
    if (U == 14) return run2<8, 14>(o);
  }
  if (o.C == 16) {
    int r = o.R ? o.R : std::min(16, fit(step_kernel<16, 14, 8, false>, 16, 480, 181 * 1024));
    o.R = r;
    if (!U) U = (I + r * 16 - 1) / (r * 16);
    if (U == 12) return run2<16, 12>(o);
    if (U == 14) return run2<16, 14>(o);
  }
  printf("SKIPPED: no kernel for C=%d R=%d U=%d\n", o.C, o.R, U);
  return 0;
}
