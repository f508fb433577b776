#include "moeinf/compute/layers/streams.h"

#include <algorithm>
#include <array>

namespace moeinf {
namespace {

constexpr std::int64_t kColumns = 128;  // of all streams, that stay in the first-level cache
constexpr std::int64_t kColumnsOfTask = 1024;

// Calls run(token, first column, number of them), the tasks of all threads.
template <typename Run>
void each_block(Kernels& kernels, const StreamsShape& s, const Run& run) {
  const std::int64_t blocks = (s.hidden + kColumnsOfTask - 1) / kColumnsOfTask;
  kernels.pool().run(s.tokens * blocks, [&](std::int64_t task, int) {
    const std::int64_t first = task % blocks * kColumnsOfTask;
    run(task / blocks, first, std::min(kColumnsOfTask, s.hidden - first));
  });
}

void scale(const float* x, float by, std::int64_t count, float* out) {
  for (std::int64_t c = 0; c < count; ++c) out[c] = x[c] * by;
}

void add_scaled(const float* x, float by, std::int64_t count, float* out) {
  for (std::int64_t c = 0; c < count; ++c) out[c] += x[c] * by;
}

}  // namespace

void weigh_streams(Kernels& kernels, const StreamsShape& s, const float* x, const float* shares, float* out) {
  each_block(kernels, s, [&](std::int64_t t, std::int64_t first, std::int64_t count) {
    const float *const of_token = x + t * s.count * s.hidden + first, *const by = shares + t * s.count;
    float* const to = out + t * s.hidden + first;
    scale(of_token, by[0], count, to);
    for (std::int64_t i = 1; i < s.count; ++i) add_scaled(of_token + i * s.hidden, by[i], count, to);
  });
}

void mix_streams(Kernels& kernels, const StreamsShape& s, float* x, const float* added, const float* after,
                 const float* mixing) {
  each_block(kernels, s, [&](std::int64_t t, std::int64_t first, std::int64_t count) {
    std::array<float, kMostStreams * kColumns> before;  // NOLINT: written before it is read
    for (std::int64_t at = 0; at < count; at += kColumns) {
      const std::int64_t width = std::min(kColumns, count - at);
      float* const of_token = x + t * s.count * s.hidden + first + at;
      const float* const new_one = added + t * s.hidden + first + at;
      for (std::int64_t i = 0; i < s.count; ++i)
        std::copy_n(of_token + i * s.hidden, width, before.data() + i * kColumns);
      for (std::int64_t i = 0; i < s.count; ++i) {
        float* const to = of_token + i * s.hidden;
        scale(new_one, after[t * s.count + i], width, to);
        if (mixing == nullptr) add_scaled(before.data() + i * kColumns, 1.0F, width, to);
        for (std::int64_t j = 0; mixing != nullptr && j < s.count; ++j)
          add_scaled(before.data() + j * kColumns, mixing[(t * s.count + j) * s.count + i], width, to);
      }
    }
  });
}

void add_scaled(Kernels& kernels, const ScaledSum& sum) {
  each_block(kernels, {sum.rows, 1, sum.width},
             [&](std::int64_t row, std::int64_t first, std::int64_t count) {
               float* const x = sum.x + row * sum.width + first;
               const float *const added = sum.added + row * sum.width + first, *const by = sum.by + first;
               const float *const keep = sum.keep + first, *const shift = sum.shift + first;
               for (std::int64_t c = 0; c < count; ++c) x[c] = added[c] * by[c] + x[c] * keep[c] + shift[c];
             });
}

}  // namespace moeinf
