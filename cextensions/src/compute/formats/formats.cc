// What the formats are: names, block sizes, value tables, and the plain reading of those that are written.
#include "moeinf/compute/formats/formats.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "expand.h"
#include "half.h"
#include "moeinf/compute/formats/quantise.h"

namespace moeinf {

namespace {

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

void expand(const BlockQ4_K& block, float* out) {
  const float d = float_of_half(block.d), dmin = float_of_half(block.dmin);
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    scale_and_min_k4(block.scales, s, &scale, &min);
    const float factor = d * static_cast<float>(scale), offset = dmin * static_cast<float>(min);
    const std::uint8_t* q = block.q + s / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int nibble = s % 2 ? q[i] >> 4 : q[i] & 15;
      out[s * 32 + i] = factor * static_cast<float>(nibble) - offset;
    }
  }
}

template <typename Block>
void expand_at(const unsigned char* data, float* out) {
  expand(block_at<Block>(data), out);
}

template <typename Word, float (*widen)(Word)>
void widen_at(const unsigned char* data, float* out) {
  *out = widen(block_at<Word>(data));
}

bool is_bad(std::uint16_t half) { return (half & 0x7c00) == 0x7c00; }

// Of the halves at these offsets.
template <int... kOffsets>
bool has_bad_half(const unsigned char* block) {
  return (is_bad(load_u16(block + kOffsets)) || ...);
}

bool is_bad_iq1_m(const unsigned char* block) { return is_bad(scale_of_iq1_m(block)); }
bool is_bad_mxfp4(const unsigned char* block) { return *block == 255; }

struct FormatTraits {
  Format format;
  const char* name;
  int block_weights;
  std::size_t block_bytes;
  void (*expand)(const unsigned char* block, float* out);
  bool (*is_bad)(const unsigned char* block);  // null: every scale is a number
};

// In the order of enum Format.
constexpr FormatTraits kTraits[] = {
    {Format::kF32, "f32", 1, 4, widen_at<std::uint32_t, float_of_bits>, nullptr},
    {Format::kF16, "f16", 1, 2, widen_at<std::uint16_t, float_of_half>, nullptr},
    {Format::kBF16, "bf16", 1, 2, widen_at<std::uint16_t, float_of_bfloat16>, nullptr},
    {Format::kQ8_0, "q8_0", 32, sizeof(BlockQ8_0), expand_at<BlockQ8_0>, has_bad_half<0>},
    {Format::kQ4_0, "q4_0", 32, sizeof(BlockQ4_0), expand_at<BlockQ4_0>, has_bad_half<0>},
    {Format::kQ4_K, "q4_k", 256, sizeof(BlockQ4_K), expand_at<BlockQ4_K>, has_bad_half<0, 2>},
    {Format::kIQ4_NL, "iq4_nl", 32, sizeof(BlockIQ4_NL), expand_at<BlockIQ4_NL>, has_bad_half<0>},
    {Format::kMXFP4, "mxfp4", 32, sizeof(BlockMXFP4), expand_at<BlockMXFP4>, is_bad_mxfp4},
    {Format::kQ4_1, "q4_1", 32, 20, expand_q4_1, has_bad_half<0, 2>},
    {Format::kQ5_0, "q5_0", 32, 22, expand_q5_0, has_bad_half<0>},
    {Format::kQ5_1, "q5_1", 32, 24, expand_q5_1, has_bad_half<0, 2>},
    {Format::kQ2_K, "q2_k", 256, 84, expand_q2_k, has_bad_half<80, 82>},
    {Format::kQ3_K, "q3_k", 256, 110, expand_q3_k, has_bad_half<108>},
    {Format::kQ5_K, "q5_k", 256, 176, expand_q5_k, has_bad_half<0, 2>},
    {Format::kQ6_K, "q6_k", 256, 210, expand_q6_k, has_bad_half<208>},
    {Format::kIQ4_XS, "iq4_xs", 256, 136, expand_iq4_xs, has_bad_half<0>},
    {Format::kIQ3_XXS, "iq3_xxs", 256, 98, expand_iq3_xxs, has_bad_half<0>},
    {Format::kIQ3_S, "iq3_s", 256, 110, expand_iq3_s, has_bad_half<0>},
    {Format::kIQ2_XXS, "iq2_xxs", 256, 66, expand_iq2_xxs, has_bad_half<0>},
    {Format::kIQ2_XS, "iq2_xs", 256, 74, expand_iq2_xs, has_bad_half<0>},
    {Format::kIQ2_S, "iq2_s", 256, 82, expand_iq2_s, has_bad_half<0>},
    {Format::kIQ1_S, "iq1_s", 256, 50, expand_iq1_s, has_bad_half<0>},
    {Format::kIQ1_M, "iq1_m", 256, 56, expand_iq1_m, is_bad_iq1_m},
    {Format::kTQ1_0, "tq1_0", 256, 54, expand_tq1_0, has_bad_half<52>},
    {Format::kTQ2_0, "tq2_0", 256, 66, expand_tq2_0, has_bad_half<64>},
    {Format::kNVFP4, "nvfp4", 64, 36, expand_nvfp4, nullptr},
    {Format::kNarrowF32, "narrow_f32", 1, 2, widen_at<std::uint16_t, float_of_bfloat16>, nullptr},
};
static_assert(sizeof kTraits / sizeof kTraits[0] == kNumFormats, "a format lacks its traits");

const FormatTraits& traits(Format format) { return kTraits[static_cast<int>(format)]; }

}  // namespace

const std::int8_t kIQ4NLValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
const std::int8_t kMXFP4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

namespace {

constexpr ScaleTable half_of_ue4m3() {
  ScaleTable table{};
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    float value = exponent == 0 ? static_cast<float>(mantissa) : static_cast<float>(8 + mantissa);
    for (int e = exponent == 0 ? 1 : exponent; e < 11; ++e) value /= 2;
    for (int e = 11; e < exponent; ++e) value *= 2;
    table.values[code] = code == 0x7f ? 0.0f : value;
  }
  return table;
}

}  // namespace

constexpr ScaleTable kHalfOfUE4M3 = half_of_ue4m3();

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

void expand_block(Format format, const unsigned char* block, float* out) {
  traits(format).expand(block, out);
}

void dequantise(const Matrix& matrix, float* out) {
  const FormatTraits& format = traits(matrix.format);
  const std::int64_t num_blocks = matrix.rows * (matrix.cols / format.block_weights);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    format.expand(matrix.data + static_cast<std::size_t>(b) * format.block_bytes,
                  out + b * format.block_weights);
  }
}

std::int64_t first_bad_scale(const Matrix& matrix) {
  const FormatTraits& format = traits(matrix.format);
  if (format.is_bad == nullptr) return -1;
  const std::int64_t num_blocks = matrix.rows * (matrix.cols / format.block_weights);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    if (format.is_bad(matrix.data + static_cast<std::size_t>(b) * format.block_bytes)) return b;
  }
  return -1;
}

bool narrow_in_place(unsigned char* weights, std::size_t count) {
  std::uint32_t lower = 0;
  for (std::size_t i = 0; i < count; ++i) lower |= block_at<std::uint32_t>(weights + 4 * i) & 0xffffu;
  if (lower != 0) return false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto upper = static_cast<std::uint16_t>(block_at<std::uint32_t>(weights + 4 * i) >> 16);
    std::memcpy(weights + 2 * i, &upper, sizeof upper);
  }
  return true;
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
