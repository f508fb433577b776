// The formats in which weights are stored. Block formats are those of ggml, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace moeinf {

enum class Format : int {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_K,
  kIQ4_NL,
  kMXFP4,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ5_K,
  kQ6_K,
  kIQ4_XS,
  kIQ3_XXS,  // from here on only read, never written
  kIQ3_S,
  kIQ2_XXS,
  kIQ2_XS,
  kIQ2_S,
  kIQ1_S,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kNVFP4,
  kNarrowF32,  // f32 of which only the upper halves are held, as those of bf16: see narrow_in_place
};
constexpr int kNumFormats = static_cast<int>(Format::kNarrowF32) + 1;

struct BlockQ8_0 {  // 32 weights: d * q
  std::uint16_t d;  // float16
  std::int8_t q[32];
};
struct BlockQ4_0 {  // 32 weights: d * (nibble - 8); byte i holds weight i (low nibble) and i + 16 (high)
  std::uint16_t d;
  std::uint8_t q[16];
};
struct BlockQ5_0 {  // 32 weights: d * (five bits - 16); nibbles as in BlockQ4_0, the fifth bit of weight i is
                    // bit i
  std::uint16_t d;
  std::uint8_t high[4];
  std::uint8_t q[16];
};
struct BlockQ4_1 {  // 32 weights: d * nibble + m; nibbles as in BlockQ4_0
  std::uint16_t d, m;
  std::uint8_t q[16];
};
struct BlockQ5_1 {  // 32 weights: d * five bits + m, as in BlockQ5_0
  std::uint16_t d, m;
  std::uint8_t high[4];
  std::uint8_t q[16];
};
struct BlockIQ4_NL {  // 32 weights: d * kIQ4NLValues[nibble]; nibbles as in BlockQ4_0
  std::uint16_t d;
  std::uint8_t q[16];
};
struct BlockMXFP4 {  // 32 weights: 2^(e - 127) * E2M1 value of the nibble; nibbles as in BlockQ4_0
  std::uint8_t e;    // E8M0; 255 is NaN
  std::uint8_t q[16];
};
struct BlockQ4_K {  // 256 weights in 8 sub-blocks s of 32: d * scale[s] * nibble - dmin * min[s]
  std::uint16_t d, dmin;
  std::uint8_t scales[12];  // 8 scales and 8 mins of 6 bits, packed as ggml's get_scale_min_k4 reads them
  std::uint8_t q[128];      // 64 weights in each 32 bytes: low nibbles are sub-block 2j, high ones 2j + 1
};
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ5_0) == 22 &&
              sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_1) == 24 && sizeof(BlockMXFP4) == 17 &&
              sizeof(BlockQ4_K) == 144);

extern const std::int8_t kIQ4NLValues[16];
// Doubled, so that they are whole: 0 1 2 3 4 6 8 12 and their negatives.
extern const std::int8_t kMXFP4Values[16];
// Half of what each scale of an NVFP4 block stands for (E4M3 without a sign), as its values are those of
// MXFP4, doubled.
struct ScaleTable {
  float values[256];
};
extern const ScaleTable kHalfOfUE4M3;

Format format_named(const std::string& name);  // "q4_k"; throws std::invalid_argument naming the known ones
const char* name_of(Format format);
int block_weights(Format format);  // 1, 32, 64 or 256: a row is a whole number of blocks
std::size_t block_bytes(Format format);

inline std::size_t row_bytes(Format format, std::int64_t cols) {
  return static_cast<std::size_t>(cols / block_weights(format)) * block_bytes(format);
}

// Makes kNarrowF32 of `count` f32 weights, in the first half of their memory, where that loses nothing: their
// lower halves are zeros, as of what was bf16 once. Returns whether it did; else they stay as they are.
bool narrow_in_place(unsigned char* weights, std::size_t count);

// A weight matrix in memory that somebody else owns: rows one behind the other, each row_bytes(format, cols)
// long, with no alignment beyond that of the first byte.
struct Matrix {
  const unsigned char* data;
  Format format;
  std::int64_t rows, cols;
  float scale = 1;  // of every weight, for Kernels::multiply: NVFP4 has one beside its blocks

  const unsigned char* row(std::int64_t r) const {
    return data + static_cast<std::size_t>(r) * row_bytes(format, cols);
  }
};

}  // namespace moeinf
