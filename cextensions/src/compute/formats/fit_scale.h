// The scale by which the weights of a group lie nearest to the values of a table: those of whole numbers, or
// of iq4_nl.
#pragma once

#include "lanes.h"
#include "moeinf/compute/formats/formats.h"

namespace moeinf::lanes {

// -kLow ... kLow - 1, the value of code c being c - kLow.
template <int kLow>
struct WholeValues {
  static constexpr float kLowest = -kLow, kHighest = kLow - 1;
  static Floats rounded(Floats x) { return smaller(larger(nearest(x), splat(kLowest)), splat(kHighest)); }
  static Ints codes(Floats x) { return to_ints(rounded(x)) + kLow; }
};

// Between neighbours of kIQ4NLValues.
constexpr float kIQ4NLBorders[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                     7,       19,     31.5f, 45.5f, 61,  79,     101};

struct IQ4NLValues {
  static constexpr float kLowest = -127, kHighest = 113;
  static Floats rounded(Floats x) {
    Floats value = splat(kIQ4NLValues[0]);
    for (int v = 0; v < 15; ++v) {
      const Floats step = splat(static_cast<float>(kIQ4NLValues[v + 1] - kIQ4NLValues[v]));
      value += reinterpret_cast<Floats>((x > splat(kIQ4NLBorders[v])) & reinterpret_cast<Ints>(step));
    }
    return value;
  }
  static Ints codes(Floats x) {
    Ints code = {};
    for (const float border : kIQ4NLBorders) code -= x > splat(border);  // a true lane is -1
    return code;
  }
};

// Of the scales that bring the extreme weight to one of `aims`, each replaced by the best one for its own
// codes, that of the least squared error, weighted by `importance`.
template <typename Values, int N, int kAims>
Floats search_scale(const TileOf<N>& tile, const TileOf<N>& importance, const float (&aims)[kAims]) {
  const Floats top = extreme(tile);
  const Floats safe_top = absolute(top) > 1e-15f ? top : splat(1);
  Floats best_d = splat(0), best_gain = splat(0);
  for (const float aim : aims) {
    const Floats inverse = splat(aim) / safe_top;
    Floats sum_qx = splat(0), sum_qq = splat(0);
    for (int i = 0; i < N; ++i) {
      const Floats x = tile.x[i], q = Values::rounded(x * inverse), weighted = importance.x[i] * q;
      sum_qx += weighted * x;
      sum_qq += weighted * q;
    }
    const Floats d = sum_qq > 0.0f ? sum_qx / sum_qq : splat(0);
    const Ints better = d * sum_qx > best_gain;
    best_gain = better ? d * sum_qx : best_gain;
    best_d = better ? d : best_d;
  }
  return best_d;
}

}  // namespace moeinf::lanes
