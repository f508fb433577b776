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

// All that a visit needs, so that none fails half-way for want of memory.
UseModel::Row::Row(std::int64_t num_experts, std::int64_t top_k)
    : last_use(num_experts, 0), no_use(num_experts), wait(num_experts) {
  for (Evidence& each : evidence) {
    each.features.assign(kFeatures * num_experts, 0);
    each.rows.reserve(kSources * top_k);
  }
  last.reserve(top_k);
  before.reserve(top_k);
}

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
    at.rows.reserve(kMostRows);
    for (std::int64_t row = 0; row < kMostRows; ++row) at.rows.emplace_back(num_experts, top_k);
  }
  rows_.reserve(kSources * top_k);
}

std::size_t UseModel::num_bytes(std::int64_t num_layers, std::int64_t num_experts) {
  const std::size_t pairs = 2 * kSources * num_experts * sizeof(float);
  const std::size_t row = (kHorizon * kFeatures + 2) * sizeof(double) + sizeof(std::int64_t);
  return num_layers * num_experts * (pairs + kMostRows * row + (kHalfLives + 2) * sizeof(double));
}

void UseModel::restart() {
  for (Layer& at : layers_) at.num_rows = 0;
}

void UseModel::forget(Row& row) {
  row.num_evidence = 0;
  row.last.clear();
  row.before.clear();
}

MOEINF_WIDE_LOOPS void UseModel::observe(std::int64_t layer, const std::int64_t* ids,
                                         std::int64_t num_tokens) {
  require_routing(layer, num_layers(), num_tokens);
  Layer& at = layers_[layer];
  const bool goes_on = num_tokens <= kMostRows;
  const std::size_t num_rows = goes_on ? num_tokens : 1;
  for (std::size_t row = at.num_rows; row < num_rows; ++row) forget(at.rows[row]);
  at.num_rows = num_rows;
  if (goes_on) {
    for (std::size_t row = 0; row < num_rows; ++row) {
      count(at, at.rows[row], ids + row * top_k_);
      observe_row(layer, row);
    }
  } else {
    for (std::int64_t token = 0; token < num_tokens; ++token) count(at, at.rows[0], ids + token * top_k_);
    at.rows[0].num_evidence = 0;
    observe_row(layer, 0);
  }
  join_rows(layer);
}

// Learns from the row's token that was counted last, and predicts its next.
void UseModel::observe_row(std::int64_t layer, std::size_t row) {
  Layer& at = layers_[layer];
  Row& of = at.rows[row];
  find_rows(layer, row, rows_);
  fetch(at.next_pairs, 2 * num_experts_, rows_, 2 * num_experts_);
  if (of.num_evidence > 0) learn(at, of);
  Evidence& now = of.evidence[of.num_evidence++ % kHorizon];
  now.rows.swap(rows_);
  gather(at, of, now);
  predict(at, now, of);
}

// That none of the rows uses an expert, in the next pass and in any: each chooses by itself.
void UseModel::join_rows(std::int64_t layer) {
  const Layer& at = layers_[layer];
  double* const no_use = &no_use_[layer * num_experts_];
  double* const wait = &wait_[layer * num_experts_];
  std::copy_n(at.rows[0].no_use.begin(), num_experts_, no_use);
  std::copy_n(at.rows[0].wait.begin(), num_experts_, wait);
  if (at.num_rows == 1) return;
  double* const none = logits_.data();  // the share of passes that do not use an expert
  for (std::int64_t j = 0; j < num_experts_; ++j) none[j] = 1 - no_use[j] / wait[j];
  for (std::size_t row = 1; row < at.num_rows; ++row) {
    const Row& of = at.rows[row];
    for (std::int64_t j = 0; j < num_experts_; ++j) {
      no_use[j] *= of.no_use[j];
      none[j] *= 1 - of.no_use[j] / of.wait[j];
    }
  }
  for (std::int64_t j = 0; j < num_experts_; ++j) wait[j] = no_use[j] / (1 - none[j]);
}

void UseModel::count(Layer& at, Row& row, const std::int64_t* ids) {
  for (std::size_t h = 0; h < kHalfLives; ++h) {
    const double decay = std::exp2(-1 / kHalfLifeTokens[h]);
    double* const frequency = &at.frequency[h * num_experts_];
    for (std::int64_t j = 0; j < num_experts_; ++j) frequency[j] *= decay;
    for (std::int64_t i = 0; i < top_k_; ++i) frequency[ids[i]] += 1 - decay;
  }
  ++row.num_tokens;
  for (std::int64_t i = 0; i < top_k_; ++i) row.last_use[ids[i]] = row.num_tokens;
  row.before.swap(row.last);
  row.last.assign(ids, ids + top_k_);
}

// By the token that was counted last: of it, no_use was predicted before it came.
void UseModel::learn(Layer& at, const Row& row) {
  const Evidence& last = row.evidence[(row.num_evidence - 1) % kHorizon];
  const Evidence& oldest = row.evidence[row.num_evidence % kHorizon];
  const bool is_full = row.num_evidence >= kHorizon;
  fetch(at.next_pairs, 2 * num_experts_, last.rows, num_experts_);
  if (is_full) fetch(at.horizon_pairs, 2 * num_experts_, oldest.rows, num_experts_);
  for (std::int64_t j = 0; j < num_experts_; ++j)
    errors_[j] = 1 - row.no_use[j] - (row.last_use[j] == row.num_tokens);
  step(next_weights_, at.next_pairs, kNextPairRate, last);
  if (!is_full) return;
  add_pairs(at.horizon_pairs, oldest.rows);
  weigh(horizon_weights_, oldest.features);
  for (std::int64_t j = 0; j < num_experts_; ++j)
    errors_[j] = likelihood(logits_[j] + sums_[j]) - (row.last_use[j] > row.num_tokens - kHorizon);
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

// Pairs speak by the row's last token in the layer, by that in the layer below (for the first: in the last
// layer), and by the token before.
void UseModel::find_rows(std::int64_t layer, std::size_t row, std::vector<std::int64_t>& rows) const {
  const Row& at = layers_[layer].rows[row];
  const Layer& below = layers_[layer > 0 ? layer - 1 : num_layers() - 1];
  rows = at.last;
  if (row < below.num_rows)
    for (const std::int64_t id : below.rows[row].last) rows.push_back(num_experts_ + id);
  for (const std::int64_t id : at.before) rows.push_back(2 * num_experts_ + id);
}

void UseModel::gather(const Layer& at, const Row& row, Evidence& out) {
  for (std::size_t i = 0; i < at.frequency.size(); ++i)
    out.features[i] = logarithm_of(at.frequency[i] + kFloor);
  double* const used = &out.features[kHalfLives * num_experts_];
  std::fill_n(used, num_experts_, 0.0);
  for (const std::int64_t id : row.last) used[id] = 1;
  add_pairs(at.next_pairs, out.rows);
  std::copy(sums_.begin(), sums_.end(), used + num_experts_);
}

void UseModel::predict(const Layer& at, const Evidence& seen, Row& row) {
  static_assert(kHorizon == 4, "the fourth root is that of a root");
  const double* const next = &seen.features[(kFeatures - 1) * num_experts_];
  weigh(next_weights_, seen.features);
  for (std::int64_t j = 0; j < num_experts_; ++j) row.no_use[j] = 1 - likelihood(logits_[j] + next[j]);
  add_pairs(at.horizon_pairs, seen.rows);
  weigh(horizon_weights_, seen.features);
  for (std::int64_t j = 0; j < num_experts_; ++j) {
    const double soon = likelihood(logits_[j] + sums_[j]);
    row.wait[j] = row.no_use[j] / (1 - std::sqrt(std::sqrt(1 - soon)));
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
