#include "moeinf/compute/layers/turn_heads.h"

#include <algorithm>

namespace moeinf {
namespace {

constexpr std::int64_t kHeadsOfTask = 16;

void turn(const TurnedShape& s, const float* x, const float* cos, const float* sin, float* out) {
  const std::int64_t step = s.interleaved ? 2 : 1, other = s.interleaved ? 1 : s.pairs;
  for (std::int64_t p = 0; p < s.pairs; ++p) {
    const float left = x[p * step], right = x[p * step + other];
    out[p * step] = left * cos[p] - right * sin[p];
    out[p * step + other] = right * cos[p] + left * sin[p];
  }
}

}  // namespace

void turn_heads(Kernels& kernels, const TurnedShape& s, const float* x, const float* cos, const float* sin,
                float* out) {
  const std::int64_t parts = (s.num_heads + kHeadsOfTask - 1) / kHeadsOfTask;
  kernels.pool().run(s.tokens * parts, [&](std::int64_t task, int) {
    const std::int64_t t = task / parts, first = task % parts * kHeadsOfTask,
                       last = std::min(s.num_heads, first + kHeadsOfTask);
    const std::int64_t begin = (t * s.num_heads + first) * s.head_dim,
                       end = (t * s.num_heads + last) * s.head_dim;
    if (out != x) std::copy(x + begin, x + end, out + begin);
    for (std::int64_t at = begin + s.first; at < end; at += s.head_dim)
      turn(s, x + at, cos + t * s.pairs, sin + t * s.pairs, out + at);
  });
}

}  // namespace moeinf
