// What each expert's slot is worth by its next expected use: the scores of eviction, at every layer that has
// to evict.
#pragma once

#include <cstdint>
#include <vector>

namespace moeinf {

// keep = -(visits until the expert's layer runs again + what is expected to pass behind that visit), in
// layers; the formula is that of moeinf.runtime.policy.eviction.NextUse.
class NextUseScores {
 public:
  // no_use and wait: [num_layers, num_experts], of a UseModel or a TunedUse, which outlive this.
  // encoder_layers: how many of the layers, the first ones, only a source visits. next_source: steps until
  // there is another one. Throws std::invalid_argument for sizes that no model has.
  NextUseScores(const double* no_use, const double* wait, std::int64_t num_layers, std::int64_t num_experts,
                std::int64_t encoder_layers, std::int64_t next_source);

  std::int64_t num_layers() const { return num_layers_; }
  std::int64_t num_experts() const { return num_experts_; }

  // The last routing that was learned is of so many tokens: where no_use is of one alone, as behind passes of
  // more than UseModel::kMostRows, the layers ahead will be visited by as many.
  void observed(std::int64_t num_tokens) { num_tokens_ = num_tokens; }
  // [num_layers, num_experts] while `layer` runs; valid until the next call.
  const double* keep_scores(std::int64_t layer);

 private:
  std::int64_t until_visit(std::int64_t running, std::int64_t layer) const;  // in layers

  const double *no_use_, *wait_;
  std::int64_t num_layers_, num_experts_, encoder_layers_, next_source_, step_;
  std::int64_t num_tokens_ = 1;
  std::vector<double> scores_;
};

}  // namespace moeinf
