// One task that runs on the CPU: its parameters, its buffers, its scratch, and a method for each op.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "cpu_ops.hpp"

namespace amk {

inline int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
inline float real(int32_t word) { return std::bit_cast<float>(word); }

// The rows of a launch: row r is token r % chunk of sequence r / chunk.
struct Rows {
  int64_t step, chunk, batch;
  const int64_t* p0;
  const int64_t* n;

  Rows(int64_t step, int64_t chunk, int64_t batch, int64_t pos_var, std::span<const int64_t> variables)
      : step(step), chunk(chunk), batch(batch), p0(variables.data() + pos_var), n(p0 + batch) {}
  bool active(int64_t seq, int64_t c) const { return step * chunk + c < n[seq]; }
  int64_t position(int64_t seq, int64_t c) const { return p0[seq] + step * chunk + c; }
  // Active tokens of a sequence in this step: a prefix of its chunk.
  int64_t tokens(int64_t seq) const { return std::clamp<int64_t>(n[seq] - step * chunk, 0, chunk); }
};

struct Body {
  const Machine& mc;
  const Task& t;
  int64_t step;
  std::span<const int64_t> vars;
  float* scratch;
  Fault* fault;
  TagPort* port;
  const Kernels& k = *mc.kernels;

  int64_t p(int i) const { return t.p[i]; }
  template <class T = float>
  T* at(int i) const {
    return reinterpret_cast<T*>(t.at[i]);
  }
  int64_t cols(int i) const { return mc.cols(t.p[i]) * (t.tagged.empty() ? 1 : t.tagged[size_t(i)].width); }
  bool bf16(int i) const { return mc.tables->buffers[size_t(t.p[i])].bits == 16; }
  float* take(int64_t floats) {
    float* out = scratch;
    scratch += up(floats, 16);
    return out;
  }
  // The partial of block b of one head and row: split b % splits, slot b / splits.
  static int64_t slot(int64_t b, int64_t splits, int64_t blocks, int64_t d) {
    return ((b % splits) * blocks + b / splits) * (d + 2);
  }

  // cpu_product.cpp
  void matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys);
  PackedRows packed(int64_t row, float* scale, float* offset) const;
  void integer_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys);
  void packed_matmul(int64_t n, const float* x, int64_t xs, int64_t m, int64_t kp, float* y, int64_t ys);
  float* normed(int h, int norm_w, int64_t m, int64_t hidden, float eps);
  void residual(int h, int out, int64_t row0, int64_t row1, int64_t m, const float* x, int64_t xs, int64_t kp);
  void project();
  void o_proj_combine();
  void gate_up();
  void o_part();
  void down_part();
  void sum() const;

  // cpu_attention.cpp
  const float* block_rows(int buffer, int64_t row, int64_t n, int64_t col, int64_t d, int64_t width, float* space,
                          int64_t* stride) const;
  void newest(int64_t seq, int64_t head, int64_t d, int64_t width, float* to) const;
  void merge(int part_index, int64_t seq, int64_t kv_head, int64_t chunk, int64_t group, int64_t n_kv, int64_t d, int64_t splits,
             int64_t blocks, int64_t block, const Rows& rows, int64_t* where, float* out, int64_t stride) const;
  bool attn();
  void attn_combine();
  void rank_attn();

  // cpu_sample.cpp
  static int64_t arg_max(const float* x, int64_t n);
  int32_t greedy(int64_t seq) const;
  int32_t draw(int64_t seq, int64_t position, const int32_t* word) const;
  void sample();

  // cpu_ops.cpp
  bool embed();
  void append(int buffer, int64_t row, int64_t col, const float* from, int64_t n) const;
  static void rotate(float* y, int64_t row0, int64_t row1, int64_t d, const float* cosine, const float* sine);
  void qkv();
  void rank_qkv();
  void lm_head();
  bool run();
};

}  // namespace amk
