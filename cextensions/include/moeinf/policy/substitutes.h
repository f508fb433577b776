// Which experts tokens use instead of those that would have to be read, where a user allows answers that
// differ.
#pragma once

#include <cstdint>
#include <vector>

#include "moeinf/span.h"

namespace moeinf {

// What a router chose for some tokens, and whom it would have chosen next.
struct Choice {
  RowSpan<const std::int64_t> ids;  // [tokens, top_k]
  const float* weights;             // of the same shape
  RowSpan<const std::int64_t> spare_ids;
  const float* spare_weights;  // on the scale of the others
  bool keeps_sum;              // whether the weights of a token have the same sum, whichever they are
};

struct Substituted {
  std::vector<std::int64_t> ids;  // [tokens, top_k]; one that is left out names another one of the token
  std::vector<float> weights;     // 0 for one that is left out
  std::int64_t instead = 0;       // how many were replaced
  std::int64_t left_out = 0;
};

// states: of the layer's experts, in the order of their ids, `slices` of each (ExpertState). An expert of
// which a slice is absent is given up, the lightest first, for the best spare that is resident, or for
// nothing, as long as those that a token gives up in this layer have no more than most_lost of its weight.
// What one of the tokens needs all the same is there for all. Throws std::invalid_argument for an id that has
// no state.
Substituted substitute(Span<const std::uint8_t> states, std::int64_t slices, const Choice& choice,
                       double most_lost);

}  // namespace moeinf
