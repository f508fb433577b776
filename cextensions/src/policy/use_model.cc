#include "moeinf/policy/use_model.h"

#include <algorithm>
#include <cmath>

namespace moeinf {
namespace {

constexpr double kHalfLifeTokens[] = {10, 160};
constexpr double kFloor = 0.01;             // added to a frequency before its log
constexpr double kRate = 0.005;             // of learning: for the weights that all experts share,
constexpr double kNextPairRate = 0.04;      // and for those of pairs
constexpr double kHorizonPairRate = 0.003;  // each token is in kHorizon labels
constexpr double kMostLogit = 30;           // either way, so that nothing becomes infinite

double likelihood(double logit) { return 1 / (1 + std::exp(-std::clamp(logit, -kMostLogit, kMostLogit))); }

// The logit of expert j but for its pairs.
template <std::size_t N>
double weighted(const std::array<double, N>& weights, const std::vector<double>& features, std::size_t count,
                std::size_t j) {
  double sum = weights[N - 1];
  for (std::size_t f = 0; f + 1 < N; ++f) sum += weights[f] * features[f * count + j];
  return sum;
}

}  // namespace

UseModel::UseModel(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k)
    : num_experts_(num_experts),
      top_k_(top_k),
      layers_(num_layers),
      errors_(num_experts),
      sums_(num_experts) {
  const double chance = static_cast<double>(top_k) / static_cast<double>(num_experts);
  no_use_.assign(num_layers * num_experts, 1 - chance);
  wait_.assign(num_layers * num_experts, (1 - chance) / chance);
  for (Layer& at : layers_) {
    at.frequency.assign(kHalfLives * num_experts, chance);
    at.next_pairs.assign(kSources * num_experts * num_experts, 0);
    at.horizon_pairs = at.next_pairs;
    for (Evidence& each : at.evidence) each.features.assign(kFeatures * num_experts, 0);
    at.last_use.assign(num_experts, 0);
  }
}

std::size_t UseModel::num_bytes(std::int64_t num_layers, std::int64_t num_experts) {
  const std::size_t pairs = 2 * kSources * num_experts * sizeof(float);
  const std::size_t rest = (kHalfLives + kHorizon * kFeatures + 2) * sizeof(double) + sizeof(std::int64_t);
  return num_layers * num_experts * (pairs + rest);
}

void UseModel::observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens) {
  Layer& at = layers_[layer];
  double* const no_use = &no_use_[layer * num_experts_];
  for (std::int64_t token = 0; token < num_tokens; ++token) count(at, ids + token * top_k_);
  if (num_tokens == 1) {
    learn(at, no_use);
  } else {
    at.num_evidence = 0;
  }
  Evidence& now = at.evidence[at.num_evidence++ % kHorizon];
  gather(layer, now);
  predict(at, now, no_use, &wait_[layer * num_experts_]);
}

void UseModel::count(Layer& at, const std::int64_t* ids) {
  for (std::size_t h = 0; h < kHalfLives; ++h) {
    const double decay = std::exp2(-1 / kHalfLifeTokens[h]);
    double* const frequency = &at.frequency[h * num_experts_];
    for (std::int64_t j = 0; j < num_experts_; ++j) frequency[j] *= decay;
    for (std::int64_t i = 0; i < top_k_; ++i) frequency[ids[i]] += 1 - decay;
  }
  ++at.num_tokens;
  for (std::int64_t i = 0; i < top_k_; ++i) at.last_use[ids[i]] = at.num_tokens;
  at.before.swap(at.last);
  at.last.assign(ids, ids + top_k_);
}

// By the token that was counted last: of it, no_use was predicted before it came.
void UseModel::learn(Layer& at, const double* no_use) {
  if (at.num_evidence > 0) {
    for (std::int64_t j = 0; j < num_experts_; ++j)
      errors_[j] = 1 - no_use[j] - (at.last_use[j] == at.num_tokens);
    step(next_weights_, at.next_pairs, kNextPairRate, at.evidence[(at.num_evidence - 1) % kHorizon]);
  }
  if (at.num_evidence >= kHorizon) {
    const Evidence& oldest = at.evidence[at.num_evidence % kHorizon];
    add_pairs(at.horizon_pairs, oldest.rows);
    for (std::int64_t j = 0; j < num_experts_; ++j) {
      const double soon = likelihood(weighted(horizon_weights_, oldest.features, num_experts_, j) + sums_[j]);
      errors_[j] = soon - (at.last_use[j] > at.num_tokens - kHorizon);
    }
    step(horizon_weights_, at.horizon_pairs, kHorizonPairRate, oldest);
  }
}

// A step of gradient descent; the weights that experts share take the mean of theirs.
template <std::size_t N>
void UseModel::step(std::array<double, N>& weights, std::vector<float>& pairs, double pair_rate,
                    const Evidence& seen) {
  const auto count = static_cast<double>(num_experts_);
  for (std::size_t f = 0; f < N; ++f) {
    const double* const feature = f + 1 < N ? &seen.features[f * num_experts_] : nullptr;
    double sum = 0;
    for (std::int64_t j = 0; j < num_experts_; ++j)
      sum += feature != nullptr ? errors_[j] * feature[j] : errors_[j];
    weights[f] -= kRate / count * sum;
  }
  for (std::int64_t j = 0; j < num_experts_; ++j) sums_[j] = static_cast<float>(pair_rate * errors_[j]);
  for (const std::int64_t row : seen.rows) {
    float* const weights_of_row = &pairs[row * num_experts_];
    for (std::int64_t j = 0; j < num_experts_; ++j) weights_of_row[j] -= sums_[j];
  }
}

// Pairs speak by the layer's last token, by that of the layer below (for the first: of the last layer), and
// by the token before.
void UseModel::gather(std::int64_t layer, Evidence& out) {
  const Layer& at = layers_[layer];
  const Layer& below = layers_[layer > 0 ? layer - 1 : num_layers() - 1];
  out.rows.clear();
  for (const std::int64_t id : at.last) out.rows.push_back(id);
  for (const std::int64_t id : below.last) out.rows.push_back(num_experts_ + id);
  for (const std::int64_t id : at.before) out.rows.push_back(2 * num_experts_ + id);
  for (std::size_t i = 0; i < at.frequency.size(); ++i) out.features[i] = std::log(at.frequency[i] + kFloor);
  double* const used = &out.features[kHalfLives * num_experts_];
  std::fill_n(used, num_experts_, 0.0);
  for (const std::int64_t id : at.last) used[id] = 1;
  add_pairs(at.next_pairs, out.rows);
  std::copy(sums_.begin(), sums_.end(), used + num_experts_);
}

void UseModel::predict(const Layer& at, const Evidence& seen, double* no_use, double* wait) {
  const double* const next = &seen.features[(kFeatures - 1) * num_experts_];
  add_pairs(at.horizon_pairs, seen.rows);
  for (std::int64_t j = 0; j < num_experts_; ++j) {
    const double soon = likelihood(weighted(horizon_weights_, seen.features, num_experts_, j) + sums_[j]);
    no_use[j] = 1 - likelihood(weighted(next_weights_, seen.features, num_experts_, j) + next[j]);
    wait[j] = no_use[j] / (1 - std::pow(1 - soon, 1.0 / kHorizon));
  }
}

void UseModel::add_pairs(const std::vector<float>& pairs, const std::vector<std::int64_t>& rows) {
  std::fill(sums_.begin(), sums_.end(), 0.0F);
  for (const std::int64_t row : rows) {
    const float* const weights = &pairs[row * num_experts_];
    for (std::int64_t j = 0; j < num_experts_; ++j) sums_[j] += weights[j];
  }
}

}  // namespace moeinf
