// Rounds weights into blocks; q4_k has a file of its own.
#include "moeinf/compute/formats/quantise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "half.h"
#include "lanes.h"
#include "quantise_q4_k.h"

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

// The weight of the largest magnitude, with its sign; the first of several.
Floats extreme(const Tile& tile) {
  Floats amax = splat(0), found = splat(0);
  for (const Floats& x : tile.x) {
    const Ints beyond = absolute(x) > amax;
    amax = beyond ? absolute(x) : amax;
    found = beyond ? x : found;
  }
  return found;
}

// Nibble of weight i in the low half of byte i, of weight i + 16 in the high one.
void pack_nibbles(const Codes& codes, int lane, std::uint8_t* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = static_cast<std::uint8_t>(codes.q[i][lane] | codes.q[i + 16][lane] << 4);
  }
}

void encode(const Tile& tile, BlockQ8_0* out, int num_groups) {
  const Floats d = largest_magnitude(tile) / 127.0f, inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) codes.q[i] = to_ints(nearest(tile.x[i] * inverse));
  for (int g = 0; g < num_groups; ++g) {
    out[g].d = half_of_float(d[g]);
    for (int i = 0; i < kGroup; ++i) out[g].q[i] = static_cast<std::int8_t>(codes.q[i][g]);
  }
}

// The extreme weight becomes -8 exactly, as that side of the range has one value more.
void encode(const Tile& tile, BlockQ4_0* out, int num_groups) {
  const Floats d = extreme(tile) / -8.0f, inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) {
    codes.q[i] = to_ints(smaller(tile.x[i] * inverse + 8.5f, splat(15)));  // truncated, so the half rounds
  }
  for (int g = 0; g < num_groups; ++g) {
    out[g].d = half_of_float(d[g]);
    pack_nibbles(codes, g, out[g].q);
  }
}

// The same with 32 values: the extreme weight becomes -16.
void encode(const Tile& tile, BlockQ5_0* out, int num_groups) {
  const Floats d = extreme(tile) / -16.0f, inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) {
    codes.q[i] = to_ints(smaller(tile.x[i] * inverse + 16.5f, splat(31)));
  }
  for (int g = 0; g < num_groups; ++g) {
    std::uint32_t high = 0;
    for (int i = 0; i < kGroup; ++i) high |= static_cast<std::uint32_t>(codes.q[i][g] >> 4) << i;
    for (int byte = 0; byte < 4; ++byte) out[g].high[byte] = static_cast<std::uint8_t>(high >> 8 * byte);
    out[g].d = half_of_float(d[g]);
  }
  for (Ints& code : codes.q) code &= 15;
  for (int g = 0; g < num_groups; ++g) pack_nibbles(codes, g, out[g].q);
}

// Between neighbours of kIQ4NLValues.
constexpr float kIQ4NLBorders[15] = {-115.5f, -93.5f, -74,   -57,   -42, -28.5f, -16, -4.5f,
                                     7,       19,     31.5f, 45.5f, 61,  79,     101};

Ints iq4nl_codes(Floats x) {
  Ints code = {};
  for (const float border : kIQ4NLBorders) code -= x > splat(border);  // a true lane is -1
  return code;
}

Floats iq4nl_rounded(Floats x) {
  Floats value = splat(kIQ4NLValues[0]);
  for (int v = 0; v < 15; ++v) {
    const Floats step = splat(static_cast<float>(kIQ4NLValues[v + 1] - kIQ4NLValues[v]));
    value += reinterpret_cast<Floats>((x > splat(kIQ4NLBorders[v])) & reinterpret_cast<Ints>(step));
  }
  return value;
}

// Scale of the least squared error, weighted by x^2, among 15 that bring the extreme weight to -120 ... -134
// and one that brings it to 127; each in turn is replaced by the best one for its own codes.
Floats iq4nl_scale(const Tile& tile) {
  constexpr int kTries = 7;
  const Floats top = extreme(tile);
  const Floats safe_top = absolute(top) > 1e-15f ? top : splat(1);
  Floats best_d = splat(0), best_gain = splat(0);
  for (int t = -kTries; t <= kTries + 1; ++t) {
    const float aim =
        t <= kTries ? static_cast<float>(kIQ4NLValues[0] + t) : -static_cast<float>(kIQ4NLValues[0]);
    const Floats inverse = splat(aim) / safe_top;
    Floats sum_qx = splat(0), sum_qq = splat(0);
    for (const Floats& x : tile.x) {
      const Floats q = iq4nl_rounded(x * inverse), weighted = x * x * q;
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

void encode(const Tile& tile, BlockIQ4_NL* out, int num_groups) {
  const Floats d = iq4nl_scale(tile), inverse = inverse_or_zero(d);
  Codes codes;
  for (int i = 0; i < kGroup; ++i) codes.q[i] = iq4nl_codes(tile.x[i] * inverse);
  for (int g = 0; g < num_groups; ++g) {
    out[g].d = half_of_float(d[g]);
    pack_nibbles(codes, g, out[g].q);
  }
}

// The scale is the power of two that brings the largest weight to 4 ... 8; what is beyond 6, the largest
// value, becomes 6.
void encode(const Tile& tile, BlockMXFP4* out, int num_groups) {
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

// Blocks of up to kStep weights; those behind count are zero.
template <typename Block>
void encode_step(const float* weights, int count, unsigned char* out) {
  for (int start = 0; start < count; start += kLanes * kGroup) {
    Block blocks[kLanes];
    const int num_groups = std::min(kLanes, (count - start) / kGroup);
    encode(tile_of(weights + start), blocks, num_groups);
    std::memcpy(out + static_cast<std::size_t>(start / kGroup) * sizeof(Block), blocks,
                sizeof(Block) * static_cast<std::size_t>(num_groups));
  }
}

template <>
void encode_step<BlockQ4_K>(const float* weights, int, unsigned char* out) {
  const BlockQ4_K block = encode_super_block(weights);
  std::memcpy(out, &block, sizeof block);
}

using EncodeStep = void (*)(const float* weights, int count, unsigned char* out);

EncodeStep encoder(Format format) {
  switch (format) {
    case Format::kQ8_0:
      return encode_step<BlockQ8_0>;
    case Format::kQ4_0:
      return encode_step<BlockQ4_0>;
    case Format::kQ5_0:
      return encode_step<BlockQ5_0>;
    case Format::kQ4_K:
      return encode_step<BlockQ4_K>;
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

[[noreturn]] void refuse(const float* weights, int count) {
  const auto* bad = std::find_if(weights, weights + count,
                                 [](float weight) { return !(std::fabs(weight) <= kLargestWeight); });
  throw std::invalid_argument("holds " + std::to_string(*bad) +
                              "; only finite weights up to 65504 can be quantised");
}

}  // namespace

void quantise(Format format, const unsigned char* source, Format source_format, std::int64_t rows,
              std::int64_t cols, unsigned char* out) {
  const EncodeStep encode_next = encoder(format);
  const Load load_next = loader(source_format);
  if (cols % block_weights(format) != 0) {
    throw std::invalid_argument("rows of " + std::to_string(cols) + " are no whole number of " +
                                name_of(format) + " blocks of " + std::to_string(block_weights(format)));
  }
  alignas(64) float weights[kStep];
  for (std::int64_t start = 0; start < rows * cols; start += kStep) {
    const int count = static_cast<int>(std::min<std::int64_t>(kStep, rows * cols - start));
    std::fill(weights + count, weights + kStep, 0.0f);
    if (!load_next(source + static_cast<std::size_t>(start) * block_bytes(source_format), count, weights)) {
      refuse(weights, count);
    }
    encode_next(weights, count, out + row_bytes(format, start));
  }
}

}  // namespace moeinf
