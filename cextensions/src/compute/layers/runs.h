// The positions that a token attends to, cut into runs, each with a softmax of its own, put together in their
// order.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "moeinf/compute/ops.h"

namespace moeinf {

constexpr std::int64_t kRunPositions = 256;  // of the shortest runs: some 10 us, many times what a task costs
constexpr std::int64_t kMostRuns = 32;       // tasks enough for the threads; what runs come to takes memory

// How long the runs of a token are that attends to so many positions. They depend on this number alone, and
// so does the result: neither on the number of threads nor on the tokens that go through with it.
inline std::int64_t run_positions(std::int64_t positions) {
  std::int64_t length = kRunPositions;
  while (length * kMostRuns < positions) length *= 2;
  return length;
}

// Adds a run to those before it, of which `state` and sums [width] tell: sums of what e^(score -
// state.largest) weighs.
inline void fold_run(const Ops& ops, const SoftmaxState& run, const float* run_sums, std::int64_t width,
                     SoftmaxState& state, float* sums) {
  if (run.total == 0) return;  // the token sees nothing of it
  const float largest = std::max(state.largest, run.largest);
  const float shrink = std::exp(state.largest - largest), weight = std::exp(run.largest - largest);
  for (std::int64_t c = 0; c < width; ++c) sums[c] *= shrink;
  ops.add_scaled(run_sums, weight, sums, width);
  state = {largest, state.total * shrink + run.total * weight};
}

}  // namespace moeinf
