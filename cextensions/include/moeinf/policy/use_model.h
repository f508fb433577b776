// How soon each expert is used again, learned from the routing as it happens; numbers in, numbers out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/compute/buffer.h"

namespace moeinf {

// Two logistic regressions of every expert of a layer, whose formulas are in docs/lab/policies.md: whether
// the next token uses it, and whether any of the next kHorizon tokens does.
class UseModel {
 public:
  // A pass of so many tokens at most is a step of rows that go on: of sequences side by side, or of drafts.
  static constexpr std::int64_t kMostRows = 8;

  UseModel(std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k);

  // Takes the routing ids [num_tokens, top_k] of a layer; the ids of a token are distinct. Afterwards the
  // layer's rows of no_use and wait are of its tokens to come. Up to kMostRows tokens are each taken for what
  // follows the token of the same row in the pass before, and what comes next for a pass of as many. More
  // tokens at once are counted, not learned, and single ones are expected behind them.
  void observe(std::int64_t layer, const std::int64_t* ids, std::int64_t num_tokens);

  // Says that routings were left out: what comes next follows nothing that came before. What was learned
  // stays.
  void restart();

  // Both [num_layers, num_experts]: the probability that the next pass does not use the expert, and that
  // divided by the share of passes that will: the passes expected behind the next one until a use.
  double* no_use() { return no_use_.data(); }
  double* wait() { return wait_.data(); }

  std::int64_t num_layers() const { return static_cast<std::int64_t>(layers_.size()); }
  std::int64_t num_experts() const { return num_experts_; }
  std::int64_t top_k() const { return top_k_; }

  // What a model of these sizes keeps in memory, but for a few KB and the rest of a huge page.
  static std::size_t num_bytes(std::int64_t num_layers, std::int64_t num_experts);

 private:
  static constexpr std::int64_t kHorizon = 4;  // tokens
  static constexpr std::size_t kHalfLives = 2;
  static constexpr std::size_t kFeatures = kHalfLives + 2;  // log frequencies, last use, sum of next_pairs
  static constexpr std::int64_t kSources = 3;               // of pairs: see gather

  // What is known of a layer's tokens to come, right after one of its tokens.
  struct Evidence {
    std::vector<double> features;    // [kFeatures, num_experts]
    std::vector<std::int64_t> rows;  // of pairs
  };

  // The tokens of one row of the passes through a layer, which follow each other.
  struct Row {
    Row(std::int64_t num_experts, std::int64_t top_k);

    std::array<Evidence, kHorizon> evidence;  // a ring
    std::int64_t num_evidence = 0;            // written to it since a pass of many tokens
    std::vector<std::int64_t> last, before;   // ids of the last two tokens; empty before there were any
    std::vector<std::int64_t> last_use;       // [num_experts]: number of a token, or less than any
    std::int64_t num_tokens = kHorizon;       // that came, and this many more
    std::vector<double> no_use, wait;         // [num_experts]: of the row's next token alone
  };

  struct Layer {
    std::vector<double> frequency;      // [kHalfLives, num_experts]
    float *next_pairs, *horizon_pairs;  // weights [kSources, num_experts, 2, num_experts]
    std::vector<Row> rows;              // [kMostRows]
    std::size_t num_rows = 0;           // that the last pass had: others follow nothing
  };

  void count(Layer& at, Row& row, const std::int64_t* ids);
  void forget(Row& row);
  void learn(Layer& at, const Row& row);
  template <std::size_t N>
  void step(std::array<double, N>& weights, float* pairs, double pair_rate, const Evidence& seen);
  void find_rows(std::int64_t layer, std::size_t row, std::vector<std::int64_t>& rows) const;
  void observe_row(std::int64_t layer, std::size_t row);
  void gather(const Layer& at, const Row& row, Evidence& out);
  template <std::size_t N>
  void weigh(const std::array<double, N>& weights, const std::vector<double>& features);
  void predict(const Layer& at, const Evidence& seen, Row& row);
  void join_rows(std::int64_t layer);
  void add_pairs(const float* pairs, const std::vector<std::int64_t>& rows);

  std::int64_t num_experts_, top_k_;
  // Where learning starts: near where it ends for two recorded models. The last weight is of no feature.
  std::array<double, kFeatures> next_weights_{0.5, 0.4, 0.7, 0.5};
  std::array<double, kFeatures + 1> horizon_weights_{0.4, 0.6, 0.3, 0.25, 1.3};
  Buffer pairs_;
  std::vector<Layer> layers_;
  std::vector<double> no_use_, wait_;
  std::vector<double> errors_;      // [num_experts]: what was predicted less what came
  std::vector<double> logits_;      // [num_experts]
  std::vector<float> sums_;         // [num_experts]: of the weights of pairs
  std::vector<std::int64_t> rows_;  // of pairs, of the visit
};

}  // namespace moeinf
