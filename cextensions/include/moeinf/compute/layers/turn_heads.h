// Rotary positions of a part of each head, where a model makes its heads itself.
#pragma once

#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

struct TurnedShape {
  std::int64_t tokens, num_heads, head_dim;
  std::int64_t first, pairs;  // the part: 2 * pairs numbers from `first` on
  bool interleaved;           // a pair lies side by side, in place of half of the part apart
};

// x, out [tokens, heads, head_dim], which may be the same; cos, sin [tokens, pairs].
void turn_heads(Kernels& kernels, const TurnedShape& shape, const float* x, const float* cos,
                const float* sin, float* out);

}  // namespace moeinf
