#include "moeinf/compute/layers/mamba.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "recurrent.h"

namespace moeinf {
namespace {

constexpr std::int64_t kTokensAtOnce = 64;     // of a long prompt: bounds the memory of the vectors below
constexpr std::int64_t kChannelsAtOnce = 512;  // that one task convolves

struct Vectors {
  float *normed, *projected;  // [tokens, hidden], [tokens, projected]
  float *mixed, *gated;       // [tokens, channels], [tokens, inner]
  float* threads;             // of each thread thread_floats
  std::int64_t thread_floats;
};

Vectors take_vectors(Workspace::Frame& memory, const MambaShape& s, std::int64_t tokens, int num_threads) {
  Vectors v;
  v.normed = memory.take<float>(tokens * s.hidden);
  v.projected = memory.take<float>(tokens * s.projected());
  v.mixed = memory.take<float>(tokens * s.channels());
  v.gated = memory.take<float>(tokens * s.inner());
  v.thread_floats = std::max(kChannelsAtOnce, whole_lines(tokens) + 2 * whole_lines(tokens * s.head_dim));
  v.threads = memory.take<float>(v.thread_floats * num_threads);
  return v;
}

// A few tokens of one layer.
class Pass {
 public:
  Pass(Kernels& kernels, const MambaShape& shape, const MambaWeights& weights, const MambaStates& states,
       float* x, std::int64_t tokens)
      : kernels_(kernels),
        ops_(kernels.ops()),
        s_(shape),
        w_(weights),
        states_(states),
        x_(x),
        tokens_(tokens),
        memory_(kernels.workspace()),
        v_(take_vectors(memory_, shape, tokens, kernels.pool().num_threads())) {}

  void run() {
    each_token([&](std::int64_t t) {
      ops_.rms_norm(x_ + t * s_.hidden, w_.norm, s_.norm_eps, s_.hidden, v_.normed + t * s_.hidden);
    });
    kernels_.linear(w_.input, v_.normed, tokens_, v_.projected);
    const std::int64_t parts = (s_.channels() + kChannelsAtOnce - 1) / kChannelsAtOnce;
    kernels_.pool().run(parts,
                        [&](std::int64_t part, int thread) { convolve(part * kChannelsAtOnce, thread); });
    kernels_.pool().run(s_.num_heads, [&](std::int64_t head, int thread) { run_head(head, thread); });
    each_token([&](std::int64_t t) { norm_groups(v_.gated + t * s_.inner()); });
    float* const out = v_.normed;
    kernels_.linear(w_.output, v_.gated, tokens_, out);
    each_token([&](std::int64_t t) {
      ops_.add_scaled(out + t * s_.hidden, s_.residual, x_ + t * s_.hidden, s_.hidden);
    });
  }

 private:
  template <typename Task>
  void each_token(const Task& task) {
    if (tokens_ <= kMaxDotRows) {
      for (std::int64_t t = 0; t < tokens_; ++t) task(t);
    } else {
      kernels_.pool().run(tokens_, [&](std::int64_t t, int) { task(t); });
    }
  }

  // Channels from `first`: silu of each one's bias and weighted sum over its last `kernel` tokens.
  void convolve(std::int64_t first, int thread) {
    const std::int64_t count = std::min(kChannelsAtOnce, s_.channels() - first), before = s_.kernel - 1;
    const std::size_t num_bytes = static_cast<std::size_t>(count) * sizeof(float);
    float* const sums = scratch(thread);
    const auto seen = [&](std::int64_t t) {  // inputs, the first of them left by earlier tokens
      return t < before ? states_.conv + t * s_.channels() + first
                        : v_.projected + (t - before) * s_.projected() + s_.inner() + first;
    };
    for (std::int64_t t = 0; t < tokens_; ++t) {
      std::memcpy(sums, w_.conv_bias + first, num_bytes);
      for (std::int64_t i = 0; i < s_.kernel; ++i) {
        ops_.add_product(seen(t + i), w_.taps + i * s_.channels() + first, sums, count);
      }
      ops_.activate(Activation::kSilu, 0, sums, nullptr, v_.mixed + t * s_.channels() + first, count);
    }
    for (std::int64_t i = 0; i < before; ++i) {  // ascending: the two states may be one
      std::memmove(states_.new_conv + i * s_.channels() + first, seen(tokens_ + i), num_bytes);
    }
  }

  void run_head(std::int64_t head, int thread) {
    float* const decays = scratch(thread);
    float* const inputs = decays + whole_lines(tokens_);
    float* const outputs = inputs + whole_lines(tokens_ * s_.head_dim);
    const float* const values = v_.mixed + head * s_.head_dim;
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const float raw = v_.projected[t * s_.projected() + s_.inner() + s_.channels() + head];
      const float step = softplus(raw + w_.bias[head]);
      decays[t] = std::exp(w_.decay[head] * step);
      for (std::int64_t i = 0; i < s_.head_dim; ++i) {
        inputs[t * s_.head_dim + i] = step * values[t * s_.channels() + i];
      }
    }
    const std::int64_t group = head / (s_.num_heads / s_.num_groups);
    const std::int64_t state = head * s_.state_size * s_.head_dim;
    ScanTask task;
    task.keys = v_.mixed + s_.inner() + group * s_.state_size;
    task.queries = task.keys + s_.keys();
    task.stride = s_.channels();
    task.values = inputs;
    task.decays = decays;
    task.tokens = tokens_;
    task.key_dim = s_.state_size;
    task.value_dim = s_.head_dim;
    task.state = states_.heads + state;
    task.new_state = states_.new_heads + state;
    task.out = outputs;
    ops_.run_scan(task);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      float* const out = outputs + t * s_.head_dim;
      ops_.add_scaled(values + t * s_.channels(), w_.skip[head], out, s_.head_dim);
      ops_.activate(Activation::kSilu, 0, v_.projected + t * s_.projected() + head * s_.head_dim, out,
                    v_.gated + t * s_.inner() + head * s_.head_dim, s_.head_dim);
    }
  }

  void norm_groups(float* gated) {
    const std::int64_t count = s_.inner() / s_.num_groups;
    for (std::int64_t at = 0; at < s_.inner(); at += count) {
      ops_.rms_norm(gated + at, w_.gate_norm + at, s_.norm_eps, count, gated + at);
    }
  }

  float* scratch(int thread) const { return v_.threads + thread * v_.thread_floats; }

  Kernels& kernels_;
  const Ops& ops_;
  const MambaShape& s_;
  const MambaWeights& w_;
  const MambaStates states_;
  float* const x_;
  const std::int64_t tokens_;

  Workspace::Frame memory_;
  const Vectors v_;
};

}  // namespace

void mamba(Kernels& kernels, const MambaShape& shape, const MambaWeights& weights, const MambaStates& states,
           float* x, std::int64_t num_tokens) {
  MambaStates from = states;
  for (std::int64_t start = 0; start < num_tokens; start += kTokensAtOnce) {
    const std::int64_t count = std::min(kTokensAtOnce, num_tokens - start);
    Pass(kernels, shape, weights, from, x + start * shape.hidden, count).run();
    from.conv = states.new_conv;
    from.heads = states.new_heads;
  }
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

std::size_t mamba_workspace_bytes(const MambaShape& shape, const PassShape& pass) {
  const std::int64_t tokens = std::min(pass.tokens, kTokensAtOnce);
  Workspace::Frame memory;
  take_vectors(memory, shape, tokens, pass.num_threads);
  return memory.num_bytes() + prepared_bytes(pass, tokens, std::max(shape.hidden, shape.inner()));
}

}  // namespace moeinf
