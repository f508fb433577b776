// What followed the tokens of the past whose routing was most like that of the running one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeinf {

// The last tokens' routing, and how alike each of them is to the running token so far: the share of experts
// that both used, plus half of that of the token before each, a quarter of those before, and so on.
class TokenMemory {
 public:
  static constexpr std::int64_t kMostTokens = 2048;
  static constexpr std::int64_t kHorizon = 4;  // tokens

  TokenMemory(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k);

  // Takes the routing ids [num_tokens, top_k] of a layer. A layer that does not lie behind the last one
  // begins another pass, and so does another number of tokens. Writes two rows [num_experts]: to `next` what
  // the tokens behind the kMatches most alike used in this layer, weighted by likeness, from 0 to 1; to
  // `soon` the same of the next kHorizon tokens behind each, all counted, from 0 to kHorizon.
  void observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens, float* next,
               float* soon);
  // Says that routings were left out: what comes next begins a pass, and follows nothing that came before.
  void restart();

  static std::size_t num_bytes(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k);

 private:
  static constexpr std::int64_t kMatches = 64;
  static constexpr std::int64_t kBuckets = 512;  // of likeness, which is below 2

  void begin(std::int64_t num_tokens);
  void compare(std::int64_t layer, const std::int64_t* ids);
  void match();
  std::uint8_t* users(std::int64_t layer, std::int64_t expert) {
    return &users_[(layer * num_experts_ + expert) * kMostTokens];
  }
  // The ids of a token in a layer; the first is -1 where the token did not visit it.
  std::int32_t* used(std::int64_t token, std::int64_t layer) {
    return &used_[((token % kMostTokens) * num_layers_ + layer) * top_k_];
  }

  std::int64_t num_layers_, num_experts_, top_k_;
  std::int64_t first_ = 0, last_ = -1;    // of the running pass's tokens that are remembered
  std::int64_t layer_;                    // that ran last; num_layers: the next begins a pass
  std::int64_t num_tokens_ = 0;           // of the running pass
  std::vector<std::uint8_t> users_;       // [num_layers, num_experts, kMostTokens]: 1 where the token used it
  std::vector<std::int32_t> used_;        // [kMostTokens, num_layers, top_k]
  std::vector<std::uint16_t> shared_;     // [kMostTokens]: experts shared with the running token
  std::vector<float> before_, likeness_;  // [kMostTokens]: of the tokens before; in all
  std::vector<std::int32_t> matches_;     // slots of the most alike, at most kMatches
  std::vector<float> weights_;            // of each
};

}  // namespace moeinf
