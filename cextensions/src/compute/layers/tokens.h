// What the layers do with each token of a pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

// Calls task(t) for each token: one after the other for a few, with all threads for many.
template <typename Task>
void each_token(Kernels& kernels, std::int64_t tokens, const Task& task) {
  if (tokens <= kMaxDotRows) {
    for (std::int64_t t = 0; t < tokens; ++t) task(t);
  } else {
    kernels.pool().run(tokens, [&](std::int64_t t, int) { task(t); });
  }
}

// The norm in front of a layer: RMS, with mean where it has a bias too, or none where weight is null.
struct FrontNorm {
  const float *weight, *bias;
  float eps;
};
inline void norm_tokens(Kernels& kernels, const FrontNorm& norm, RowSpan<const float> x, float* out) {
  const Ops& ops = kernels.ops();
  each_token(kernels, x.rows, [&](std::int64_t t) {
    const float* const from = x.row(t);
    float* const to = out + t * x.cols;
    if (norm.weight == nullptr) {
      std::copy(from, from + x.cols, to);
    } else if (norm.bias != nullptr) {
      ops.layer_norm(from, norm.weight, norm.bias, norm.eps, x.cols, to);
    } else {
      ops.rms_norm(from, norm.weight, norm.eps, x.cols, to);
    }
  });
}

}  // namespace moeinf
