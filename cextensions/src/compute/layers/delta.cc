#include "moeinf/compute/layers/delta.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "recurrent.h"

namespace moeinf {
namespace {

// Of a long prompt: bounds the memory of the vectors below, of which a token has twice what it has in
// attention.
constexpr std::int64_t kTokensAtOnce = 64;

// Where a projection left something of token t, key head h and the j-th value head under it.
struct Strided {
  const float* data;
  std::int64_t of_token, of_head, of_share;

  const float* at(std::int64_t t, std::int64_t h, std::int64_t j = 0) const {
    return data + t * of_token + h * of_head + j * of_share;
  }
};

struct Vectors {
  float *normed, *mixed, *gated;  // [tokens, hidden], [tokens, channels], [tokens, values]
  float* threads;                 // of each thread thread_floats
  std::int64_t thread_floats;
};

Vectors take_vectors(Workspace::Frame& memory, const DeltaShape& s, std::int64_t tokens, int num_threads) {
  Vectors v;
  v.normed = memory.take<float>(tokens * s.hidden);
  v.mixed = memory.take<float>(tokens * s.channels());
  v.gated = memory.take<float>(tokens * s.values());
  v.thread_floats = whole_lines(2 * tokens) + whole_lines(tokens * s.value_dim) +
                    whole_lines(2 * std::max(s.key_dim, s.shared_by() * s.value_dim));
  v.threads = memory.take<float>(v.thread_floats * num_threads);
  return v;
}

// A few tokens of one layer.
class Pass {
 public:
  Pass(Kernels& kernels, const DeltaShape& shape, const DeltaWeights& weights, const DeltaStates& states,
       float* x, std::int64_t tokens)
      : kernels_(kernels),
        ops_(kernels.ops()),
        s_(shape),
        w_(weights),
        states_(states),
        x_(x),
        tokens_(tokens),
        memory_(kernels.workspace()),
        v_(take_vectors(memory_, shape, tokens, kernels.pool().num_threads())) {
    for (const Matrix& matrix : w_.projections)
      projected_.push_back(memory_.take<float>(tokens * matrix.rows));
    place_projections();
  }

  void run() {
    each_token([&](std::int64_t t) {
      const float* const from = x_ + t * s_.hidden;
      float* const to = v_.normed + t * s_.hidden;
      if (w_.norm == nullptr) {
        std::copy(from, from + s_.hidden, to);
      } else {
        ops_.rms_norm(from, w_.norm, s_.norm_eps, s_.hidden, to);
      }
    });
    kernels_.linears(w_.projections, v_.normed, tokens_, projected_);
    kernels_.pool().run(s_.num_key_heads,
                        [&](std::int64_t head, int thread) { mix_tokens(head, scratch(thread)); });
    kernels_.pool().run(s_.num_value_heads,
                        [&](std::int64_t head, int thread) { run_head(head, scratch(thread)); });
    float* const out = v_.normed;
    kernels_.linear(w_.output, v_.gated, tokens_, out);
    each_token([&](std::int64_t t) {
      if (s_.replaces) std::fill_n(x_ + t * s_.hidden, s_.hidden, 0.0f);
      ops_.add_scaled(out + t * s_.hidden, 1.0f, x_ + t * s_.hidden, s_.hidden);
    });
  }

 private:
  void place_projections() {
    const std::int64_t share = s_.shared_by(), of_keys = s_.key_dim, of_values = share * s_.value_dim;
    if (w_.projections.size() == 2) {
      const std::int64_t row = w_.projections[0].rows, head = 2 * of_keys + 2 * of_values;
      const float* const first = projected_[0];
      queries_ = {first, row, head, 0};
      keys_ = {first + of_keys, row, head, 0};
      values_ = {first + 2 * of_keys, row, head, s_.value_dim};
      gates_ = {first + 2 * of_keys + of_values, row, head, s_.value_dim};
      rates_ = {projected_[1], 2 * s_.num_value_heads, 2 * share, 1};
      steps_ = {projected_[1] + share, 2 * s_.num_value_heads, 2 * share, 1};
    } else {
      const std::int64_t row = s_.channels();
      queries_ = {projected_[0], row, of_keys, 0};
      keys_ = {projected_[0] + s_.keys(), row, of_keys, 0};
      values_ = {projected_[0] + 2 * s_.keys(), row, of_values, s_.value_dim};
      gates_ = {projected_[1], s_.values(), of_values, s_.value_dim};
      rates_ = {projected_[2], s_.num_value_heads, share, 1};
      steps_ = {projected_[3], s_.num_value_heads, share, 1};
    }
  }

  template <typename Task>
  void each_token(const Task& task) {
    if (tokens_ <= kMaxDotRows) {
      for (std::int64_t t = 0; t < tokens_; ++t) task(t);
    } else {
      kernels_.pool().run(tokens_, [&](std::int64_t t, int) { task(t); });
    }
  }

  // The channels of one key head, as the rule takes them.
  void mix_tokens(std::int64_t head, float* scratch) {
    const std::int64_t of_values = s_.shared_by() * s_.value_dim;
    convolve(queries_, head, head * s_.key_dim, s_.key_dim, w_.q_norm, scratch);
    convolve(keys_, head, s_.keys() + head * s_.key_dim, s_.key_dim, w_.k_norm, scratch);
    convolve(values_, head, 2 * s_.keys() + head * of_values, of_values, nullptr, scratch);
  }

  // `count` neighbouring channels: silu of each one's weighted sum over its last `kernel` tokens, then the
  // norm.
  void convolve(const Strided& from, std::int64_t head, std::int64_t channel, std::int64_t count,
                const float* norm, float* scratch) {
    float *const sums = scratch, *const activated = scratch + count;
    const std::int64_t before = s_.kernel - 1;
    const auto seen = [&](std::int64_t t) {  // inputs, the first of them left by earlier tokens
      return t < before ? states_.conv + t * s_.channels() + channel : from.at(t - before, head);
    };
    const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      float* const out = v_.mixed + t * s_.channels() + channel;
      std::memset(sums, 0, num_bytes);
      for (std::int64_t i = 0; i < s_.kernel; ++i) {
        ops_.add_product(seen(t + i), w_.taps + i * s_.channels() + channel, sums, count);
      }
      ops_.activate(Activation::kSilu, 0, sums, nullptr, norm == nullptr ? out : activated, count);
      if (norm != nullptr) ops_.rms_norm(activated, norm, s_.unit_eps, count, out);
    }
    for (std::int64_t i = 0; i < before; ++i) {  // ascending: the two states may be one
      std::memmove(states_.new_conv + i * s_.channels() + channel, seen(tokens_ + i), num_bytes);
    }
  }

  void run_head(std::int64_t head, float* scratch) {
    const std::int64_t h = head / s_.shared_by(), j = head % s_.shared_by();
    float* const decays = scratch;
    float* const rates = decays + tokens_;
    float* const outputs = decays + whole_lines(2 * tokens_);
    float* const normed = outputs + whole_lines(tokens_ * s_.value_dim);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      decays[t] = std::exp(w_.decay[head] * softplus(*steps_.at(t, h, j) + w_.bias[head]));
      rates[t] = 1 / (1 + std::exp(-*rates_.at(t, h, j)));
    }
    const std::int64_t state = head * s_.key_dim * s_.value_dim;
    DeltaTask task;
    task.queries = v_.mixed + h * s_.key_dim;
    task.keys = task.queries + s_.keys();
    task.values = v_.mixed + 2 * s_.keys() + head * s_.value_dim;
    task.stride = s_.channels();
    task.decays = decays;
    task.of_channels = false;
    task.rates = rates;
    task.tokens = tokens_;
    task.key_dim = s_.key_dim;
    task.value_dim = s_.value_dim;
    task.state = states_.heads + state;
    task.new_state = states_.new_heads + state;
    task.out = outputs;
    ops_.run_delta(task);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      ops_.rms_norm(outputs + t * s_.value_dim, w_.head_norm, s_.norm_eps, s_.value_dim, normed);
      float* const gated = v_.gated + t * s_.values() + head * s_.value_dim;
      if (s_.sigmoid_gates) {
        ops_.sigmoid_mul(gates_.at(t, h, j), normed, s_.value_dim);
        std::copy(normed, normed + s_.value_dim, gated);
      } else {
        ops_.activate(Activation::kSilu, 0, gates_.at(t, h, j), normed, gated, s_.value_dim);
      }
    }
  }

  float* scratch(int thread) const { return v_.threads + thread * v_.thread_floats; }

  Kernels& kernels_;
  const Ops& ops_;
  const DeltaShape& s_;
  const DeltaWeights& w_;
  const DeltaStates states_;
  float* const x_;
  const std::int64_t tokens_;

  Workspace::Frame memory_;
  const Vectors v_;
  std::vector<float*> projected_;
  Strided queries_, keys_, values_, gates_, rates_, steps_;
};

}  // namespace

void delta_net(Kernels& kernels, const DeltaShape& shape, const DeltaWeights& weights,
               const DeltaStates& states, float* x, std::int64_t num_tokens) {
  DeltaStates from = states;
  for (std::int64_t start = 0; start < num_tokens; start += kTokensAtOnce) {
    Pass(kernels, shape, weights, from, x + start * shape.hidden, std::min(kTokensAtOnce, num_tokens - start))
        .run();
    from.conv = states.new_conv;
    from.heads = states.new_heads;
  }
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
  const std::int64_t tokens = std::min(pass.tokens, kTokensAtOnce);
  Workspace::Frame memory;
  take_vectors(memory, shape, tokens, pass.num_threads);
  for (const std::int64_t rows :
       {shape.channels(), shape.values(), shape.num_value_heads, shape.num_value_heads})
    memory.take<float>(tokens * rows);
  return memory.num_bytes() + prepared_bytes(pass, tokens, std::max(shape.hidden, shape.values()));
}

}  // namespace moeinf
