// Sums of squares of what weights are multiplied with, column by column: what an error in a column costs.
// They are gathered on the way of a calibration, and on no other.
#pragma once

#include <cstdint>

#include "moeinf/span.h"

namespace moeinf {

// Where the sums of one layer's experts are kept, [experts, columns] of each matrix, and how many tokens they
// are of, [experts].
struct ExpertSquares {
  RowSpan<float> inputs, acts;  // of gate and up, and of down
  std::int64_t* counts = nullptr;
};

// One row after the other: so the sums depend on nothing but the rows and their order.
inline void add_squares(const float* row, std::int64_t cols, float* sums) {
  for (std::int64_t c = 0; c < cols; ++c) sums[c] += row[c] * row[c];
}

}  // namespace moeinf
