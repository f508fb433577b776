// ln(1 + e^x), of which e^x never overflows.
#pragma once

#include <algorithm>
#include <cmath>

namespace moeinf {

inline float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace moeinf
