// The sizes of a model whose routing a policy is told.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace moeinf {

// Returns how many experts all layers have. Throws std::invalid_argument for sizes that no model has; of
// those that pass, no product overflows that a policy makes.
inline std::int64_t require_sizes(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k) {
  constexpr std::int64_t kMostLayers = 1 << 16, kMostExperts = 1 << 20;
  if (num_layers < 1 || num_layers > kMostLayers || num_experts < 1 || num_experts > kMostExperts ||
      top_k < 1 || top_k > num_experts)
    throw std::invalid_argument("no model has so many layers, experts, or experts for each token");
  return num_layers * num_experts;
}

// Throws std::invalid_argument for a routing of no layer of the model, or of no token.
inline void require_routing(std::int64_t layer, std::int64_t num_layers, std::int64_t num_tokens) {
  if (layer < 0 || layer >= num_layers) throw std::invalid_argument("there is no such layer");
  if (num_tokens < 1) throw std::invalid_argument("a routing is of one token or more");
}

}  // namespace moeinf
