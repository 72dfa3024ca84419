// Inner loops for any machine: arrays instead of vector registers, fused multiply-add by the compiler or the C library.
#include "cpu_kernels.hpp"

namespace amk {
namespace {

struct Array8 {
  static constexpr int L = 8, kAccumulators = 12, kRows = 2, kVectorRows = 2, kHeadRows = 2;
  struct Reg {
    float v[L];
  };
  static Reg zero() { return Reg{}; }
  static Reg broadcast(float x) {
    Reg r;
    for (float& e : r.v) e = x;
    return r;
  }
  static Reg load(const float* p) {
    Reg r;
    for (int i = 0; i < L; ++i) r.v[i] = p[i];
    return r;
  }
  static Reg load(const uint16_t* p) {
    Reg r;
    for (int i = 0; i < L; ++i) r.v[i] = f32_of_bf16(p[i]);
    return r;
  }
  template <int Bits>
  static Reg codes(const uint8_t* from, int p) {
    Reg r;
    for (int i = 0; i < L; ++i) {
      if (Bits == 8) {
        r.v[i] = float(static_cast<int8_t>(from[p * L + i]));
      } else {  // value 2j is nibble j of a word, value 2j + 1 nibble 4 + j
        const int nibble = i / 2 + i % 2 * 4;
        r.v[i] = float(from[p * 4 + nibble / 2] >> nibble % 2 * 4 & 15);
      }
    }
    return r;
  }
  static void store(float* p, const Reg& a) {
    for (int i = 0; i < L; ++i) p[i] = a.v[i];
  }
  static Reg fma(const Reg& a, const Reg& b, const Reg& c) {
    Reg r;
    for (int i = 0; i < L; ++i) r.v[i] = fma_f32(a.v[i], b.v[i], c.v[i]);
    return r;
  }
  template <int Bits>
  struct Values {
    Reg scale, offset;
    Values(float s, float o) : scale(broadcast(s)), offset(broadcast(o)) {}
    Reg of(const uint8_t* from, int p) const { return fma(codes<Bits>(from, p), scale, offset); }
  };
  static Reg add(const Reg& a, const Reg& b) {
    Reg r;
    for (int i = 0; i < L; ++i) r.v[i] = a.v[i] + b.v[i];
    return r;
  }
  static float tree(Reg a) {
    for (int off = L / 2; off > 0; off /= 2)
      for (int l = 0; l < off; ++l) a.v[l] = a.v[l] + a.v[l + off];
    return a.v[0];
  }
  static void reduce4(const Reg& a, const Reg& b, const Reg& c, const Reg& d, float* out) {
    out[0] = tree(a), out[1] = tree(b), out[2] = tree(c), out[3] = tree(d);
  }
};

constexpr Kernels kTable = Ops<Array8>::table("baseline");

}  // namespace

const Kernels* kernels_baseline() { return &kTable; }

}  // namespace amk
