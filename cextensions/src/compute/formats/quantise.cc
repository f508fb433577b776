// Rounds weights into blocks of 32; super-blocks have files of their own.
#include "moeinf/compute/formats/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "fit_line.h"
#include "fit_scale.h"
#include "half.h"
#include "lanes.h"
#include "quantise_super.h"

namespace moeinf {

namespace {

using namespace lanes;

constexpr int kStep = 256;  // weights taken at once: two tiles, or a super-block of q4_k

struct Codes {
  Ints q[kGroup];
};

Floats largest_magnitude(const Tile& tile) {
  Floats amax = splat(0);
  for (const Floats& x : tile.x) amax = larger(amax, absolute(x));
  return amax;
}

// Nibble of weight i in the low half of byte i, of weight i + 16 in the high one.
void pack_nibbles(const Codes& codes, int lane, std::uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::uint8_t>(codes.q[i][lane] | codes.q[i + 16][lane] << 4);
  }
}

// Bit i is the fifth of weight i.
void pack_fifth_bits(const Codes& codes, int lane, std::uint8_t* out) {
  std::uint32_t high = 0;
  for (int i = 0; i < kGroup; ++i) high |= static_cast<std::uint32_t>(codes.q[i][lane] >> 4) << i;
  for (int byte = 0; byte < 4; ++byte) out[byte] = static_cast<std::uint8_t>(high >> 8 * byte);
}

void encode(const Tile& tile, const float*, BlockQ8_0* out, int num_groups) {
  const Floats d = largest_magnitude(tile) / 127.0f, inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) codes.q[i] = to_ints(nearest(tile.x[i] * inverse));
  for (int g = 0; g < num_groups; ++g) {
    out[g].d = half_of_float(d[g]);
    for (int i = 0; i < kGroup; ++i) out[g].q[i] = static_cast<std::int8_t>(codes.q[i][g]);
  }
}

// Multiples of the best scale among those that bring the extreme weight to one of `aims`.
template <typename Values, typename Block, int kAims>
Codes encode_multiples(const Tile& tile, const Tile& importance, const float (&aims)[kAims], Block* out,
                       int num_groups) {
  Floats d = search_scale<Values>(tile, importance, aims);
  for (int g = 0; g < kLanes; ++g) {
    const std::uint16_t half = half_of_float(d[g]);
    if (g < num_groups) out[g].d = half;
    d[g] = float_of_half(half);
  }
  const Floats inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) codes.q[i] = Values::codes(tile.x[i] * inverse);
  return codes;
}

// The side of -8 has one value more, so the extreme weight mostly becomes that, or lies a little beyond it.
constexpr float kQ4Aims[] = {-9, -8.75f, -8.5f, -8.25f, -8, -7.75f, -7.5f, -7.25f, -7, 7.25f, 7};
constexpr float kQ5Aims[] = {-17, -16.75f, -16.5f, -16.25f, -16, -15.75f, -15.5f, -15.25f, -15, 15.25f, 15};

void encode(const Tile& tile, const float* columns, BlockQ4_0* out, int num_groups) {
  const Codes codes =
      encode_multiples<WholeValues<8>>(tile, importance_of(tile, columns), kQ4Aims, out, num_groups);
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

void encode(const Tile& tile, const float* columns, BlockQ5_0* out, int num_groups) {
  Codes codes =
      encode_multiples<WholeValues<16>>(tile, importance_of(tile, columns), kQ5Aims, out, num_groups);
  for (int g = 0; g < num_groups; ++g) pack_fifth_bits(codes, g, out[g].high);
  for (Ints& code : codes.q) code &= 15;
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

// Scales that bring the extreme weight to -120 ... -134, and one that brings it to 127.
constexpr float kIQ4NLAims[] = {-134, -133, -132, -131, -130, -129, -128, -127,
                                -126, -125, -124, -123, -122, -121, -120, 127};

void encode(const Tile& tile, const float* columns, BlockIQ4_NL* out, int num_groups) {
  const Codes codes =
      encode_multiples<IQ4NLValues>(tile, importance_of(tile, columns), kIQ4NLAims, out, num_groups);
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

// A line through the weights, from a minimum of either sign.
template <int kTop, typename Block>
Codes encode_line(const Tile& tile, const float* columns, Block* out, int num_groups) {
  const Line line = search_line<kTop>(tile, importance_of(tile, columns), false);
  Floats d, min;
  for (int g = 0; g < kLanes; ++g) {
    const std::uint16_t half_d = half_of_float(line.scale[g]);
    const std::uint16_t half_min = half_of_float(std::clamp(line.min[g], -kLargestWeight, kLargestWeight));
    if (g < num_groups) {
      out[g].d = half_d;
      out[g].m = half_min;
    }
    d[g] = float_of_half(half_d);
    min[g] = float_of_half(half_min);
  }
  const Floats inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) codes.q[i] = to_ints(code_on<kTop>(tile.x[i], inverse, -min));
  return codes;
}

void encode(const Tile& tile, const float* columns, BlockQ4_1* out, int num_groups) {
  const Codes codes = encode_line<15>(tile, columns, out, num_groups);
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

void encode(const Tile& tile, const float* columns, BlockQ5_1* out, int num_groups) {
  Codes codes = encode_line<31>(tile, columns, out, num_groups);
  for (int g = 0; g < num_groups; ++g) pack_fifth_bits(codes, g, out[g].high);
  for (Ints& code : codes.q) code &= 15;
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

// The scale is the power of two that brings the largest weight to 4 ... 8; what is beyond 6, the largest
// value, becomes 6.
void encode(const Tile& tile, const float*, BlockMXFP4* out, int num_groups) {
  // Between 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
  constexpr float kBorders[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  const Floats amax = largest_magnitude(tile);
  Floats inverse;
  for (int g = 0; g < kLanes; ++g) {
    // The exponent's field of a float counts from -127, as that of a block does.
    const int e = std::max(0, static_cast<int>(bits_of_float(amax[g]) >> 23) - 2);
    if (g < num_groups) out[g].e = static_cast<std::uint8_t>(e);
    inverse[g] = float_of_bits(static_cast<std::uint32_t>(254 - e) << 23);
  }
  Codes codes;
  for (int i = 0; i < kGroup; ++i) {
    const Floats x = tile.x[i] * inverse, magnitude = absolute(x);
    Ints code = {};
    for (const float border : kBorders) code -= magnitude > splat(border);
    codes.q[i] = code | ((x < 0.0f) & (code > 0) & 8);
  }
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

// Blocks of up to kStep weights; those behind count are zero. columns: as importance_of takes them.
template <typename Block>
void encode_step(const float* weights, const float* columns, int count, unsigned char* out) {
  for (int start = 0; start < count; start += kLanes * kGroup) {
    Block blocks[kLanes];
    const int num_groups = std::min(kLanes, (count - start) / kGroup);
    encode(tile_of(weights + start), columns == nullptr ? nullptr : columns + start, blocks, num_groups);
    std::memcpy(out + static_cast<std::size_t>(start / kGroup) * sizeof(Block), blocks,
                sizeof(Block) * static_cast<std::size_t>(num_groups));
  }
}

template <void (*kEncode)(const float* weights, const float* columns, unsigned char* out)>
void encode_super(const float* weights, const float* columns, int, unsigned char* out) {
  kEncode(weights, columns, out);
}

using EncodeStep = void (*)(const float* weights, const float* columns, int count, unsigned char* out);

EncodeStep encoder(Format format) {
  switch (format) {
    case Format::kQ8_0:
      return encode_step<BlockQ8_0>;
    case Format::kQ4_0:
      return encode_step<BlockQ4_0>;
    case Format::kQ5_0:
      return encode_step<BlockQ5_0>;
    case Format::kQ4_1:
      return encode_step<BlockQ4_1>;
    case Format::kQ5_1:
      return encode_step<BlockQ5_1>;
    case Format::kQ2_K:
      return encode_super<encode_q2_k>;
    case Format::kQ3_K:
      return encode_super<encode_q3_k>;
    case Format::kQ4_K:
      return encode_super<encode_q4_k>;
    case Format::kQ5_K:
      return encode_super<encode_q5_k>;
    case Format::kQ6_K:
      return encode_super<encode_q6_k>;
    case Format::kIQ4_XS:
      return encode_super<encode_iq4_xs>;
    case Format::kIQ3_S:
      return encode_super<encode_iq3_s>;
    case Format::kIQ3_XXS:
      return encode_super<encode_iq3_xxs>;
    case Format::kIQ2_S:
      return encode_super<encode_iq2_s>;
    case Format::kIQ2_XS:
      return encode_super<encode_iq2_xs>;
    case Format::kIQ2_XXS:
      return encode_super<encode_iq2_xxs>;
    case Format::kIQ4_NL:
      return encode_step<BlockIQ4_NL>;
    case Format::kMXFP4:
      return encode_step<BlockMXFP4>;
    default:
      throw std::invalid_argument(std::string("weights are not stored as ") + name_of(format) +
                                  " by quantising");
  }
}

// Weights as floats; false where one of them cannot be quantised.
template <typename Word, typename Widen>
bool load(const unsigned char* source, int count, float* out, Widen widen) {
  std::uint32_t largest = 0;
  for (int i = 0; i < count; ++i) {
    Word word;
    std::memcpy(&word, source + static_cast<std::size_t>(i) * sizeof word, sizeof word);
    out[i] = widen(word);
    largest = std::max(largest, bits_of_float(out[i]) & 0x7fffffffu);  // as NaN > infinity > numbers, in bits
  }
  return largest <= bits_of_float(kLargestWeight);
}

using Load = bool (*)(const unsigned char* source, int count, float* out);

Load loader(Format format) {
  switch (format) {
    case Format::kF32:
      return [](const unsigned char* source, int count, float* out) {
        return load<std::uint32_t>(source, count, out, float_of_bits);
      };
    case Format::kF16:
      return [](const unsigned char* source, int count, float* out) {
        return load<std::uint16_t>(source, count, out, float_of_half);
      };
    case Format::kBF16:
      return [](const unsigned char* source, int count, float* out) {
        return load<std::uint16_t>(source, count, out, float_of_bfloat16);
      };
    default:
      throw std::invalid_argument(std::string(name_of(format)) + " weights cannot be quantised again");
  }
}

void check_importance(Span<const float> importance, std::int64_t cols) {
  if (importance.size() != static_cast<std::size_t>(cols))
    throw std::invalid_argument(std::to_string(importance.size()) + " importances of " +
                                std::to_string(cols) + " columns");
  for (const float each : importance) {
    if (!(each > 0 && each <= kLargestWeight))
      throw std::invalid_argument("an importance is " + std::to_string(each) +
                                  "; it is above 0 and at most 65504");
  }
}

[[noreturn]] void refuse(const float* weights, int count) {
  const auto* bad = std::find_if(weights, weights + count,
                                 [](float weight) { return !(std::fabs(weight) <= kLargestWeight); });
  throw std::invalid_argument("holds " + std::to_string(*bad) +
                              "; only finite weights up to 65504 can be quantised");
}

}  // namespace

void quantise(Format format, const unsigned char* source, Format source_format, std::int64_t rows,
              std::int64_t cols, unsigned char* out, Span<const float> importance) {
  const EncodeStep encode_next = encoder(format);
  const Load load_next = loader(source_format);
  if (cols % block_weights(format) != 0) {
    throw std::invalid_argument("rows of " + std::to_string(cols) + " are no whole number of " +
                                name_of(format) + " blocks of " + std::to_string(block_weights(format)));
  }
  if (!importance.empty()) check_importance(importance, cols);
  alignas(64) float weights[kStep], columns[kStep];
  for (std::int64_t start = 0; start < rows * cols; start += kStep) {
    const int count = static_cast<int>(std::min<std::int64_t>(kStep, rows * cols - start));
    std::fill(weights + count, weights + kStep, 0.0f);
    if (!load_next(source + static_cast<std::size_t>(start) * block_bytes(source_format), count, weights)) {
      refuse(weights, count);
    }
    for (int i = 0; i < kStep && !importance.empty(); ++i)
      columns[i] = importance[static_cast<std::size_t>((start + i) % cols)];
    encode_next(weights, importance.empty() ? nullptr : columns, count, out + row_bytes(format, start));
  }
}

}  // namespace moeinf
