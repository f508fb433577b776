// Which token comes next: truncation and the draw, in a few passes over the vocabulary and without a sort.
#pragma once

#include <cstdint>

#include "moeinf/compute/ops.h"
#include "moeinf/span.h"

namespace moeinf {

// Where a draw falls, and among which tokens. Weights are those at the temperature.
struct Draw {
  float temperature;  // from 0 on; 1e-30 is the least that is told from it
  float top_p;        // the likeliest pass, of equals the first, until their weights reach this share of all
  float min_p;        // those pass whose weight is at least this share of the likeliest one's, at most 1
  double uniform;     // in [0, 1]: of the range that those that pass share, in order, by their weights
};

// The index of one of the scores. A score's weight is e^((score - largest) / temperature); -infinity
// is never drawn. Weights are float32: borders are off by 1e-6 of the whole at most. Memory for it is kept
// for each thread. Throws std::invalid_argument for no scores, a NaN, a largest score that is infinite, and a
// Draw out of range.
std::int64_t draw_token(const Ops& ops, Span<const float> scores, const Draw& draw);

}  // namespace moeinf
