// How soon each expert is used again, as a network trained on a model's recorded routing says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/policy/token_memory.h"
#include "moeinf/policy/use_model.h"

namespace moeinf {

// What is learned while the model runs, as the inputs of the network.
class UseEvidence {
 public:
  static constexpr std::int64_t kRows = 4;

  UseEvidence(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k);

  // Takes the routing ids [num_tokens, top_k] of a layer. Returns [kRows, num_experts], valid until the next
  // call: the logits of UseModel for the next token and for the next four, and log(x + 0.02) of the two rows
  // of TokenMemory.
  const float* observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens);

  // As UseModel has it.
  void restart();

  const float* rows() const { return rows_.data(); }
  std::int64_t num_layers() const { return use_.num_layers(); }
  std::int64_t num_experts() const { return use_.num_experts(); }
  std::int64_t top_k() const { return use_.top_k(); }

 private:
  UseModel use_;
  TokenMemory memory_;
  std::vector<float> rows_;
};

// The network's weights, each in row-major order; D is its width. docs/lab/policies.md has the formulas.
struct TunedWeights {
  std::int64_t width;
  std::vector<float> token;      // [L, E, D]: what a token's experts say of it
  std::vector<float> own;        // [L, E, D]: what they say of their own layer
  std::vector<float> contexts;   // [4, D, D]: of this token so far, of the one before, of two decayed means
  std::vector<float> bias;       // [L, D]
  std::vector<float> hidden;     // [D, D]
  std::vector<float> head;       // [L, D, 2 E]: logits of the next token, then of the next four
  std::vector<float> head_bias;  // [L, 2 E]
  std::vector<float> direct;     // [L, kRows, 2]: of the evidence
};

class TunedUse {
 public:
  static constexpr std::int64_t kContexts = 4;
  static constexpr float kHalfLives[] = {4, 32};  // tokens, of the decayed means
  static constexpr float kMostWeight = 1e4F;      // either way: no product of the network overflows

  // Throws std::invalid_argument for weights that do not fit the sizes, or lie beyond kMostWeight.
  TunedUse(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k, TunedWeights weights);

  // As UseModel has them.
  void observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens);
  void restart();
  double* no_use() { return no_use_.data(); }
  double* wait() { return wait_.data(); }

  std::int64_t num_layers() const { return evidence_.num_layers(); }
  std::int64_t num_experts() const { return evidence_.num_experts(); }
  std::int64_t top_k() const { return evidence_.top_k(); }

  // What evidence and tables keep in memory; the weights come to it.
  static std::size_t num_bytes(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k);

 private:
  void begin();

  UseEvidence evidence_;
  TunedWeights weights_;
  std::int64_t layer_;                 // that ran last; num_layers: the next begins a pass
  std::int64_t num_tokens_ = 0;        // of the running pass
  std::vector<float> token_, means_;   // [D] of the running token so far; [2, D] of those before
  std::vector<float> before_;          // [D]: what the tokens before say
  std::vector<float> state_, next_;    // [D]
  std::vector<float> logits_;          // [2, E]
  std::vector<double> no_use_, wait_;  // [L, E]
};

}  // namespace moeinf
