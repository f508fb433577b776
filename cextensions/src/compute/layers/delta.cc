#include "moeinf/compute/layers/delta.h"

#include <algorithm>
#include <cmath>

#include "recurrent_layer.h"
#include "softplus.h"

namespace moeinf {
namespace {

// Where a projection left something of token t, key head h and the j-th value head under it.
struct Strided {
  const float* data;
  std::int64_t of_token, of_head, of_share;

  const float* at(std::int64_t t, std::int64_t h, std::int64_t j = 0) const {
    return data + t * of_token + h * of_head + j * of_share;
  }
};

class DeltaRule {
 public:
  using Shape = DeltaShape;
  using Weights = DeltaWeights;
  static constexpr bool kFinishes = false;

  static std::vector<std::int64_t> rows(const Shape& s) {
    return {s.channels(), s.values(), s.num_value_heads, s.num_value_heads};
  }
  static std::int64_t width(const Shape& s) { return s.values(); }
  static std::int64_t thread_floats(const Shape& s, std::int64_t tokens) {
    return round_up(2 * tokens, 16) + round_up(tokens * s.value_dim, 16) +
           round_up(2 * std::max(s.key_dim, s.shared_by() * s.value_dim), 16);
  }
  static const std::vector<Matrix>& projections(const Weights& w) { return w.projections; }
  static const float* conv_bias(const Weights&) { return nullptr; }
  static const float* in_bias(const Weights&) { return nullptr; }
  static const float* out_bias(const Weights&) { return nullptr; }
  static float channels_eps(const Shape& s) { return s.unit_eps; }
  static float residual(const Shape&) { return 1; }
  static bool replaces(const Shape& s) { return s.replaces; }

  DeltaRule(const Ops& ops, const Shape& shape, const Weights& weights, const RecurrentVectors& vectors)
      : ops_(ops), s_(shape), w_(weights), v_(vectors) {
    const std::vector<float*>& projected = v_.projected;
    const std::int64_t share = s_.shared_by(), of_keys = s_.key_dim, of_values = share * s_.value_dim;
    if (w_.projections.size() == 2) {
      const std::int64_t row = w_.projections[0].rows, head = 2 * of_keys + 2 * of_values;
      const float* const first = projected[0];
      queries_ = {first, row, head, 0};
      keys_ = {first + of_keys, row, head, 0};
      values_ = {first + 2 * of_keys, row, head, s_.value_dim};
      gates_ = {first + 2 * of_keys + of_values, row, head, s_.value_dim};
      rates_ = {projected[1], 2 * s_.num_value_heads, 2 * share, 1};
      steps_ = {projected[1] + share, 2 * s_.num_value_heads, 2 * share, 1};
    } else {
      const std::int64_t row = s_.channels();
      queries_ = {projected[0], row, of_keys, 0};
      keys_ = {projected[0] + s_.keys(), row, of_keys, 0};
      values_ = {projected[0] + 2 * s_.keys(), row, of_values, s_.value_dim};
      gates_ = {projected[1], s_.values(), of_values, s_.value_dim};
      rates_ = {projected[2], s_.num_value_heads, share, 1};
      steps_ = {projected[3], s_.num_value_heads, share, 1};
    }
  }

  std::int64_t num_tasks() const { return s_.num_key_heads; }

  // The channels of one key head.
  template <class Call>
  void each_part(std::int64_t head, const Call& call) const {
    const std::int64_t of_values = s_.shared_by() * s_.value_dim;
    call({head * s_.key_dim, s_.key_dim, queries_.at(0, head), queries_.of_token, w_.q_norm});
    call({s_.keys() + head * s_.key_dim, s_.key_dim, keys_.at(0, head), keys_.of_token, w_.k_norm});
    call({2 * s_.keys() + head * of_values, of_values, values_.at(0, head), values_.of_token, nullptr});
  }

  void run_head(std::int64_t head, const RecurrentStretch& stretch, float* scratch) const {
    const std::int64_t h = head / s_.shared_by(), j = head % s_.shared_by();
    const std::int64_t first = stretch.first, tokens = stretch.tokens;
    float* const decays = scratch;
    float* const rates = decays + tokens;
    float* const outputs = decays + round_up(2 * tokens, 16);
    float* const normed = outputs + round_up(tokens * s_.value_dim, 16);
    for (std::int64_t t = 0; t < tokens; ++t) {
      decays[t] = std::exp(w_.decay[head] * softplus(*steps_.at(first + t, h, j) + w_.bias[head]));
      rates[t] = 1 / (1 + std::exp(-*rates_.at(first + t, h, j)));
    }
    const std::int64_t state = head * s_.key_dim * s_.value_dim;
    DeltaTask task;
    const float* const mixed = v_.mixed + first * s_.channels();
    task.queries = mixed + h * s_.key_dim;
    task.keys = task.queries + s_.keys();
    task.values = mixed + 2 * s_.keys() + head * s_.value_dim;
    task.stride = s_.channels();
    task.decays = decays;
    task.of_channels = false;
    task.rates = rates;
    task.tokens = tokens;
    task.key_dim = s_.key_dim;
    task.value_dim = s_.value_dim;
    task.state = stretch.states.heads + state;
    task.new_state = stretch.states.new_heads + state;
    task.out = outputs;
    ops_.run_delta(task);
    for (std::int64_t t = 0; t < tokens; ++t) {
      ops_.rms_norm(outputs + t * s_.value_dim, w_.head_norm, s_.norm_eps, s_.value_dim, normed);
      float* const gated = v_.gated + (first + t) * s_.values() + head * s_.value_dim;
      if (s_.sigmoid_gates) {
        ops_.sigmoid_mul(gates_.at(first + t, h, j), normed, s_.value_dim);
        std::copy(normed, normed + s_.value_dim, gated);
      } else {
        ops_.activate(Activation::kSilu, 0, gates_.at(first + t, h, j), normed, gated, s_.value_dim);
      }
    }
  }

 private:
  const Ops& ops_;
  const Shape& s_;
  const Weights& w_;
  const RecurrentVectors& v_;
  Strided queries_, keys_, values_, gates_, rates_, steps_;
};

}  // namespace

void delta_net(Kernels& kernels, const DeltaShape& shape, const DeltaWeights& weights,
               Span<const RecurrentStretch> stretches, RowSpan<float> x) {
  run_recurrent<DeltaRule>(kernels, shape, weights, stretches, x);
}

void channel_delta(Kernels& kernels, const ChannelDelta& d) {
  const std::int64_t width = d.heads * d.dim;
  kernels.pool().run(d.heads, [&](std::int64_t head, int) {
    std::vector<float> rates(static_cast<std::size_t>(d.tokens));
    for (std::int64_t t = 0; t < d.tokens; ++t)
      rates[static_cast<std::size_t>(t)] = d.rates[t * d.heads + head];
    DeltaTask task;
    task.queries = d.queries + head * d.dim;
    task.keys = d.keys + head * d.dim;
    task.values = d.values + head * d.dim;
    task.stride = width;
    task.decays = d.decays + head * d.dim;
    task.of_channels = true;
    task.rates = rates.data();
    task.tokens = d.tokens;
    task.key_dim = task.value_dim = d.dim;
    task.state = d.state + head * d.dim * d.dim;
    task.new_state = d.new_state + head * d.dim * d.dim;
    task.out = d.out + head * d.tokens * d.dim;
    kernels.ops().run_delta(task);
  });
}

std::size_t delta_workspace_bytes(const DeltaShape& shape, const PassShape& pass) {
  return recurrent_workspace_bytes<DeltaRule>(shape, pass);
}

}  // namespace moeinf
