#include "moeinf/compute/layers/router.h"

#include <algorithm>
#include <cmath>

#include "tokens.h"

namespace moeinf {
namespace {

// The k largest of softmax(logits), and the spares behind them; logits are overwritten. A NaN counts as the
// smallest, so ids stay distinct, and makes every weight NaN: the caller sees that the choice means nothing.
void top_softmax(const RouterWeights& router, float* logits, std::int64_t* ids, float* weights,
                 const RouterSpares& spares) {
  const std::int64_t count = router.gate.rows, k = router.top_k;
  float largest = -INFINITY;
  float total = 0, chosen = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    if (std::isnan(logits[i])) {
      total = logits[i];
      logits[i] = -INFINITY;
    }
    largest = std::max(largest, logits[i]);
  }
  if (!std::isfinite(largest)) largest = 0;  // nothing but NaN: all count alike
  for (std::int64_t i = 0; i < count; ++i) {
    logits[i] = std::exp(logits[i] - largest);
    total += logits[i];
  }
  for (std::int64_t j = 0; j < k; ++j) {
    const std::int64_t best = std::max_element(logits, logits + count) - logits;
    ids[j] = best;
    weights[j] = logits[best] / total;
    chosen += weights[j];
    logits[best] = -1;
  }
  for (std::int64_t j = 0; router.normalise && j < k; ++j) weights[j] /= chosen;
  for (std::int64_t j = 0; j < spares.count; ++j) {
    const std::int64_t best = std::max_element(logits, logits + count) - logits;
    spares.ids[j] = best;
    spares.weights[j] = logits[best] / total / (router.normalise ? chosen : 1);
    logits[best] = -1;
  }
}

}  // namespace

void rms_norm(Kernels& kernels, RowSpan<const float> x, const float* weight, float eps, float* out) {
  norm_tokens(kernels, {weight, nullptr, eps}, x, out);
}

void layer_norm(Kernels& kernels, RowSpan<const float> x, const float* weight, const float* bias, float eps,
                float* out) {
  norm_tokens(kernels, {weight, bias, eps}, x, out);
}

void route(Kernels& kernels, const RouterWeights& router, RowSpan<const float> x, float* hidden,
           std::int64_t* ids, float* weights, const RouterSpares& spares) {
  const std::int64_t experts = router.gate.rows, k = router.top_k;
  norm_tokens(kernels, {router.norm, nullptr, router.norm_eps}, x, hidden);
  Workspace::Frame memory(kernels.workspace());
  auto* const logits = memory.take<float>(x.rows * experts);
  kernels.linear(router.gate, {hidden, x.rows, x.cols}, logits);
  each_token(kernels, x.rows, [&](std::int64_t t) {
    const RouterSpares own = {spares.count, spares.ids + t * spares.count, spares.weights + t * spares.count};
    top_softmax(router, logits + t * experts, ids + t * k, weights + t * k, own);
  });
}

std::size_t router_workspace_bytes(std::int64_t hidden, std::int64_t num_experts, const PassShape& pass) {
  Workspace::Frame memory;
  memory.take<float>(pass.tokens * num_experts);
  return memory.num_bytes() + linear_workspace_bytes(pass, hidden);
}

}  // namespace moeinf
