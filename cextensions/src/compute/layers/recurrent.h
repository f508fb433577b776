// What layers with a state of fixed size share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace moeinf {

inline std::int64_t whole_lines(std::int64_t floats) { return (floats + 15) / 16 * 16; }

inline float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace moeinf
