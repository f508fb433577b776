#include "moeinf/compute/layers/mamba.h"

#include <algorithm>
#include <cmath>

#include "recurrent_layer.h"
#include "softplus.h"

namespace moeinf {
namespace {

constexpr std::int64_t kChannelsAtOnce = 512;  // that one task convolves

class StateSpace {
 public:
  using Shape = MambaShape;
  using Weights = MambaWeights;
  static constexpr bool kFinishes = true;

  static std::vector<std::int64_t> rows(const Shape& s) { return {s.projected()}; }
  static std::int64_t width(const Shape& s) { return s.inner(); }
  static std::int64_t thread_floats(const Shape& s, std::int64_t tokens) {
    return std::max(kChannelsAtOnce, round_up(tokens, 16) + 2 * round_up(tokens * s.head_dim, 16));
  }
  static std::vector<Matrix> projections(const Weights& w) { return {w.input}; }
  static const float* conv_bias(const Weights& w) { return w.conv_bias; }
  static const float* in_bias(const Weights& w) { return w.in_bias; }
  static const float* out_bias(const Weights& w) { return w.out_bias; }
  static float channels_eps(const Shape&) { return 0; }
  static float residual(const Shape& s) { return s.residual; }
  static bool replaces(const Shape&) { return false; }

  StateSpace(const Ops& ops, const Shape& shape, const Weights& weights, const RecurrentVectors& vectors)
      : ops_(ops), s_(shape), w_(weights), v_(vectors) {}

  std::int64_t num_tasks() const { return (s_.channels() + kChannelsAtOnce - 1) / kChannelsAtOnce; }

  template <class Call>
  void each_part(std::int64_t task, const Call& call) const {
    const std::int64_t first = task * kChannelsAtOnce;
    call({first, std::min(kChannelsAtOnce, s_.channels() - first), v_.projected[0] + s_.inner() + first,
          s_.projected(), nullptr});
  }

  void run_head(std::int64_t head, const RecurrentStretch& stretch, float* scratch) const {
    const std::int64_t tokens = stretch.tokens;
    float* const decays = scratch;
    float* const inputs = decays + round_up(tokens, 16);
    float* const outputs = inputs + round_up(tokens * s_.head_dim, 16);
    const float* const mixed = v_.mixed + stretch.first * s_.channels();
    const float* const projected = v_.projected[0] + stretch.first * s_.projected();
    const float* const values = mixed + head * s_.head_dim;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const float raw = projected[t * s_.projected() + s_.inner() + s_.channels() + head];
      const float step = softplus(raw + w_.bias[head]);
      decays[t] = std::exp(w_.decay[head] * step);
      for (std::int64_t i = 0; i < s_.head_dim; ++i) {
        inputs[t * s_.head_dim + i] = step * values[t * s_.channels() + i];
      }
    }
    const std::int64_t group = head / (s_.num_heads / s_.num_groups);
    const std::int64_t state = head * s_.state_size * s_.head_dim;
    ScanTask task;
    task.keys = mixed + s_.inner() + group * s_.state_size;
    task.queries = task.keys + s_.keys();
    task.stride = s_.channels();
    task.values = inputs;
    task.decays = decays;
    task.tokens = tokens;
    task.key_dim = s_.state_size;
    task.value_dim = s_.head_dim;
    task.state = stretch.states.heads + state;
    task.new_state = stretch.states.new_heads + state;
    task.out = outputs;
    ops_.run_scan(task);
    for (std::int64_t t = 0; t < tokens; ++t) {
      float* const out = outputs + t * s_.head_dim;
      ops_.add_scaled(values + t * s_.channels(), w_.skip[head], out, s_.head_dim);
      ops_.activate(Activation::kSilu, 0, projected + t * s_.projected() + head * s_.head_dim, out,
                    v_.gated + (stretch.first + t) * s_.inner() + head * s_.head_dim, s_.head_dim);
    }
  }

  // The norm of each group.
  void finish(float* gated) const {
    const std::int64_t count = s_.inner() / s_.num_groups;
    for (std::int64_t at = 0; at < s_.inner(); at += count) {
      ops_.rms_norm(gated + at, w_.gate_norm + at, s_.norm_eps, count, gated + at);
    }
  }

 private:
  const Ops& ops_;
  const Shape& s_;
  const Weights& w_;
  const RecurrentVectors& v_;
};

}  // namespace

void mamba(Kernels& kernels, const MambaShape& shape, const MambaWeights& weights,
           Span<const RecurrentStretch> stretches, RowSpan<float> x) {
  run_recurrent<StateSpace>(kernels, shape, weights, stretches, x);
}

void scan(Kernels& kernels, const Scan& s) {
  kernels.pool().run(s.heads, [&](std::int64_t head, int) {
    ScanTask task;
    task.queries = s.queries + head * s.dim;
    task.keys = s.keys + head * s.dim;
    task.stride = s.heads * s.dim;
    task.values = s.values + head * s.tokens * s.dim;
    task.decays = s.decays + head * s.tokens;
    task.tokens = s.tokens;
    task.key_dim = task.value_dim = s.dim;
    task.state = s.state + head * s.dim * s.dim;
    task.new_state = s.new_state + head * s.dim * s.dim;
    task.out = s.out + head * s.tokens * s.dim;
    kernels.ops().run_scan(task);
  });
}

void channel_scan(Kernels& kernels, const ChannelScan& scan) {
  constexpr std::int64_t kAtOnce = 128;  // channels of a task
  kernels.pool().run((scan.channels + kAtOnce - 1) / kAtOnce, [&](std::int64_t task, int) {
    const std::int64_t first = task * kAtOnce;
    kernels.ops().run_channel_scan(scan, first, std::min(scan.channels, first + kAtOnce));
  });
}

std::size_t mamba_workspace_bytes(const MambaShape& shape, const PassShape& pass) {
  return recurrent_workspace_bytes<StateSpace>(shape, pass);
}

}  // namespace moeinf
