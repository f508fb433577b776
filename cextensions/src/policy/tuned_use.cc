#include "moeinf/policy/tuned_use.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "sizes.h"

namespace moeinf {
namespace {

constexpr double kHorizon = 4;     // tokens
constexpr double kLeast = 1e-6;    // of a probability, and of what is left to 1
constexpr float kFloor = 0.02F;    // added to what memory says before its log
constexpr double kMostLogit = 13;  // either way: the same

double logit(double p) { return std::log(p / (1 - p)); }

double likelihood(double logit) { return 1 / (1 + std::exp(-std::clamp(logit, -kMostLogit, kMostLogit))); }

// out += in * matrix [rows, columns]; zeros, of which there are many behind a ReLU, cost nothing.
void add_product(const float* in, const float* matrix, std::int64_t rows, std::int64_t columns, float* out) {
  for (std::int64_t i = 0; i < rows; ++i) {
    if (in[i] == 0) continue;
    for (std::int64_t j = 0; j < columns; ++j) out[j] += in[i] * matrix[i * columns + j];
  }
}

void add_row(const float* row, std::int64_t size, float* out) {
  for (std::int64_t j = 0; j < size; ++j) out[j] += row[j];
}

bool are_bounded(const std::vector<float>& weights) {
  return std::all_of(weights.begin(), weights.end(),
                     [](float weight) { return std::abs(weight) <= TunedUse::kMostWeight; });  // no NaN is
}

void rectify(std::vector<float>& values) {
  for (float& value : values) value = std::max(value, 0.0F);
}

}  // namespace

UseEvidence::UseEvidence(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k)
    : use_(num_layers, num_experts, top_k),
      memory_(num_layers, num_experts, top_k),
      rows_(kRows * num_experts) {}

void UseEvidence::restart() {
  use_.restart();
  memory_.restart();
}

const float* UseEvidence::observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens) {
  use_.observe(layer, ids, num_tokens);
  const std::int64_t count = num_experts();
  memory_.observe(layer, ids, num_tokens, &rows_[2 * count], &rows_[3 * count]);
  for (std::int64_t j = 2 * count; j < kRows * count; ++j) rows_[j] = std::log(rows_[j] + kFloor);
  const double* const no_use = use_.no_use() + layer * count;
  const double* const wait = use_.wait() + layer * count;
  for (std::int64_t j = 0; j < count; ++j) {
    const double rate = std::clamp(no_use[j] / wait[j], kLeast, 1 - kLeast);
    const double never = std::clamp(std::pow(1 - rate, kHorizon), kLeast, 1 - kLeast);
    rows_[j] = static_cast<float>(logit(std::clamp(1 - no_use[j], kLeast, 1 - kLeast)));
    rows_[count + j] = static_cast<float>(logit(1 - never));
  }
  return rows_.data();
}

TunedUse::TunedUse(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k,
                   TunedWeights weights)
    : evidence_(num_layers, num_experts, top_k),
      weights_(std::move(weights)),
      layer_(num_layers),
      token_(weights_.width),
      means_(2 * weights_.width),
      before_(weights_.width),
      state_(weights_.width),
      next_(weights_.width),
      logits_(2 * num_experts) {
  const std::size_t width = weights_.width, layers = num_layers, experts = num_experts;
  const bool fits =
      weights_.token.size() == layers * experts * width && weights_.own.size() == layers * experts * width &&
      weights_.contexts.size() == kContexts * width * width && weights_.bias.size() == layers * width &&
      weights_.hidden.size() == width * width && weights_.head.size() == layers * width * 2 * experts &&
      weights_.head_bias.size() == layers * 2 * experts &&
      weights_.direct.size() == layers * UseEvidence::kRows * 2;
  if (!fits) throw std::invalid_argument("the weights are of another shape");
  for (const auto* each : {&weights_.token, &weights_.own, &weights_.contexts, &weights_.bias,
                           &weights_.hidden, &weights_.head, &weights_.head_bias, &weights_.direct})
    if (!are_bounded(*each)) throw std::invalid_argument("a weight is NaN, or larger than any can be");
  const double chance = static_cast<double>(top_k) / static_cast<double>(num_experts);
  no_use_.assign(num_layers * num_experts, 1 - chance);
  wait_.assign(num_layers * num_experts, (1 - chance) / chance);
}

std::size_t TunedUse::num_bytes(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k) {
  return UseModel::num_bytes(num_layers, num_experts) +
         TokenMemory::num_bytes(num_layers, num_experts, top_k) +
         2 * sizeof(double) * num_layers * num_experts;
}

// The means have it that a token came of which nothing is known; the next pass begins behind that one.
void TunedUse::restart() {
  evidence_.restart();
  if (layer_ != num_layers()) begin();
  layer_ = num_layers();
}

// Of a pass of many tokens the last stands for all.
void TunedUse::begin() {
  const std::int64_t width = weights_.width;
  for (std::int64_t h = 0; h < 2; ++h) {
    const float decay = std::exp2(-1 / kHalfLives[h]);
    for (std::int64_t d = 0; d < width; ++d)
      means_[h * width + d] = decay * means_[h * width + d] + (1 - decay) * token_[d];
  }
  std::fill(before_.begin(), before_.end(), 0.0F);
  add_product(token_.data(), &weights_.contexts[width * width], width, width, before_.data());
  add_product(means_.data(), &weights_.contexts[2 * width * width], 2 * width, width, before_.data());
  std::fill(token_.begin(), token_.end(), 0.0F);
}

void TunedUse::observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens) {
  const std::int64_t width = weights_.width, count = num_experts();
  const float* const rows = evidence_.observe(layer, ids, num_tokens);
  if (layer <= layer_ || num_tokens != num_tokens_) begin();
  layer_ = layer;
  num_tokens_ = num_tokens;
  std::copy(before_.begin(), before_.end(), state_.begin());
  add_row(&weights_.bias[layer * width], width, state_.data());
  const std::int64_t* const last = ids + (num_tokens - 1) * top_k();
  for (std::int64_t i = 0; i < top_k(); ++i) {
    add_row(&weights_.token[(layer * count + last[i]) * width], width, token_.data());
    add_row(&weights_.own[(layer * count + last[i]) * width], width, state_.data());
  }
  add_product(token_.data(), weights_.contexts.data(), width, width, state_.data());
  rectify(state_);
  std::fill(next_.begin(), next_.end(), 0.0F);
  add_product(state_.data(), weights_.hidden.data(), width, width, next_.data());
  rectify(next_);
  add_row(next_.data(), width, state_.data());
  std::copy_n(&weights_.head_bias[layer * 2 * count], 2 * count, logits_.begin());
  add_product(state_.data(), &weights_.head[layer * width * 2 * count], width, 2 * count, logits_.data());
  for (std::int64_t r = 0; r < UseEvidence::kRows; ++r) {
    const float* const direct = &weights_.direct[(layer * UseEvidence::kRows + r) * 2];
    for (std::int64_t j = 0; j < count; ++j) {
      logits_[j] += direct[0] * rows[r * count + j];
      logits_[count + j] += direct[1] * rows[r * count + j];
    }
  }
  double* const no_use = &no_use_[layer * count];
  double* const wait = &wait_[layer * count];
  for (std::int64_t j = 0; j < count; ++j) {
    no_use[j] = 1 - likelihood(logits_[j]);
    wait[j] = no_use[j] / (1 - std::pow(1 - likelihood(logits_[count + j]), 1 / kHorizon));
  }
}

}  // namespace moeinf
