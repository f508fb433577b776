// One layer of Mamba-2 (arXiv 2405.21060), norm included, for any number of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/compute/kernels.h"
#include "moeinf/compute/layers/recurrent.h"
#include "moeinf/span.h"

namespace moeinf {

struct MambaShape {
  std::int64_t hidden;
  std::int64_t num_heads, head_dim;
  std::int64_t num_groups, state_size;  // heads of a group, which are neighbours, share keys and queries
  std::int64_t kernel;                  // tokens that the convolution sees
  float norm_eps;                       // of the norm in front, and of that of each group behind
  float residual;                       // multiplies what the layer adds

  std::int64_t inner() const { return num_heads * head_dim; }
  std::int64_t keys() const { return num_groups * state_size; }
  StateShape state() const { return {num_heads, state_size, head_dim}; }
  std::int64_t channels() const { return inner() + 2 * keys(); }  // values, keys and queries, in this order
  std::int64_t projected() const { return inner() + channels() + num_heads; }  // gates, channels, steps
};

struct MambaWeights {
  Matrix input;               // [projected, hidden]
  Matrix output;              // [hidden, inner]
  const float* norm;          // [hidden], RMS
  const float* taps;          // [kernel, channels]
  const float* conv_bias;     // [channels]
  const float *decay, *bias;  // [heads]: a step is softplus(step + bias), the decay e^(decay * step)
  const float* skip;          // [heads]: what a head adds of its values as they are
  const float* gate_norm;     // [inner], RMS of each group
  const float *in_bias = nullptr,
              *out_bias = nullptr;  // [projected], [hidden]: of the matrices, where they have any
};

// x [tokens, hidden] += residual * mamba(norm(x)). The result is the same for every number of threads, and
// that of a row does not depend on other sequences.
void mamba(Kernels& kernels, const MambaShape& shape, const MambaWeights& weights,
           Span<const RecurrentStretch> stretches, RowSpan<float> x);
// The recurrence alone, where each head has keys and queries of its own: S <- a S + k v^T, out = S^T q.
struct Scan {
  std::int64_t tokens, heads, dim;  // at least one token; dim: of keys and of values
  const float *queries, *keys;      // [tokens, heads, dim]
  const float* values;              // [heads, tokens, dim]
  const float* decays;              // [heads, tokens]
  const float* state;               // [heads, dim, dim]: before the first token
  float* new_state;                 // and after the last; may be state
  float* out;                       // [heads, tokens, dim]
};
// The result is the same for every number of threads.
void scan(Kernels& kernels, const Scan& scan);

// The recurrence of Mamba (arXiv 2312.00752) alone. The result is the same for every number of threads.
void channel_scan(Kernels& kernels, const ChannelScan& scan);

// What mamba takes of the workspace at most.
std::size_t mamba_workspace_bytes(const MambaShape& shape, const PassShape& pass);

}  // namespace moeinf
