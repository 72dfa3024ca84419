// The choice of a token: greedy, or drawn.
#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "cpu_body.hpp"
#include "numerics.h"

namespace amk {

// Lowest index among equal maxima.
int64_t Body::arg_max(const float* x, int64_t n) {
  int64_t best = 0;
  for (int64_t j = 1; j < n; ++j)
    if (x[j] > x[best]) best = j;
  return best;
}

int32_t Body::greedy(int64_t seq) const {
  if (p(sample::amax) < 0) return int32_t(arg_max(at(sample::logits) + seq * cols(sample::logits), p(sample::vocab)));
  const float* tiles = at(sample::amax) + seq * cols(sample::amax);
  float top = tiles[0];
  int32_t best = std::bit_cast<int32_t>(tiles[1]);
  for (int64_t j = 1; j < p(sample::tiles); ++j) {
    const int32_t index = std::bit_cast<int32_t>(tiles[2 * j + 1]);
    if (tiles[2 * j] > top || (tiles[2 * j] == top && index < best)) top = tiles[2 * j], best = index;
  }
  return best;
}

int32_t Body::draw(int64_t seq, int64_t position, const int32_t* word) const {
  const float temperature = real(word[control::temperature]), top_p = real(word[control::top_p]);
  const float* logits = at(sample::logits) + seq * cols(sample::logits);
  const int64_t vocab = p(sample::vocab), top_k = word[control::top_k];
  const int64_t keep = std::min({vocab, int64_t(kMaxCandidates), top_k > 0 ? top_k : int64_t(kMaxCandidates)});
  // Descending logits, then ascending index, as one integer: order-preserving bits above the complement of the index.
  std::vector<uint64_t> order(static_cast<size_t>(vocab));
  for (int64_t j = 0; j < vocab; ++j) {
    const uint32_t b = bits_of(logits[j] + 0.0f);
    const uint32_t key = logits[j] != logits[j] ? 0 : (b >> 31 ? ~b : b | 0x80000000u);
    order[size_t(j)] = uint64_t(key) << 32 | (0xffffffffu - uint32_t(j));
  }
  std::nth_element(order.begin(), order.begin() + (keep - 1), order.end(), std::greater<>());
  std::sort(order.begin(), order.begin() + keep, std::greater<>());
  auto index = [&](int64_t c) { return int64_t(0xffffffffu - uint32_t(order[size_t(c)])); };

  const float top = logits[index(0)];
  float total = 0.0f;
  std::vector<float> weight(static_cast<size_t>(keep));
  for (int64_t c = 0; c < keep; ++c) {
    weight[size_t(c)] = exp_f32((logits[index(c)] - top) / temperature);
    total = total + weight[size_t(c)];
  }
  int64_t kept = keep;
  if (top_p < 1.0f) {
    float sum = 0.0f;
    for (int64_t c = 0; c < keep; ++c) {
      sum = sum + weight[size_t(c)];
      if (sum >= top_p * total) {
        kept = c + 1;
        break;
      }
    }
  }
  // The noise of a token depends on (seed, position, token) only, so a draw does not change with what else was kept or run.
  const uint32_t key[2] = {uint32_t(word[control::seed_lo]), uint32_t(word[control::seed_hi])};
  int64_t best = index(0);
  float best_value = -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < kept; ++c) {
    const uint32_t counter[4] = {uint32_t(position), uint32_t(index(c)), kSampleStream, 0};
    uint32_t random[4];
    philox_4x32(counter, key, random);
    const float value = (logits[index(c)] - top) / temperature + gumbel_f32(random[0]);
    if (value > best_value) best_value = value, best = index(c);
  }
  return int32_t(best);
}

void Body::sample() {
  const int64_t m = p(sample::m), n_stop = p(sample::n_stop_ids);
  const Rows rows(step, 1, m, p(sample::pos_var), vars);
  bool all_done = true;
  for (int64_t seq = 0; seq < m; ++seq) {
    int32_t* done = at<int32_t>(sample::done) + seq * cols(sample::done);
    int32_t* token = at<int32_t>(sample::token) + seq * cols(sample::token);
    int32_t* out = at<int32_t>(sample::out) + step * cols(sample::out) + seq;
    if (!rows.active(seq, 0)) {
      *token = kNoToken, *out = kNoToken, *done = *done;
      continue;
    }
    const int32_t* word = at<int32_t>(sample::control) + seq * cols(sample::control);
    const int32_t id = real(word[control::temperature]) > 0.0f ? draw(seq, rows.position(seq, 0), word) : greedy(seq);
    const int32_t* stops = n_stop > 0 ? at<int32_t>(sample::stop_ids) + seq * cols(sample::stop_ids) : nullptr;
    const bool stop = *done != 0 || std::find(stops, stops + n_stop, id) != stops + n_stop;
    *token = id, *out = id, *done = stop;
    all_done = all_done && stop;
  }
  at<int32_t>(sample::stop)[step * cols(sample::stop)] = all_done;
}

}  // namespace amk
