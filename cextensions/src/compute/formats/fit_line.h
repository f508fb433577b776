// The line on which the weights of a group lie nearest: scale * code + min, codes 0 ... kTop.
#pragma once

#include "lanes.h"

namespace moeinf::lanes {

struct Line {
  Floats scale, min;
};

// A tile as the search needs it. Weights are counted from `low`, so that sums of squares do not cancel where
// a group lies far from zero.
template <int N>
struct Cloud {
  TileOf<N> above;  // weight - low
  TileOf<N> importance;
  Floats low, high;  // of the weights (and 0, where a minimum is not above it), and of the weights
  Floats sum_w, sum_wy, sum_wyy;  // w: importance, y: above
};

// below_zero: whether a minimum above 0 cannot be stored.
template <int N>
Cloud<N> cloud_of(const TileOf<N>& tile, const TileOf<N>& importance, bool below_zero) {
  Cloud<N> cloud;
  cloud.importance = importance;
  cloud.low = below_zero ? splat(0) : tile.x[0];
  cloud.high = tile.x[0];
  for (const Floats& x : tile.x) {
    cloud.low = smaller(cloud.low, x);
    cloud.high = larger(cloud.high, x);
  }
  cloud.sum_w = cloud.sum_wy = cloud.sum_wyy = splat(0);
  for (int i = 0; i < N; ++i) {
    const Floats y = cloud.above.x[i] = tile.x[i] - cloud.low, w = cloud.importance.x[i];
    cloud.sum_w += w;
    cloud.sum_wy += w * y;
    cloud.sum_wyy += w * y * y;
  }
  return cloud;
}

// Sums over a group of importance (w), code (q) and weight (y).
struct CodeSums {
  Floats wq, wqq, wqy;
};

// Of the codes that `inverse` and `start` give: this loop is nearly all the time that quantising takes.
template <int kTop, int N>
CodeSums sums_of_codes(const Cloud<N>& cloud, Floats start, Floats inverse) {
  CodeSums sums = {splat(0), splat(0), splat(0)};
  for (int i = 0; i < N; ++i) {
    const Floats y = cloud.above.x[i];
    const Floats q = smaller(larger(nearest(inverse * (y - start)), splat(0)), splat(kTop));
    const Floats wq = cloud.importance.x[i] * q;
    sums.wq += wq;
    sums.wqq += wq * q;
    sums.wqy += wq * y;
  }
  return sums;
}

// The line of the least weighted squared error for given codes, and that error. Where the minimum would be
// above 0 and cannot be, the best line through 0 is taken, as it is where all codes are equal.
template <int N>
Line best_line(const Cloud<N>& cloud, const CodeSums& sums, bool below_zero, Floats* error) {
  const Floats determinant = cloud.sum_w * sums.wqq - sums.wq * sums.wq;
  const Ints sloped = determinant > 1e-6f * cloud.sum_w * sums.wqq;
  const Floats divisor = sloped ? determinant : splat(1);
  const Floats free_offset = (sums.wqq * cloud.sum_wy - sums.wq * sums.wqy) / divisor;
  const Floats free_scale = (cloud.sum_w * sums.wqy - sums.wq * cloud.sum_wy) / divisor;
  const Ints free = below_zero ? sloped & (free_offset <= -cloud.low) : sloped;
  const Floats fixed = below_zero ? -cloud.low : splat(0);
  const Floats offset = free ? free_offset : fixed;
  const Floats scale = free ? free_scale : (sums.wqy - offset * sums.wq) / larger(sums.wqq, splat(1e-37f));
  *error = cloud.sum_wyy - 2.0f * (scale * sums.wqy + offset * cloud.sum_wy) + scale * scale * sums.wqq +
           2.0f * scale * offset * sums.wq + offset * offset * cloud.sum_w;
  return {scale, cloud.low + offset};
}

// The best of the lines for the codes of trial scales that bring the range to kTop - 1 ... kTop + 1. Each
// trial counts its codes from the best minimum so far, which saves a second round.
template <int kTop, int N>
Line search_line(const TileOf<N>& tile, const TileOf<N>& importance, bool below_zero) {
  constexpr int kTrials = 11;
  const Cloud<N> cloud = cloud_of(tile, importance, below_zero);
  const Ints flat = cloud.high - cloud.low < 1e-15f;  // equal weights: their minimum says it all
  Line best = {splat(0), cloud.low};
  Floats least = splat(HUGE_VALF);
  for (int trial = 0; trial < kTrials; ++trial) {
    const Floats range = flat ? splat(1) : cloud.high - best.min;
    const Floats inverse = (static_cast<float>(kTop - 1) + 0.2f * static_cast<float>(trial)) / range;
    Floats error;
    const CodeSums sums = sums_of_codes<kTop>(cloud, best.min - cloud.low, inverse);
    const Line line = best_line(cloud, sums, below_zero, &error);
    const Ints better = (error < least) & ~flat;
    least = better ? error : least;
    best.scale = better ? line.scale : best.scale;
    best.min = better ? line.min : best.min;
  }
  return best;
}

// The nearest of the codes 0 ... kTop to weights on a line of `min` below zero, as whole floats.
template <int kTop>
Floats code_on(Floats x, Floats inverse, Floats min) {
  return smaller(larger(nearest((x + min) * inverse), splat(0)), splat(kTop));
}

}  // namespace moeinf::lanes
