// One layer of gated DeltaNet (arXiv 2412.06464), norm included, for any number of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/compute/kernels.h"
#include "moeinf/compute/layers/recurrent.h"
#include "moeinf/span.h"

namespace moeinf {

struct DeltaShape {
  std::int64_t hidden;
  std::int64_t num_key_heads, num_value_heads;  // a key head serves several value heads, which are neighbours
  std::int64_t key_dim, value_dim;
  std::int64_t kernel;  // tokens that the convolution sees
  float norm_eps;       // of the norm in front, and of that behind each head
  float unit_eps;       // of the norms of queries and keys

  bool sigmoid_gates = false;  // sigmoid(gate), not silu(gate), multiplies the output of a head
  bool replaces = false;       // what would be added to x takes its place

  std::int64_t shared_by() const { return num_value_heads / num_key_heads; }
  std::int64_t keys() const { return num_key_heads * key_dim; }
  std::int64_t values() const { return num_value_heads * value_dim; }
  StateShape state() const { return {num_value_heads, key_dim, value_dim}; }
  std::int64_t channels() const { return 2 * keys() + values(); }  // queries, keys and values, in this order
};

struct DeltaWeights {
  // What channels, gates, rates and steps are made with. Four: [channels], [values], and twice [value heads]
  // rows. Two: of each key head queries, keys, values and gates; of each key head rates and steps.
  std::vector<Matrix> projections;
  Matrix output;                 // [hidden, values]
  const float* norm;             // [hidden], RMS; null: the input is taken as it is
  const float* taps;             // [kernel, channels]
  const float *decay, *bias;     // [value heads]: the decay is e^(decay * softplus(step + bias))
  const float *q_norm, *k_norm;  // [key_dim], RMS: what gives queries and keys their length
  const float* head_norm;        // [value_dim], RMS
};

// x [tokens, hidden] += delta_net(norm(x)). The result is the same for every number of threads, and that of a
// row does not depend on other sequences.
void delta_net(Kernels& kernels, const DeltaShape& shape, const DeltaWeights& weights,
               Span<const RecurrentStretch> stretches, RowSpan<float> x);
// The recurrence alone, where each channel of the keys has a decay of its own (KDA, arXiv 2510.26692).
struct ChannelDelta {
  std::int64_t tokens, heads, dim;                // at least one token; dim: of keys and of values
  const float *queries, *keys, *values, *decays;  // [tokens, heads, dim]; decays are those factors themselves
  const float* rates;                             // [tokens, heads]
  const float* state;                             // [heads, dim, dim]: before the first token
  float* new_state;                               // and after the last; may be state
  float* out;                                     // [heads, tokens, dim]
};
// The result is the same for every number of threads.
void channel_delta(Kernels& kernels, const ChannelDelta& delta);

// What delta_net takes of the workspace at most.
std::size_t delta_workspace_bytes(const DeltaShape& shape, const PassShape& pass);

}  // namespace moeinf
