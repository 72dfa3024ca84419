// The inner loops of the CPU VM as a table of function pointers, one table an instruction set.  All tables give equal bits.
// Only plain types cross this border: the translation units behind it are compiled for instructions this machine may lack.
#pragma once
#include <cstdint>

namespace amk {

// Eight rows of a quantised weight, as amk_core/quant/layout.py packs them, and the float tables [group][row of 8] made from their
// scales: value = fma(code, scale, offset).  Codes of 4 bits are 0 to 15.
struct PackedRows {
  const uint8_t* data;
  int64_t bits, record_bytes, code_bytes, entry_bytes;  // of the format
  int record_shift, group_shift;                        // log2 of the values in a record and in a group; 62: the group is the row
  int64_t groups;                                       // of a row
  const uint8_t* row_scales;                            // where one scale serves a whole row: its eight
  int64_t kind;
  bool bf16;
  float *scale, *offset;
};

struct Kernels {
  const char* name;

  // y[r * ys + j] = dot(w + j * kp, x + r * xs, kp) for n weight rows j and m activation rows r; kp is a multiple of 32.
  void (*matmul_f32)(const float* w, int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys);
  void (*matmul_bf16)(const uint16_t* w, int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys);

  // Quantised weights: the float tables of eight rows; y[j] = dot(row j, x, kp) for one activation row; and rows as floats, w[j * kp].
  void (*packed_tables)(const PackedRows& g);
  void (*packed_product)(const PackedRows& g, int64_t rows, const float* x, int64_t kp, float* y);
  void (*packed_expand)(const PackedRows& g, int64_t rows, int64_t kp, float* w);

  // Activations of 8 bits: codes of a row, and their scale (returned; NaN where the row is not finite); and rows of 8-bit weights
  // times them, y[j] = (sum over groups of fma(integer sum, scale of the group, .)) * scale.
  float (*integer_row)(const float* x, int64_t kp, int16_t* q);
  void (*integer_product)(const PackedRows& g, int64_t rows, const int16_t* q, int64_t kp, float scale, float* y);

  // y[0..kp) = w * (h * (1 / sqrt(dot(h, h) / k + eps))), padded with zeros, rounded to bf16 when `round` is set.
  void (*rmsnorm)(const float* h, const float* w, int64_t k, int64_t kp, float eps, bool round, float* y);

  // Copy of k values, padded with zeros to kp, rounded to bf16 when `round` is set.
  void (*prepare)(const float* x, int64_t k, int64_t kp, bool round, float* y);
  void (*expand_bf16)(const uint16_t* x, int64_t k, int64_t kp, float* y);

  // s[j] = dot(q, k + j * ks, dp) * scale for n keys.
  void (*scores)(const float* q, const float* k, int64_t ks, int64_t n, int64_t dp, float scale, float* s);
  // In place: s[j] = exp(s[j] - max); writes zeros up to a multiple of 32.  out[0] = max, out[1] = lane sum.
  void (*softmax_block)(float* s, int64_t n, float* out);
  // o[r * os + e] = sum over j ascending of fma(p[r * ps + j], v[j * vs + e], .) for rows r and e < d.
  void (*weighted_sum)(const float* p, int64_t ps, int64_t rows, const float* v, int64_t vs, int64_t n, int64_t d, float* o,
                       int64_t os);
  // out[0..d) from `blocks` partials {m, l, o[0..d)}; partial b lies at part + where[b].
  void (*combine)(const float* part, const int64_t* where, int64_t blocks, int64_t d, float* out);

  // out[j] = silu(gu[2j]) * gu[2j + 1];  h[j] = h[j] + y[j].
  void (*gate)(const float* gu, int64_t n, float* out);
  void (*add)(float* h, const float* y, int64_t n);

  // exp_f32 of n values, for tests.
  void (*exp_all)(const float* x, int64_t n, float* y);
};

const Kernels* kernels_baseline();
const Kernels* kernels_avx2();    // null where it was not compiled
const Kernels* kernels_avx512();  // null where it was not compiled

}  // namespace amk
