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

}  // namespace moeinf
