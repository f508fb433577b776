// Attention of heads whose keys and values are the same rows: those of a window, and others behind them.
#pragma once

#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

struct SharedRowsShape {
  std::int64_t num_heads, head_dim;
  float scale;         // of the scores, > 0
  const float* sinks;  // [num_heads]: a further score of each head, whose weight goes nowhere
};

// What one token attends to: rows first.. of the window, `others` rows behind them.
struct SeenRows {
  std::int64_t first, rows;
  const std::int64_t* picked;  // [others]: their numbers; null: the first ones
  std::int64_t others;
};

// window: rows of head_dim numbers; others: rows that begin with so many. queries, out [tokens, num_heads *
// head_dim]. The rows of a token are put side by side and attended to as those of a short sequence: what a
// token gives depends on no other token, nor on the threads. Each token sees a row at least.
void attend_shared_rows(Kernels& kernels, const SharedRowsShape& shape, const float* window,
                        RowSpan<const float> others, Span<const SeenRows> seen, const float* queries,
                        float* out);

}  // namespace moeinf
