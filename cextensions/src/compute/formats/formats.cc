// What the formats are: names, block sizes, value tables, and the plain reading of every block.
#include "moeinf/compute/formats/formats.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "half.h"
#include "moeinf/compute/formats/quantise.h"

namespace moeinf {

namespace {

struct FormatTraits {
  Format format;
  const char* name;
  int block_weights;
  std::size_t block_bytes;
};

// In the order of enum Format.
constexpr FormatTraits kTraits[] = {
    {Format::kF32, "f32", 1, 4},
    {Format::kF16, "f16", 1, 2},
    {Format::kBF16, "bf16", 1, 2},
    {Format::kQ8_0, "q8_0", 32, sizeof(BlockQ8_0)},
    {Format::kQ4_0, "q4_0", 32, sizeof(BlockQ4_0)},
    {Format::kQ4_K, "q4_k", 256, sizeof(BlockQ4_K)},
    {Format::kIQ4_NL, "iq4_nl", 32, sizeof(BlockIQ4_NL)},
    {Format::kMXFP4, "mxfp4", 32, sizeof(BlockMXFP4)},
};

const FormatTraits& traits(Format format) { return kTraits[static_cast<int>(format)]; }

template <typename Block>
Block block_at(const unsigned char* data) {  // a copy, as rows of 17-byte blocks are not aligned
  Block block;
  std::memcpy(&block, data, sizeof block);
  return block;
}

void expand(const BlockQ8_0& block, float* out) {
  const float d = float_of_half(block.d);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(block.q[i]);
}

void expand_nibbles(const unsigned char* q, float scale, const std::int8_t* values, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * static_cast<float>(values[q[i] & 15]);
    out[i + 16] = scale * static_cast<float>(values[q[i] >> 4]);
  }
}

void expand(const BlockQ4_0& block, float* out) {
  static constexpr std::int8_t kValues[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
  expand_nibbles(block.q, float_of_half(block.d), kValues, out);
}

void expand(const BlockIQ4_NL& block, float* out) {
  expand_nibbles(block.q, float_of_half(block.d), kIQ4NLValues, out);
}

// Half of 2^(e - 127), as the values of the table are doubled; 2^-128 and 2^-127 are subnormal.
float half_scale(std::uint8_t e) {
  if (e == 255) return float_of_bits(0x7fc00000u);
  return float_of_bits(e < 2 ? 0x00200000u << e : static_cast<std::uint32_t>(e - 1) << 23);
}

void expand(const BlockMXFP4& block, float* out) {
  expand_nibbles(block.q, half_scale(block.e), kMXFP4Values, out);
}

// Sub-blocks 0-3 have the low 6 bits of their bytes; 4-7 a nibble, and the 2 bits above the 6 of an earlier
// one.
void scale_and_min(const std::uint8_t* packed, int sub_block, int* scale, int* min) {
  if (sub_block < 4) {
    *scale = packed[sub_block] & 63;
    *min = packed[sub_block + 4] & 63;
  } else {
    *scale = (packed[sub_block + 4] & 15) | (packed[sub_block - 4] >> 6 << 4);
    *min = (packed[sub_block + 4] >> 4) | (packed[sub_block] >> 6 << 4);
  }
}

void expand(const BlockQ4_K& block, float* out) {
  const float d = float_of_half(block.d), dmin = float_of_half(block.dmin);
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    scale_and_min(block.scales, s, &scale, &min);
    const float factor = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    const std::uint8_t* q = block.q + s / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int nibble = s % 2 ? q[i] >> 4 : q[i] & 15;
      out[s * 32 + i] = factor * static_cast<float>(nibble) - offset;
    }
  }
}

template <typename Block>
void expand_all(const Matrix& matrix, int weights, float* out) {
  const std::int64_t num_blocks = matrix.rows * (matrix.cols / weights);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    expand(block_at<Block>(matrix.data + static_cast<std::size_t>(b) * sizeof(Block)), out + b * weights);
  }
}

template <typename Word, typename Widen>
void widen_all(const Matrix& matrix, float* out, Widen widen) {
  for (std::int64_t i = 0; i < matrix.rows * matrix.cols; ++i) {
    out[i] = widen(block_at<Word>(matrix.data + static_cast<std::size_t>(i) * sizeof(Word)));
  }
}

bool is_bad_half(const unsigned char* data) { return (block_at<std::uint16_t>(data) & 0x7c00) == 0x7c00; }

bool is_bad_block(Format format, const unsigned char* data) {
  if (format == Format::kMXFP4) return *data == 255;
  return is_bad_half(data) || (format == Format::kQ4_K && is_bad_half(data + 2));
}

}  // namespace

const std::int8_t kIQ4NLValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
const std::int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

Format format_named(const std::string& name) {
  std::string known;
  for (const FormatTraits& each : kTraits) {
    if (name == each.name) return each.format;
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("unknown format '" + name + "'; known: " + known);
}

const char* name_of(Format format) { return traits(format).name; }
int block_weights(Format format) { return traits(format).block_weights; }
std::size_t block_bytes(Format format) { return traits(format).block_bytes; }

void dequantise(const Matrix& matrix, float* out) {
  switch (matrix.format) {
    case Format::kF32:
      return widen_all<float>(matrix, out, [](float value) { return value; });
    case Format::kF16:
      return widen_all<std::uint16_t>(matrix, out, float_of_half);
    case Format::kBF16:
      return widen_all<std::uint16_t>(matrix, out, float_of_bfloat16);
    case Format::kQ8_0:
      return expand_all<BlockQ8_0>(matrix, 32, out);
    case Format::kQ4_0:
      return expand_all<BlockQ4_0>(matrix, 32, out);
    case Format::kQ4_K:
      return expand_all<BlockQ4_K>(matrix, 256, out);
    case Format::kIQ4_NL:
      return expand_all<BlockIQ4_NL>(matrix, 32, out);
    case Format::kMXFP4:
      return expand_all<BlockMXFP4>(matrix, 32, out);
  }
}

std::int64_t first_bad_scale(const Matrix& matrix) {
  if (block_weights(matrix.format) == 1) return -1;
  const std::int64_t num_blocks = matrix.rows * (matrix.cols / block_weights(matrix.format));
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    if (is_bad_block(matrix.format, matrix.data + static_cast<std::size_t>(b) * block_bytes(matrix.format)))
      return b;
  }
  return -1;
}

void repack_mxfp4(const unsigned char* nibbles, const unsigned char* scales, std::int64_t num_blocks,
                  BlockMXFP4* out) {
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    const unsigned char* pairs = nibbles + b * 16;
    const auto weight = [pairs](int i) { return i % 2 ? pairs[i / 2] >> 4 : pairs[i / 2] & 15; };
    out[b].e = scales[b];
    for (int i = 0; i < 16; ++i) out[b].q[i] = static_cast<std::uint8_t>(weight(i) | weight(i + 16) << 4);
  }
}

}  // namespace moeinf
