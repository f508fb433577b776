#include "moeinf/policy/use_model.h"

#include <algorithm>
#include <cmath>

#include "sizes.h"
#include "vector_math.h"

// Compiles a function, with all that it calls here, also for wider vectors, without fused products: the same
// numbers. A sanitizer is not ready yet when the choice is made.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MOEINF_WIDE_LOOPS __attribute__((flatten, target_clones("avx2", "default")))
#else
#define MOEINF_WIDE_LOOPS
#endif

namespace moeinf {
namespace {

constexpr double kHalfLifeTokens[] = {10, 160};
constexpr double kFloor = 0.01;             // added to a frequency before its log
constexpr double kRate = 0.005;             // of learning: for the weights that all experts share,
constexpr double kNextPairRate = 0.04;      // and for those of pairs
constexpr double kHorizonPairRate = 0.003;  // each token is in kHorizon labels
constexpr double kMostLogit = 30;           // either way, so that nothing becomes infinite

double likelihood(double logit) {
  const double below = logit < kMostLogit ? logit : kMostLogit;
  return 1 / (1 + exponential_of(below > -kMostLogit ? -below : kMostLogit));
}

// What observe will read of the pairs, while it works on other things: they do not stay in the caches, as the
// weights of experts pass through these.
void fetch(const float* pairs, std::int64_t stride, const std::vector<std::int64_t>& rows,
           std::int64_t count) {
  for (const std::int64_t row : rows)
    for (std::int64_t j = 0; j < count; j += 16) __builtin_prefetch(pairs + row * stride + j);
}

}  // namespace

UseModel::UseModel(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k)
    : num_experts_(num_experts),
      top_k_(top_k),
      layers_(require_sizes(num_layers, num_experts, top_k) / num_experts),
      errors_(num_experts),
      logits_(num_experts),
      sums_(num_experts) {
  const double chance = static_cast<double>(top_k) / static_cast<double>(num_experts);
  no_use_.assign(num_layers * num_experts, 1 - chance);
  wait_.assign(num_layers * num_experts, (1 - chance) / chance);
  const std::int64_t of_layer = kSources * num_experts * 2 * num_experts;
  auto* pairs = pairs_.reserve_array<float>(num_layers * of_layer);
  std::fill_n(pairs, num_layers * of_layer, 0.0F);
  for (Layer& at : layers_) {
    at.frequency.assign(kHalfLives * num_experts, chance);
    at.next_pairs = pairs;
    at.horizon_pairs = pairs + num_experts;
    pairs += of_layer;
    // All that a visit needs, so that none fails half-way for want of memory.
    for (Evidence& each : at.evidence) {
      each.features.assign(kFeatures * num_experts, 0);
      each.rows.reserve(kSources * top_k);
    }
    at.last.reserve(top_k);
    at.before.reserve(top_k);
    at.last_use.assign(num_experts, 0);
  }
  rows_.reserve(kSources * top_k);
}

std::size_t UseModel::num_bytes(std::int64_t num_layers, std::int64_t num_experts) {
  const std::size_t pairs = 2 * kSources * num_experts * sizeof(float);
  const std::size_t rest = (kHalfLives + kHorizon * kFeatures + 2) * sizeof(double) + sizeof(std::int64_t);
  return num_layers * num_experts * (pairs + rest);
}

void UseModel::restart() {
  for (Layer& at : layers_) {
    at.num_evidence = 0;
    at.last.clear();
    at.before.clear();
  }
}

MOEINF_WIDE_LOOPS void UseModel::observe(std::int64_t layer, const std::int64_t* ids,
                                         std::int64_t num_tokens) {
  require_routing(layer, num_layers(), num_tokens);
  Layer& at = layers_[layer];
  double* const no_use = &no_use_[layer * num_experts_];
  for (std::int64_t token = 0; token < num_tokens; ++token) count(at, ids + token * top_k_);
  if (num_tokens > 1) at.num_evidence = 0;
  find_rows(layer, rows_);
  fetch(at.next_pairs, 2 * num_experts_, rows_, 2 * num_experts_);
  if (at.num_evidence > 0) learn(at, no_use);
  Evidence& now = at.evidence[at.num_evidence++ % kHorizon];
  now.rows.swap(rows_);
  gather(at, now);
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
  const Evidence& last = at.evidence[(at.num_evidence - 1) % kHorizon];
  const Evidence& oldest = at.evidence[at.num_evidence % kHorizon];
  const bool is_full = at.num_evidence >= kHorizon;
  fetch(at.next_pairs, 2 * num_experts_, last.rows, num_experts_);
  if (is_full) fetch(at.horizon_pairs, 2 * num_experts_, oldest.rows, num_experts_);
  for (std::int64_t j = 0; j < num_experts_; ++j)
    errors_[j] = 1 - no_use[j] - (at.last_use[j] == at.num_tokens);
  step(next_weights_, at.next_pairs, kNextPairRate, last);
  if (!is_full) return;
  add_pairs(at.horizon_pairs, oldest.rows);
  weigh(horizon_weights_, oldest.features);
  for (std::int64_t j = 0; j < num_experts_; ++j)
    errors_[j] = likelihood(logits_[j] + sums_[j]) - (at.last_use[j] > at.num_tokens - kHorizon);
  step(horizon_weights_, at.horizon_pairs, kHorizonPairRate, oldest);
}

// A step of gradient descent; the weights that experts share take the mean of theirs.
template <std::size_t N>
void UseModel::step(std::array<double, N>& weights, float* pairs, double pair_rate, const Evidence& seen) {
  std::array<double, N> sums{};  // side by side: one alone would wait for each of its additions
  for (std::int64_t j = 0; j < num_experts_; ++j) {
    for (std::size_t f = 0; f + 1 < N; ++f) sums[f] += errors_[j] * seen.features[f * num_experts_ + j];
    sums[N - 1] += errors_[j];
  }
  for (std::size_t f = 0; f < N; ++f) weights[f] -= kRate / static_cast<double>(num_experts_) * sums[f];
  for (std::int64_t j = 0; j < num_experts_; ++j) sums_[j] = static_cast<float>(pair_rate * errors_[j]);
  for (const std::int64_t row : seen.rows) {
    float* const weights_of_row = pairs + row * 2 * num_experts_;
    for (std::int64_t j = 0; j < num_experts_; ++j) weights_of_row[j] -= sums_[j];
  }
}

// Pairs speak by the layer's last token, by that of the layer below (for the first: of the last layer), and
// by the token before.
void UseModel::find_rows(std::int64_t layer, std::vector<std::int64_t>& rows) const {
  const Layer& at = layers_[layer];
  const Layer& below = layers_[layer > 0 ? layer - 1 : num_layers() - 1];
  rows = at.last;
  for (const std::int64_t id : below.last) rows.push_back(num_experts_ + id);
  for (const std::int64_t id : at.before) rows.push_back(2 * num_experts_ + id);
}

void UseModel::gather(const Layer& at, Evidence& out) {
  for (std::size_t i = 0; i < at.frequency.size(); ++i)
    out.features[i] = logarithm_of(at.frequency[i] + kFloor);
  double* const used = &out.features[kHalfLives * num_experts_];
  std::fill_n(used, num_experts_, 0.0);
  for (const std::int64_t id : at.last) used[id] = 1;
  add_pairs(at.next_pairs, out.rows);
  std::copy(sums_.begin(), sums_.end(), used + num_experts_);
}

void UseModel::predict(const Layer& at, const Evidence& seen, double* no_use, double* wait) {
  static_assert(kHorizon == 4, "the fourth root is that of a root");
  const double* const next = &seen.features[(kFeatures - 1) * num_experts_];
  weigh(next_weights_, seen.features);
  for (std::int64_t j = 0; j < num_experts_; ++j) no_use[j] = 1 - likelihood(logits_[j] + next[j]);
  add_pairs(at.horizon_pairs, seen.rows);
  weigh(horizon_weights_, seen.features);
  for (std::int64_t j = 0; j < num_experts_; ++j) {
    const double soon = likelihood(logits_[j] + sums_[j]);
    wait[j] = no_use[j] / (1 - std::sqrt(std::sqrt(1 - soon)));
  }
}

// The logits of all experts but for their pairs.
template <std::size_t N>
void UseModel::weigh(const std::array<double, N>& weights, const std::vector<double>& features) {
  for (std::int64_t j = 0; j < num_experts_; ++j) {
    double sum = weights[N - 1];
    for (std::size_t f = 0; f + 1 < N; ++f) sum += weights[f] * features[f * num_experts_ + j];
    logits_[j] = sum;
  }
}

void UseModel::add_pairs(const float* pairs, const std::vector<std::int64_t>& rows) {
  std::fill(sums_.begin(), sums_.end(), 0.0F);
  for (const std::int64_t row : rows) {
    const float* const weights = pairs + row * 2 * num_experts_;
    for (std::int64_t j = 0; j < num_experts_; ++j) sums_[j] += weights[j];
  }
}

}  // namespace moeinf
