// The one format whose search spans blocks of two levels.
#pragma once

#include "moeinf/compute/formats/formats.h"

namespace moeinf {

// weights: 256 finite ones of at most kLargestWeight.
BlockQ4_K encode_super_block(const float* weights);

}  // namespace moeinf
