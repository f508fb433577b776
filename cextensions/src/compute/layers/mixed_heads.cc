#include "moeinf/compute/layers/mixed_heads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace moeinf {
namespace {

constexpr std::int64_t kColumns = 64;
constexpr std::int64_t kRowsOfTask = 64;
constexpr std::int64_t kTokensOfTask = 16;

std::int64_t parts_of(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

// One row of what the convolution of channels makes, the columns from `first` on.
void convolve(const HeadWindows& g, std::int64_t row, std::int64_t first, std::int64_t count, float* mixed) {
  const std::int64_t channels = g.shape.channels();
  std::copy_n(g.bias + first, count, mixed);
  for (std::int64_t i = 0; i < g.by_channel; ++i) {
    const float *const seen = g.seen + (row + i) * channels + first, *const taps =
                                                                         g.taps + i * channels + first;
    for (std::int64_t c = 0; c < count; ++c) mixed[c] += seen[c] * taps[c];
  }
}

// The sum of squares, in an order that does not depend on the build.
float square_of(const float* x, std::int64_t count) {
  constexpr std::int64_t kSums = 8;
  std::array<float, kSums> sums{};
  std::int64_t c = 0;
  for (; c + kSums <= count; c += kSums)
    for (std::int64_t i = 0; i < kSums; ++i) sums[i] += x[c + i] * x[c + i];
  for (; c < count; ++c) sums[c % kSums] += x[c] * x[c];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void bring_to(float length, float* x, std::int64_t count) {
  const float least = std::numeric_limits<float>::epsilon();
  const float by = length / std::max(std::sqrt(square_of(x, count)), least);
  for (std::int64_t c = 0; c < count; ++c) x[c] *= by;
}

// The key of one token, and the queries that share it.
void level_group(const LevelHeads& g, std::int64_t token, std::int64_t key) {
  const auto [num_heads, num_kv_heads, size] = g.shape;
  const std::int64_t group = num_heads / num_kv_heads, of_key = num_heads + key;
  const float* const k = g.keys + (token * num_kv_heads + key) * size;
  float* const out_key = g.out_keys + (token * num_kv_heads + key) * size;
  const float share = 1.0F / static_cast<float>(group);
  std::fill_n(out_key, size, 0.0F);
  for (std::int64_t head = key * group; head < (key + 1) * group; ++head) {
    const float *const q = g.queries + (token * num_heads + head) * size, *const bias = g.bias + head * size;
    const float* const product = g.products + (head * g.tokens + token) * size;
    float* const out = g.out_queries + (token * num_heads + head) * size;
    for (std::int64_t c = 0; c < size; ++c) {
      const float both = (q[c] + k[c]) * 0.5F;
      out_key[c] += both;
      out[c] = product[c] + bias[c] + both;
    }
    bring_to(g.lengths[head], out, size);
  }
  const float *const product = g.products + (of_key * g.tokens + token) * size, *const bias =
                                                                                    g.bias + of_key * size;
  for (std::int64_t c = 0; c < size; ++c) out_key[c] = product[c] + bias[c] + out_key[c] * share;
  bring_to(g.lengths[of_key], out_key, size);
}

}  // namespace

void window_heads(Kernels& kernels, const HeadWindows& g) {
  const std::int64_t rows = g.tokens + g.by_head - 1, parts = parts_of(rows, kRowsOfTask),
                     size = g.shape.head_dim;
  kernels.pool().run(g.shape.heads() * parts, [&](std::int64_t task, int) {
    const std::int64_t head = task / parts, begin = task % parts * kRowsOfTask;
    float* const out = g.out + head * g.tokens * size * g.by_head;
    std::array<float, kColumns> mixed;  // NOLINT: written before it is read
    for (std::int64_t row = begin; row < std::min(rows, begin + kRowsOfTask); ++row) {
      const std::int64_t first_tap = std::max<std::int64_t>(0, row - g.tokens + 1),
                         last_tap = std::min(row, g.by_head - 1);
      for (std::int64_t at = 0; at < size; at += kColumns) {
        const std::int64_t count = std::min(kColumns, size - at);
        convolve(g, row, head * size + at, count, mixed.data());
        for (std::int64_t tap = first_tap; tap <= last_tap; ++tap) {
          float* const to = out + ((row - tap) * size + at) * g.by_head + tap;
          for (std::int64_t c = 0; c < count; ++c) to[c * g.by_head] = mixed[c];
        }
      }
    }
  });
}

void level_heads(Kernels& kernels, const LevelHeads& g) {
  const std::int64_t parts = parts_of(g.tokens, kTokensOfTask);
  kernels.pool().run(parts * g.shape.num_kv_heads, [&](std::int64_t task, int) {
    const std::int64_t key = task % g.shape.num_kv_heads, begin = task / g.shape.num_kv_heads * kTokensOfTask;
    for (std::int64_t t = begin; t < std::min(g.tokens, begin + kTokensOfTask); ++t) level_group(g, t, key);
  });
}

}  // namespace moeinf
