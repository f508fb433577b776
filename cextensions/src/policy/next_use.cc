#include "moeinf/policy/next_use.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "moeinf/policy/use_model.h"
#include "sizes.h"

namespace moeinf {

NextUseScores::NextUseScores(const double* no_use, const double* wait, std::int64_t num_layers,
                             std::int64_t num_experts, std::int64_t encoder_layers, std::int64_t next_source)
    : no_use_(no_use),
      wait_(wait),
      num_layers_(num_layers),
      num_experts_(num_experts),
      encoder_layers_(encoder_layers),
      next_source_(next_source),
      step_(std::max<std::int64_t>(1, num_layers - encoder_layers)),
      scores_(static_cast<std::size_t>(require_sizes(num_layers, num_experts, 1))) {
  constexpr std::int64_t kMostSteps = std::int64_t{1} << 32;  // so that no number of layers overflows
  if (encoder_layers < 0 || encoder_layers > num_layers || next_source < 0 || next_source > kMostSteps)
    throw std::invalid_argument("there are no such layers of an encoder, or steps until a source");
}

const double* NextUseScores::keep_scores(std::int64_t layer) {
  if (layer < 0 || layer >= num_layers_) throw std::invalid_argument("there is no such layer");
  const std::int64_t pass_ends = layer < encoder_layers_ ? encoder_layers_ : num_layers_;
  const auto per_step = static_cast<double>(-step_);
  for (std::int64_t at = 0; at < num_layers_; ++at) {
    const auto until = static_cast<double>(until_visit(layer, at));
    const double* wait = wait_ + at * num_experts_;
    const double* no_use = no_use_ + at * num_experts_;
    double* scores = scores_.data() + at * num_experts_;
    if (num_tokens_ > UseModel::kMostRows && at > layer && at < pass_ends) {
      const auto others = static_cast<double>(num_tokens_ - 1);
      for (std::int64_t expert = 0; expert < num_experts_; ++expert)
        scores[expert] = wait[expert] * per_step * std::pow(no_use[expert], others) - until;
    } else {
      for (std::int64_t expert = 0; expert < num_experts_; ++expert)
        scores[expert] = wait[expert] * per_step - until;
    }
  }
  return scores_.data();
}

std::int64_t NextUseScores::until_visit(std::int64_t running, std::int64_t layer) const {
  if (layer > running) return layer - running;
  return layer < encoder_layers_ ? next_source_ * step_ : layer - running + step_;
}

}  // namespace moeinf
