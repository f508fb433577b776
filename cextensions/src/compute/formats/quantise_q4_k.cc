// Super-blocks of q4_k: a line for each sub-block, found by trial, and 6 bits for each line's scale and
// minimum.
#include "quantise_q4_k.h"

#include <algorithm>
#include <cmath>

#include "half.h"
#include "lanes.h"

namespace moeinf {

namespace {

using namespace lanes;

constexpr int kTiles = 2;  // of four sub-blocks each
constexpr int kTrials = 11;

// What a group's weights are turned into: scale * code + min, code 0 ... 15, min <= 0.
struct Line {
  Floats scale, min;
};

// A tile as the search needs it. Weights are counted from `low`, so that sums of squares do not cancel where
// a group lies far from zero.
struct Cloud {
  Floats above[kGroup];  // weight - low
  Floats importance[kGroup];
  Floats low, high;               // of the weights and 0, and of the weights
  Floats sum_w, sum_wy, sum_wyy;  // w: importance, y: above
};

// An error in a large weight costs more than one in a small one: importance is the weight's magnitude plus
// the root mean square of its group.
Cloud cloud_of(const Tile& tile) {
  Cloud cloud;
  Floats energy = splat(0);
  cloud.low = splat(0);
  cloud.high = tile.x[0];
  for (const Floats& x : tile.x) {
    cloud.low = smaller(cloud.low, x);
    cloud.high = larger(cloud.high, x);
    energy += x * x;
  }
  Floats spread;
  for (int g = 0; g < kLanes; ++g) spread[g] = std::sqrt(energy[g] / kGroup);
  cloud.sum_w = cloud.sum_wy = cloud.sum_wyy = splat(0);
  for (int i = 0; i < kGroup; ++i) {
    const Floats y = cloud.above[i] = tile.x[i] - cloud.low;
    const Floats w = cloud.importance[i] = spread + absolute(tile.x[i]);
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
CodeSums sums_of_codes(const Cloud& cloud, Floats start, Floats inverse) {
  CodeSums sums = {splat(0), splat(0), splat(0)};
  for (int i = 0; i < kGroup; ++i) {
    const Floats y = cloud.above[i];
    const Floats q = smaller(larger(nearest(inverse * (y - start)), splat(0)), splat(15));
    const Floats wq = cloud.importance[i] * q;
    sums.wq += wq;
    sums.wqq += wq * q;
    sums.wqy += wq * y;
  }
  return sums;
}

// The line of the least weighted squared error for given codes, and that error. A minimum above 0 cannot be
// stored: then the best line through 0 is taken, as it is where all codes are equal.
Line best_line(const Cloud& cloud, const CodeSums& sums, Floats* error) {
  const Floats determinant = cloud.sum_w * sums.wqq - sums.wq * sums.wq;
  const Ints sloped = determinant > 1e-6f * cloud.sum_w * sums.wqq;
  const Floats divisor = sloped ? determinant : splat(1);
  const Floats free_offset = (sums.wqq * cloud.sum_wy - sums.wq * sums.wqy) / divisor;
  const Floats free_scale = (cloud.sum_w * sums.wqy - sums.wq * cloud.sum_wy) / divisor;
  const Ints free = sloped & (free_offset <= -cloud.low);
  const Floats offset = free ? free_offset : -cloud.low;
  const Floats scale = free ? free_scale : (sums.wqy - offset * sums.wq) / larger(sums.wqq, splat(1e-37f));
  *error = cloud.sum_wyy - 2.0f * (scale * sums.wqy + offset * cloud.sum_wy) + scale * scale * sums.wqq +
           2.0f * scale * offset * sums.wq + offset * offset * cloud.sum_w;
  return {scale, cloud.low + offset};
}

// The best of the lines for the codes of trial scales that bring the range to 14 ... 16. Each trial counts
// its codes from the best minimum so far, which saves a second round.
Line search_line(const Tile& tile) {
  const Cloud cloud = cloud_of(tile);
  const Ints flat = cloud.high - cloud.low < 1e-15f;  // equal weights <= 0: their minimum says it all
  Line best = {splat(0), cloud.low};
  Floats least = splat(HUGE_VALF);
  for (int trial = 0; trial < kTrials; ++trial) {
    const Floats range = flat ? splat(1) : cloud.high - best.min;
    const Floats inverse = (14.0f + 0.2f * static_cast<float>(trial)) / range;
    Floats error;
    const Line line = best_line(cloud, sums_of_codes(cloud, best.min - cloud.low, inverse), &error);
    const Ints better = (error < least) & ~flat;
    least = better ? error : least;
    best.scale = better ? line.scale : best.scale;
    best.min = better ? line.min : best.min;
  }
  return best;
}

// Whole units, to the nearest.
std::uint8_t in_6_bits(float value, float unit) {
  return unit > 0 ? static_cast<std::uint8_t>(std::clamp(value / unit + 0.5f, 0.0f, 63.0f)) : 0;
}

// As ggml reads them: the low 6 bits of bytes 0-3 and 4-7 are scales and minima of the first four sub-blocks;
// bytes 8-11 are the low nibbles of the other four, whose top bits lie above those 6.
void pack_scales(const std::uint8_t* scales, const std::uint8_t* mins, std::uint8_t* out) {
  for (int s = 0; s < 4; ++s) {
    out[s] = static_cast<std::uint8_t>(scales[s] | scales[s + 4] >> 4 << 6);
    out[s + 4] = static_cast<std::uint8_t>(mins[s] | mins[s + 4] >> 4 << 6);
    out[s + 8] = static_cast<std::uint8_t>((scales[s + 4] & 15) | (mins[s + 4] & 15) << 4);
  }
}

// Codes of four sub-blocks for the lines that are stored, not for those that were sought.
void pack_codes(const Tile& tile, Floats scale, Floats min, std::uint8_t* out) {
  Floats inverse;
  for (int g = 0; g < kLanes; ++g) inverse[g] = scale[g] > 0 ? 1.0f / scale[g] : 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    const Floats rounded = nearest((tile.x[i] + min) * inverse);
    const Ints code = to_ints(smaller(larger(rounded, splat(0)), splat(15)));
    out[i] = static_cast<std::uint8_t>(code[0] | code[1] << 4);
    out[i + 32] = static_cast<std::uint8_t>(code[2] | code[3] << 4);
  }
}

}  // namespace

BlockQ4_K encode_super_block(const float* weights) {
  const Tile tiles[kTiles] = {tile_of(weights), tile_of(weights + kLanes * kGroup)};
  const Line lines[kTiles] = {search_line(tiles[0]), search_line(tiles[1])};
  float top_scale = 0, top_min = 0;
  for (int s = 0; s < 8; ++s) {
    top_scale = std::max(top_scale, lines[s / kLanes].scale[s % kLanes]);
    top_min = std::max(top_min, -lines[s / kLanes].min[s % kLanes]);
  }
  std::uint8_t scales[8], mins[8];
  for (int s = 0; s < 8; ++s) {
    scales[s] = in_6_bits(lines[s / kLanes].scale[s % kLanes], top_scale / 63);
    mins[s] = in_6_bits(-lines[s / kLanes].min[s % kLanes], top_min / 63);
  }
  BlockQ4_K block;
  block.d = half_of_float(top_scale / 63);
  block.dmin = half_of_float(top_min / 63);
  pack_scales(scales, mins, block.scales);
  const float d = float_of_half(block.d), dmin = float_of_half(block.dmin);
  for (int t = 0; t < kTiles; ++t) {
    Floats scale, min;
    for (int g = 0; g < kLanes; ++g) {
      scale[g] = d * scales[t * kLanes + g];
      min[g] = dmin * mins[t * kLanes + g];
    }
    pack_codes(tiles[t], scale, min, block.q + t * 64);
  }
  return block;
}

}  // namespace moeinf
