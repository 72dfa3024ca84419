// Inner loops for x86-64 with AVX2 and FMA.
#include "cpu_isa.hpp"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

#include "cpu_kernels.hpp"

namespace amk {
namespace {

struct Vec8 {
  static constexpr int L = 8, kAccumulators = 12, kRows = 3, kVectorRows = 3, kHeadRows = 2;
  using Reg = __m256;
  static inline Reg zero() { return _mm256_setzero_ps(); }
  static inline Reg broadcast(float x) { return _mm256_set1_ps(x); }
  static inline Reg load(const float* p) { return _mm256_loadu_ps(p); }
  static inline Reg load(const uint16_t* p) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }
  template <int Bits>
  static inline Reg codes(const uint8_t* from, int p) {
    if (Bits == 8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + p * L))));
    int word;
    __builtin_memcpy(&word, from + p * 4, 4);
    const __m256i shift = _mm256_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28);  // value 2j is nibble j of a word, value 2j + 1 nibble 4 + j
    return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(word), shift), _mm256_set1_epi32(15)));
  }
  static inline void store(float* p, Reg a) { _mm256_storeu_ps(p, a); }
  static inline Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  template <int Bits>
  struct Values {
    Reg scale, offset;
    Values(float s, float o) : scale(broadcast(s)), offset(broadcast(o)) {}
    Reg of(const uint8_t* from, int p) const { return fma(codes<Bits>(from, p), scale, offset); }
  };
  static inline Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static inline void reduce4(Reg a, Reg b, Reg c, Reg d, float* out) {
    // lanes l and l + 4
    const Reg ab = add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    const Reg cd = add(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
    // l and l + 2, then l and l + 1; low half: a, c; high half: b, d
    const Reg s = add(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    const Reg t = add(_mm256_shuffle_ps(s, s, 0x88), _mm256_shuffle_ps(s, s, 0xDD));
    const __m128 lo = _mm256_castps256_ps128(t), hi = _mm256_extractf128_ps(t, 1);
    _mm_storeu_ps(out, _mm_unpacklo_ps(lo, hi));
  }
};

constexpr Kernels kTable = Ops<Vec8>::table("avx2");

}  // namespace

const Kernels* kernels_avx2() { return &kTable; }

}  // namespace amk
#else
namespace amk {
const Kernels* kernels_avx2() { return nullptr; }
}  // namespace amk
#endif
