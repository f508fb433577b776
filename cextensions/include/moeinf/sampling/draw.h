// Which token comes next: truncation and the draw, in a few passes over the vocabulary and without a sort.
#pragma once

#include <cstdint>

#include "moeinf/compute/ops.h"

namespace moeinf {

// Where a draw falls, and among which tokens.
struct Draw {
  float temperature;  // at least 0; 1e-30 is the least that is told from it
  float top_p;        // the likeliest pass, of equals the first, until their weights reach this share of all
  float min_p;        // those pass whose weight is at least this share of the likeliest one's
  double uniform;     // in [0, 1): of the range that those that pass share, in order, by their weights
};

// The index of one of the scores [count >= 1], none of them NaN. A score's weight is e^(score - largest), and
// that with the temperature for the draw itself. Weights are float32: borders are off by 1e-6 of the whole at
// most. Memory for it is kept for each thread.
std::int64_t draw_token(const Ops& ops, const float* scores, std::int64_t count, const Draw& draw);

}  // namespace moeinf
