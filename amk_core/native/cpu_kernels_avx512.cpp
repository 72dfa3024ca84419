// Inner loops for x86-64 with AVX-512 (F, BW, VL, DQ).
#include "cpu_isa.hpp"

#if defined(__AVX512F__)
#if defined(__GNUC__) && !defined(__clang__)
// The headers of GCC 12 build "undefined" operands from uninitialised variables on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "cpu_kernels.hpp"

namespace amk {
namespace {

struct Vec16 {
  static constexpr int L = 16, kAccumulators = 24, kRows = 6, kVectorRows = 8, kHeadRows = 4;
  using Reg = __m512;
  static inline Reg zero() { return _mm512_setzero_ps(); }
  static inline Reg broadcast(float x) { return _mm512_set1_ps(x); }
  static inline Reg load(const float* p) { return _mm512_loadu_ps(p); }
  static inline Reg load(const uint16_t* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static inline void store(float* p, Reg a) { _mm512_storeu_ps(p, a); }
  static inline Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  template <int Bits>
  struct Values {  // of 8 bits
    Reg scale, offset;
    Values(float s, float o) : scale(broadcast(s)), offset(broadcast(o)) {}
    Reg of(const uint8_t* from, int p) const {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + p * L));
      return fma(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), scale, offset);
    }
  };
  static inline Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static inline void reduce4(Reg a, Reg b, Reg c, Reg d, float* out) {
    // lanes l and l + 8: the low halves of two vectors with their high halves
    const Reg ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    const Reg cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    // l and l + 4: one 128-bit group for each of a, b, c, d
    const Reg s = add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
    const Reg t = add(s, _mm512_permute_ps(s, 0x4E));  // l and l + 2
    const Reg u = add(t, _mm512_permute_ps(t, 0xB1));  // l and l + 1
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, u)));
  }
};

template <>
struct Vec16::Values<4> {  // the values of all 16 codes, looked up
  Reg table;
  Values(float s, float o)
      : table(fma(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), broadcast(s), broadcast(o))) {}
  Reg of(const uint8_t* from, int p) const {
    const __m128i words = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + p * 8));
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    // value 2j is nibble j of a word, value 2j + 1 nibble 4 + j; the lookup takes the low four bits alone
    const __m512i shift = _mm512_setr_epi32(0, 16, 4, 20, 8, 24, 12, 28, 0, 16, 4, 20, 8, 24, 12, 28);
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_permutexvar_epi32(lane, _mm512_castsi128_si512(words)), shift), table);
  }
};

constexpr Kernels kTable = Ops<Vec16>::table("avx512");

}  // namespace

const Kernels* kernels_avx512() { return &kTable; }

}  // namespace amk
#else
namespace amk {
const Kernels* kernels_avx512() { return nullptr; }
}  // namespace amk
#endif
