// The norm in front of a MoE block and its softmax router, for any number of tokens.
#pragma once

#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

struct RouterWeights {
  const float* norm;  // [hidden]; null: the input is taken as it is
  float norm_eps;
  Matrix gate;  // [num_experts, hidden]
  std::int64_t top_k;
  bool normalise;  // whether the chosen weights are made to sum to 1
};

// The experts that come behind the chosen ones, [num_tokens, count], with weights on the scale of theirs.
struct RouterSpares {
  std::int64_t count = 0;
  std::int64_t* ids = nullptr;
  float* weights = nullptr;
};

// hidden [num_tokens, gate.cols] = norm(x); ids, weights [num_tokens, top_k]: the largest of softmax(hidden
// gate^T), largest first, of equals the lower id.
void route(Kernels& kernels, const RouterWeights& router, RowSpan<const float> x, float* hidden,
           std::int64_t* ids, float* weights, const RouterSpares& spares = {});
std::size_t router_workspace_bytes(std::int64_t hidden, std::int64_t num_experts, const PassShape& pass);

// out [tokens, count] = x / rms(x) * weight. out may be x.
void rms_norm(Kernels& kernels, RowSpan<const float> x, const float* weight, float eps, float* out);
// out [tokens, count] = (x - mean(x)) / std(x) * weight + bias. out may be x.
void layer_norm(Kernels& kernels, RowSpan<const float> x, const float* weight, const float* bias, float eps,
                float* out);

}  // namespace moeinf
