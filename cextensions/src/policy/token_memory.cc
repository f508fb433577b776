#include "moeinf/policy/token_memory.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sizes.h"

namespace moeinf {
namespace {

constexpr float kBefore = 0.5F;      // what the likeness of the token before counts
constexpr float kSharpness = 20.0F;  // a match that is less alike by x counts exp(-kSharpness x)
constexpr float kLeast = 1e-4F;      // of a weight that is not left out

}  // namespace

TokenMemory::TokenMemory(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      top_k_(top_k),
      layer_(num_layers),
      users_(require_sizes(num_layers, num_experts, top_k) * kMostTokens),
      used_(kMostTokens * num_layers * top_k, -1),
      shared_(kMostTokens),
      before_(kMostTokens),
      likeness_(kMostTokens) {
  matches_.reserve(kMatches);
  weights_.reserve(kMatches);
}

std::size_t TokenMemory::num_bytes(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k) {
  return kMostTokens * (num_layers * (num_experts + top_k * sizeof(std::int32_t)) + 10);
}

void TokenMemory::observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens, float* next,
                          float* soon) {
  require_routing(layer, num_layers_, num_tokens);
  if (layer <= layer_ || num_tokens != num_tokens_) begin(num_tokens);
  layer_ = layer;
  num_tokens_ = num_tokens;
  ids += (num_tokens - (last_ + 1 - first_)) * top_k_;
  for (std::int64_t token = first_; token <= last_; ++token, ids += top_k_) {
    for (std::int64_t i = 0; i < top_k_; ++i) {
      users(layer, ids[i])[token % kMostTokens] = 1;
      used(token, layer)[i] = static_cast<std::int32_t>(ids[i]);
    }
  }
  compare(layer, ids - top_k_);
  match();
  std::fill_n(next, num_experts_, 0.0F);
  std::fill_n(soon, num_experts_, 0.0F);
  for (std::size_t m = 0; m < matches_.size(); ++m) {
    const std::int64_t ago = (last_ - matches_[m] + kMostTokens) % kMostTokens;
    for (std::int64_t behind = 1; behind <= std::min(ago, kHorizon); ++behind) {
      const std::int32_t* const row = used(last_ - ago + behind, layer);
      if (row[0] < 0) continue;
      for (std::int64_t i = 0; i < top_k_; ++i) {
        soon[row[i]] += weights_[m];
        if (behind == 1) next[row[i]] += weights_[m];
      }
    }
  }
}

// Tokens of which nothing is known stand for what was left out, as many as what follows a token is told of.
void TokenMemory::restart() {
  if (layer_ == num_layers_) return;
  begin(kHorizon);
  std::fill(likeness_.begin(), likeness_.end(), 0.0F);
  layer_ = num_layers_;
}

// A pass forgets the oldest tokens for its own. Of a pass of many, the last token alone is compared.
void TokenMemory::begin(std::int64_t num_tokens) {
  const bool follows = num_tokens == 1 && last_ >= 0;
  const std::int64_t kept = std::min(num_tokens, kMostTokens);
  first_ = last_ + 1;
  last_ += kept;
  for (std::int64_t token = first_; token <= last_; ++token) {
    for (std::int64_t layer = 0; layer < num_layers_; ++layer) {
      std::int32_t* const row = used(token, layer);
      for (std::int64_t i = 0; i < top_k_ && row[0] >= 0; ++i) users(layer, row[i])[token % kMostTokens] = 0;
      row[0] = -1;
    }
  }
  for (std::int64_t slot = 0; slot < kMostTokens; ++slot)
    before_[(slot + 1) % kMostTokens] = follows ? kBefore * likeness_[slot] : 0;
  std::fill(shared_.begin(), shared_.end(), 0);
}

void TokenMemory::compare(std::int64_t layer, const std::int64_t* ids) {
  for (std::int64_t i = 0; i < top_k_; ++i) {
    const std::uint8_t* const row = users(layer, ids[i]);
    for (std::int64_t slot = 0; slot < kMostTokens; ++slot) shared_[slot] += row[slot];
  }
  const float share = 1.0F / static_cast<float>(num_layers_ * top_k_);
  for (std::int64_t slot = 0; slot < kMostTokens; ++slot)
    likeness_[slot] = before_[slot] + share * static_cast<float>(shared_[slot]);
}

// Of equals, the newest.
void TokenMemory::match() {
  const std::int64_t past = std::min(last_, kMostTokens - 1);  // tokens before the running one
  std::array<std::int32_t, kBuckets> counts{};
  const auto bucket = [this](std::int64_t token) {
    const float scaled = likeness_[token % kMostTokens] * (kBuckets / 2);
    return std::min(static_cast<std::int64_t>(scaled), kBuckets - 1);
  };
  for (std::int64_t ago = 1; ago <= past; ++ago) ++counts[bucket(last_ - ago)];
  std::int64_t least = kBuckets, above = 0;
  while (least > 0 && above + counts[least - 1] <= kMatches) above += counts[--least];
  std::int64_t quota = least > 0 ? kMatches - above : 0;  // of those in the bucket below
  matches_.clear();
  weights_.clear();
  float best = 0;
  for (std::int64_t ago = 1; ago <= past; ++ago) {
    const std::int64_t at = bucket(last_ - ago);
    if (at < least && (at + 1 < least || quota-- <= 0)) continue;
    matches_.push_back(static_cast<std::int32_t>((last_ - ago) % kMostTokens));
    best = std::max(best, likeness_[matches_.back()]);
  }
  float sum = 0;
  for (const std::int32_t slot : matches_) {
    const float weight = std::exp(kSharpness * (likeness_[slot] - best));
    weights_.push_back(weight < kLeast ? 0 : weight);
    sum += weights_.back();
  }
  for (float& weight : weights_) weight /= sum;
}

}  // namespace moeinf
