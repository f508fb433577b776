// What a layer with a state of fixed size keeps of a sequence.
#pragma once

#include <cstdint>

namespace moeinf {

struct StateShape {
  std::int64_t heads, key_dim, value_dim;
};

// What the tokens before left, and room for what these leave; the two may be the same memory.
struct RecurrentStates {
  const float* conv;   // [kernel - 1, channels]: inputs of the convolution
  const float* heads;  // [heads, key_dim, value_dim]
  float *new_conv, *new_heads;
};

// Rows of a pass that go on with one sequence. Several stretches lie one behind the other, in order; one
// whose states are what the stretch before leaves goes on with the same sequence.
struct RecurrentStretch {
  RecurrentStates states;
  std::int64_t first, tokens;
};

}  // namespace moeinf
