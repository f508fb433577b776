// One layer of self-attention, norm included, for any number of tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

// The RMS norm of queries and keys: none, one over each head, one over all heads together, or one over each
// head behind its rotation.
enum class HeadNorm { kNone, kEach, kAll, kEachTurned };

struct AttentionShape {
  std::int64_t hidden, num_heads, num_kv_heads, head_dim;
  float norm_eps;
  HeadNorm head_norm;
  float clip;           // queries, keys and values are clamped to [-clip, clip]; 0: they are not
  std::int64_t window;  // a token sees itself and the window - 1 before it; 0: all
  bool chunked;         // instead it sees what lies in its own chunk of `window` positions, up to itself
  std::int64_t rotary_pairs;  // of each head, over its first 2 * rotary_pairs dimensions; 0: no positions
  Pairs pairs;
  float scale;     // of the scores, > 0
  float residual;  // multiplies what is added to x
  bool gated;  // the rows of q are each head's query and its gate, whose sigmoid multiplies the head's output
  bool gate_apart;  // the gates have a matrix of their own
  // Queries at position p are multiplied by 1 + sharpness ln(1 + (p + sharp_offset) / sharp_length), the
  // quotient being a whole number; or, with sharp_power, by (1 + (p + sharp_offset) /
  // sharp_length)^sharpness.
  float sharpness;
  std::int64_t sharp_length, sharp_offset;
  // Each token sees all, as patches of a picture do: as in the arithmetic that their models were trained in,
  // queries and softmax weights may be rounded to bf16 where keys and values are; kMostPatches go at once.
  bool sees_all = false;
  std::int64_t ahead = 0;        // of sizes alone: how many positions behind its own a token sees at most
  bool replaces = false;         // what would be added to x takes its place
  std::int64_t most_chosen = 0;  // positions that a token attends to where they are chosen; 0: they are not
  std::int64_t value_dim = 0;    // of a head's values, where they are narrower than its keys; else 0
  bool softplus_gates = false;   // softplus, not sigmoid, of gates that have a matrix of their own
  bool sharp_power = false;
  float front_eps = 0;  // of the norm in front; norm_eps is that of the others
  float cap = 0;        // scores s become cap tanh(s / cap) in front of the softmax; 0: they stay

  // The first position that a token at `position` sees.
  std::int64_t first_seen(std::int64_t position) const {
    if (window == 0) return 0;
    if (chunked) return position - position % window;
    return position + 1 > window ? position + 1 - window : 0;
  }
};

struct AttentionWeights {  // pointers may be null where the model has no such tensor
  Matrix q, k, v, o;
  const float* norm;  // [hidden]: of the layer's input; null: that is taken as it is
  const float *q_norm, *k_norm;
  const float* v_norm;  // [head_dim]: of each head of the values
  const float *q_bias, *k_bias, *v_bias, *o_bias;
  const float* norm_bias;              // [hidden]: the norm is then a layer norm, else an RMS norm
  const float* sinks;                  // [num_heads]: a further score of each head, whose weight goes nowhere
  const float* output_norm = nullptr;  // [hidden]: an RMS norm of what the layer adds
  Matrix gate{};  // its rows are those of q, or one for each head: sigmoid(gate x) multiplies the heads'
                  // outputs; without rows there is none
  const float* gate_bias = nullptr;  // [num_heads]: added to what the gates of a head are made of
};

// Keys and values of one layer, both [num_kv_heads, capacity, head_dim] in `format`: f32, f16, bf16, or q8_0,
// whose blocks lie along head_dim.
struct KVView {
  void *keys, *values;
  Format format;
  std::int64_t capacity;
};

// Rows of a call that go on with one sequence, at positions length.. of its cache.
struct Stretch {
  KVView kv;
  std::int64_t length, tokens;
};

// The positions that the last tokens of a call attend to, and no others: of each of them `each` numbers, of
// which the first that is negative ends the list. The tokens in front of these attend to all. There is one
// list for all heads (groups 1), or one for each key/value head (groups num_kv_heads), which are of one
// length.
struct ChosenPositions {
  const std::int64_t* positions = nullptr;  // [tokens, groups, each]
  std::int64_t tokens = 0, each = 0, groups = 1;
};

// What queries have beside themselves: a further score of each, whose weight goes nowhere, and what is added
// to their scores by distance.
struct OfQueries {
  const float* sinks = nullptr;  // [tokens, num_heads], or null
  RelativeBias relative{};       // states [tokens, num_heads, width]
};

// Queries [tokens, num_heads, head_dim], keys and values [tokens, num_kv_heads, head_dim] of tokens at
// positions length.. of the cache. Queries and keys are not rotated yet, which is done in place.
struct GivenHeads {
  float *queries, *keys;
  const float* values;
  OfQueries own;
};

// mixed [tokens, num_heads * head_dim]: what the heads give of the values. Keys and values are stored first.
// Of the shape sizes, window, rotary_pairs, pairs and scale count.
void attend_given(Kernels& kernels, const AttentionShape& shape, const GivenHeads& heads, const KVView& kv,
                  std::int64_t length, const Turns& turns, RowSpan<float> mixed);

// x [tokens, hidden] += residual * attention(norm(x)), the tokens at positions length.. of the cache, where
// their keys and values are stored. ends [tokens] may be empty: the position behind the last one that each
// token sees, from its own one's to length + tokens; without them no token sees one behind its own.
void attend(Kernels& kernels, const AttentionShape& shape, const AttentionWeights& weights, const KVView& kv,
            std::int64_t length, const Turns& turns, RowSpan<float> x, Span<const std::int64_t> ends = {},
            const ChosenPositions& chosen = {});
// The same of at most kMostBeside rows of several sequences, which lie one behind the other: each row gives
// what it gives by itself, and the matrices are read once. No token sees one behind its own. Throws
// std::invalid_argument for other numbers of rows.
void attend_beside(Kernels& kernels, const AttentionShape& shape, const AttentionWeights& weights,
                   Span<const Stretch> stretches, const Turns& turns, RowSpan<float> x);
constexpr std::int64_t kMostBeside = 64;
// What the three take of the workspace at most.
std::size_t attention_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
