#include "quantise_super.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fit_line.h"
#include "fit_scale.h"
#include "half.h"
#include "lanes.h"
#include "put_code.h"

namespace moeinf {

namespace {

using namespace lanes;

constexpr int kWeights = 256;

template <int N>
struct Super {
  static constexpr int kGroups = kWeights / N, kTiles = kGroups / kLanes;
  TileOf<N> tiles[kTiles], importance[kTiles];

  Super(const float* weights, const float* columns) {
    for (int t = 0; t < kTiles; ++t) {
      tiles[t] = tile_of<N>(weights + t * kLanes * N);
      importance[t] = importance_of(tiles[t], columns == nullptr ? nullptr : columns + t * kLanes * N);
    }
  }
};

// Groups on lines: d * scale * code - dmin * min.
template <int N>
struct Lines {
  float d, dmin;
  std::uint8_t scales[kWeights / N], mins[kWeights / N], codes[kWeights];
};

// Whole units, to the nearest.
std::uint8_t in_units(float value, float unit, int most) {
  return unit > 0 ? static_cast<std::uint8_t>(std::clamp(value / unit + 0.5f, 0.0f, static_cast<float>(most)))
                  : 0;
}

Floats inverse_of(Floats scale) {
  Floats inverse;
  for (int g = 0; g < kLanes; ++g) inverse[g] = scale[g] != 0 ? 1.0f / scale[g] : 0.0f;
  return inverse;
}

template <typename Number>
Floats four_of(const Number* numbers, float unit) {
  Floats result;
  for (int g = 0; g < kLanes; ++g) result[g] = unit * static_cast<float>(numbers[g]);
  return result;
}

// The weighted squared error of a tile on the lines `scale` and `min` with the nearest codes.
template <int kTop, int N>
Floats error_on(const TileOf<N>& tile, const TileOf<N>& importance, Floats scale, Floats min) {
  const Floats inverse = inverse_of(scale);
  Floats error = splat(0);
  for (int i = 0; i < N; ++i) {
    const Floats off = scale * code_on<kTop>(tile.x[i], inverse, min) - min - tile.x[i];
    error += importance.x[i] * off * off;
  }
  return error;
}

// Whole scales and minima next to those that were sought may do better, as both are rounded.
template <int kTop, int kUnits, int N>
void refine(const Super<N>& block, Lines<N>* lines) {
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    std::uint8_t *scales = lines->scales + t * kLanes, *mins = lines->mins + t * kLanes;
    std::uint8_t best_scales[kLanes], best_mins[kLanes];
    Floats least = splat(HUGE_VALF);
    for (int turn = 0; turn < 9; ++turn) {
      std::uint8_t try_scales[kLanes], try_mins[kLanes];
      for (int g = 0; g < kLanes; ++g) {
        try_scales[g] = static_cast<std::uint8_t>(std::clamp(scales[g] + turn % 3 - 1, 0, kUnits));
        try_mins[g] = static_cast<std::uint8_t>(std::clamp(mins[g] + turn / 3 - 1, 0, kUnits));
      }
      const Floats error = error_on<kTop>(block.tiles[t], block.importance[t], four_of(try_scales, lines->d),
                                          four_of(try_mins, lines->dmin));
      for (int g = 0; g < kLanes; ++g) {
        if (!(error[g] < least[g])) continue;
        least[g] = error[g];
        best_scales[g] = try_scales[g];
        best_mins[g] = try_mins[g];
      }
    }
    std::copy_n(best_scales, kLanes, scales);
    std::copy_n(best_mins, kLanes, mins);
  }
}

template <int kTop, int N>
void encode_codes(const Super<N>& block, Lines<N>* lines) {
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    const Floats inverse = inverse_of(four_of(lines->scales + t * kLanes, lines->d));
    const Floats min = four_of(lines->mins + t * kLanes, lines->dmin);
    for (int i = 0; i < N; ++i) {
      const Ints code = to_ints(code_on<kTop>(block.tiles[t].x[i], inverse, min));
      for (int g = 0; g < kLanes; ++g) {
        lines->codes[(t * kLanes + g) * N + i] = static_cast<std::uint8_t>(code[g]);
      }
    }
  }
}

// The best d and dmin for the codes, scales and minima that there are.
template <int N>
void fit_units(const Super<N>& block, Lines<N>* lines) {
  double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // x is about d * a - dmin * b
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    for (int g = 0; g < kLanes; ++g) {
      const int s = t * kLanes + g;
      float wq = 0, wqq = 0, w = 0, wqx = 0, wx = 0;
      for (int i = 0; i < N; ++i) {
        const float q = lines->codes[s * N + i], x = block.tiles[t].x[i][g],
                    each = block.importance[t].x[i][g];
        w += each;
        wq += each * q;
        wqq += each * q * q;
        wx += each * x;
        wqx += each * q * x;
      }
      const double scale = lines->scales[s], min = lines->mins[s];
      aa += scale * scale * wqq;
      ab += scale * min * wq;
      bb += min * min * w;
      ax += scale * wqx;
      bx += min * wx;
    }
  }
  const double determinant = aa * bb - ab * ab;
  double d = lines->d, dmin = lines->dmin;
  if (bb > 0 && determinant > 1e-6 * aa * bb) {
    d = (ax * bb - ab * bx) / determinant;
    dmin = (ab * ax - aa * bx) / determinant;
  } else if (aa > 0 && bb == 0) {
    d = ax / aa;
  }
  if (d > 0 && dmin >= 0 && d < 65504 && dmin < 65504) {
    lines->d = float_of_half(half_of_float(static_cast<float>(d)));
    lines->dmin = float_of_half(half_of_float(static_cast<float>(dmin)));
  }
}

template <int kTop, int kUnits, int N>
Lines<N> fit_lines(const float* weights, const float* columns) {
  const Super<N> block(weights, columns);
  Line found[Super<N>::kTiles];
  float top_scale = 0, top_min = 0;
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    found[t] = search_line<kTop>(block.tiles[t], block.importance[t], true);
    for (int g = 0; g < kLanes; ++g) {
      top_scale = std::max(top_scale, found[t].scale[g]);
      top_min = std::max(top_min, -found[t].min[g]);
    }
  }
  Lines<N> lines;
  for (int s = 0; s < Super<N>::kGroups; ++s) {
    lines.scales[s] = in_units(found[s / kLanes].scale[s % kLanes], top_scale / kUnits, kUnits);
    lines.mins[s] = in_units(-found[s / kLanes].min[s % kLanes], top_min / kUnits, kUnits);
  }
  lines.d = float_of_half(half_of_float(top_scale / kUnits));
  lines.dmin = float_of_half(half_of_float(top_min / kUnits));
  refine<kTop, kUnits>(block, &lines);
  encode_codes<kTop>(block, &lines);
  fit_units(block, &lines);
  encode_codes<kTop>(block, &lines);
  return lines;
}

// Groups that are multiples: d * scale * value[code], scale -kUnits ... kUnits - 1.
template <int N>
struct Multiples {
  float d;
  std::int8_t scales[kWeights / N];
  std::uint8_t codes[kWeights];
};

template <typename Values, int N>
Floats error_of(const TileOf<N>& tile, const TileOf<N>& importance, Floats scale) {
  const Floats inverse = inverse_of(scale);
  Floats error = splat(0);
  for (int i = 0; i < N; ++i) {
    const Floats off = scale * Values::rounded(tile.x[i] * inverse) - tile.x[i];
    error += importance.x[i] * off * off;
  }
  return error;
}

template <typename Values, int kUnits, int N>
void refine(const Super<N>& block, Multiples<N>* found) {
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    std::int8_t* scales = found->scales + t * kLanes;
    std::int8_t best[kLanes];
    Floats least = splat(HUGE_VALF);
    for (int step = -1; step <= 1; ++step) {
      std::int8_t tried[kLanes];
      for (int g = 0; g < kLanes; ++g) {
        tried[g] = static_cast<std::int8_t>(std::clamp(scales[g] + step, -kUnits, kUnits - 1));
      }
      const Floats error = error_of<Values>(block.tiles[t], block.importance[t], four_of(tried, found->d));
      for (int g = 0; g < kLanes; ++g) {
        if (!(error[g] < least[g])) continue;
        least[g] = error[g];
        best[g] = tried[g];
      }
    }
    std::copy_n(best, kLanes, scales);
  }
}

// The best d for the scales that there are, and the codes that these give.
template <typename Values, int N>
void fit_unit(const Super<N>& block, Multiples<N>* found) {
  double ax = 0, aa = 0;
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    const Floats scale = four_of(found->scales + t * kLanes, 1), inverse = inverse_of(scale * found->d);
    Floats tile_ax = splat(0), tile_aa = splat(0);
    for (int i = 0; i < N; ++i) {
      const Floats x = block.tiles[t].x[i], a = scale * Values::rounded(x * inverse);
      tile_ax += block.importance[t].x[i] * a * x;
      tile_aa += block.importance[t].x[i] * a * a;
    }
    for (int g = 0; g < kLanes; ++g) {
      ax += tile_ax[g];
      aa += tile_aa[g];
    }
  }
  if (aa > 0 && std::fabs(ax / aa) < 65504)
    found->d = float_of_half(half_of_float(static_cast<float>(ax / aa)));
}

template <typename Values, int kUnits, int N, int kAims>
Multiples<N> fit_multiples(const float* weights, const float* columns, const float (&aims)[kAims]) {
  const Super<N> block(weights, columns);
  Floats scales[Super<N>::kTiles];
  float top = 0;  // of the largest magnitude, with its sign
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    scales[t] = search_scale<Values>(block.tiles[t], block.importance[t], aims);
    for (int g = 0; g < kLanes; ++g) {
      if (std::fabs(scales[t][g]) > std::fabs(top)) top = scales[t][g];
    }
  }
  Multiples<N> found;
  found.d = float_of_half(half_of_float(top / -kUnits));
  const float inverse = found.d != 0 ? 1.0f / found.d : 0.0f;
  for (int s = 0; s < Super<N>::kGroups; ++s) {
    const float units = std::nearbyint(scales[s / kLanes][s % kLanes] * inverse);
    found.scales[s] = static_cast<std::int8_t>(
        std::clamp(units, -static_cast<float>(kUnits), static_cast<float>(kUnits - 1)));
  }
  refine<Values, kUnits>(block, &found);
  fit_unit<Values>(block, &found);
  for (int t = 0; t < Super<N>::kTiles; ++t) {
    const Floats inverses = inverse_of(four_of(found.scales + t * kLanes, found.d));
    for (int i = 0; i < N; ++i) {
      const Ints code = Values::codes(block.tiles[t].x[i] * inverses);
      for (int g = 0; g < kLanes; ++g) {
        found.codes[(t * kLanes + g) * N + i] = static_cast<std::uint8_t>(code[g]);
      }
    }
  }
  return found;
}

void put_half(unsigned char* at, float value) {
  const std::uint16_t half = half_of_float(value);
  std::memcpy(at, &half, sizeof half);
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

}  // namespace

void encode_q2_k(const float* weights, const float* columns, unsigned char* out) {
  const auto lines = fit_lines<3, 15, 16>(weights, columns);
  std::memset(out, 0, 84);
  for (int s = 0; s < 16; ++s) out[s] = static_cast<unsigned char>(lines.scales[s] | lines.mins[s] << 4);
  for (int i = 0; i < kWeights; ++i) put_q2_k(out, i, lines.codes[i]);
  put_half(out + 80, lines.d);
  put_half(out + 82, lines.dmin);
}

void encode_q4_k(const float* weights, const float* columns, unsigned char* out) {
  const auto lines = fit_lines<15, 63, 32>(weights, columns);
  std::memset(out, 0, 144);
  put_half(out, lines.d);
  put_half(out + 2, lines.dmin);
  pack_scales(lines.scales, lines.mins, out + 4);
  for (int i = 0; i < kWeights; ++i) put_q4_k(out, i, lines.codes[i]);
}

void encode_q5_k(const float* weights, const float* columns, unsigned char* out) {
  const auto lines = fit_lines<31, 63, 32>(weights, columns);
  std::memset(out, 0, 176);
  put_half(out, lines.d);
  put_half(out + 2, lines.dmin);
  pack_scales(lines.scales, lines.mins, out + 4);
  for (int i = 0; i < kWeights; ++i) put_q5_k(out, i, lines.codes[i]);
}

void encode_q3_k(const float* weights, const float* columns, unsigned char* out) {
  static constexpr float kAims[] = {-4.9f, -4.7f, -4.5f, -4.3f, -4.15f, -4, -3.85f, -3.7f,
                                    -3.5f, -3.3f, -3.1f, 2.6f,  2.8f,   3,  3.2f,   3.4f};
  const auto found = fit_multiples<WholeValues<4>, 32, 16>(weights, columns, kAims);
  std::memset(out, 0, 110);
  for (int i = 0; i < kWeights; ++i) put_q3_k(out, i, found.codes[i]);
  for (int s = 0; s < 16; ++s) {
    const int scale = found.scales[s] + 32;
    out[96 + s % 8] |= static_cast<unsigned char>((scale & 15) << (s / 8 * 4));
    out[104 + s % 4] |= static_cast<unsigned char>(scale >> 4 << (s / 4 * 2));
  }
  put_half(out + 108, found.d);
}

void encode_q6_k(const float* weights, const float* columns, unsigned char* out) {
  static constexpr float kAims[] = {-32.8f, -32.6f, -32.4f, -32.2f, -32,    -31.8f, -31.6f,
                                    -31.4f, -31.2f, -31,    -30.8f, 31.25f, 31,     30.75f};
  const auto found = fit_multiples<WholeValues<32>, 128, 16>(weights, columns, kAims);
  std::memset(out, 0, 210);
  for (int i = 0; i < kWeights; ++i) put_q6_k(out, i, found.codes[i]);
  std::memcpy(out + 192, found.scales, 16);
  put_half(out + 208, found.d);
}

void encode_iq4_xs(const float* weights, const float* columns, unsigned char* out) {
  static constexpr float kAims[] = {-134, -133, -132, -131, -130, -129, -128, -127,
                                    -126, -125, -124, -123, -122, -121, -120, 127};
  const auto found = fit_multiples<IQ4NLValues, 32, 32>(weights, columns, kAims);
  std::memset(out, 0, 136);
  put_half(out, found.d);
  std::uint16_t high = 0;
  for (int s = 0; s < 8; ++s) {
    const int scale = found.scales[s] + 32;
    high |= static_cast<std::uint16_t>(scale >> 4 << (2 * s));
    out[4 + s / 2] |= static_cast<unsigned char>((scale & 15) << (s % 2 * 4));
  }
  std::memcpy(out + 2, &high, sizeof high);
  for (int i = 0; i < kWeights; ++i) put_iq4_xs(out, i, found.codes[i]);
}

}  // namespace moeinf
