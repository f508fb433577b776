// The plain reading of blocks whose weights are a scale times a number of few bits, less a minimum.
#include "expand.h"
#include "half.h"
#include "moeinf/compute/formats/formats.h"

namespace moeinf {
namespace {

float half_at(const unsigned char* p) { return float_of_half(load_u16(p)); }

// Number i of 32 whose low nibbles are q[0..15], then the high ones of the same bytes, and bit i of `high`
// above.
int five_bits(const unsigned char* q, std::uint32_t high, int i) {
  const int nibble = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
  return nibble | static_cast<int>(high >> i & 1) << 4;
}

std::uint32_t word_at(const unsigned char* p) {
  return load_u16(p) | static_cast<std::uint32_t>(load_u16(p + 2)) << 16;
}

// Bits of 256 numbers: of number i those from `shift` on of byte i % 32 of the line of 32 bytes in which it
// lies, with kPerByte numbers a byte, one line after the other.
template <int kPerByte>
int bits_of(const unsigned char* lines, int i) {
  constexpr int kBits = 8 / kPerByte;
  const unsigned char byte = lines[i / (32 * kPerByte) * 32 + i % 32];
  return byte >> (i / 32 % kPerByte * kBits) & ((1 << kBits) - 1);
}

}  // namespace

void scale_and_min_k4(const std::uint8_t* packed, int sub_block, int* scale, int* min) {
  if (sub_block < 4) {
    *scale = packed[sub_block] & 63;
    *min = packed[sub_block + 4] & 63;
  } else {
    *scale = (packed[sub_block + 4] & 15) | (packed[sub_block - 4] >> 6 << 4);
    *min = (packed[sub_block + 4] >> 4) | (packed[sub_block] >> 6 << 4);
  }
}

void expand_q4_1(const unsigned char* block, float* out) {  // d, m, nibbles
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(block + 4, 0, i)) + m;
}

void expand_q5_0(const unsigned char* block, float* out) {  // d, fifth bits, nibbles
  const float d = half_at(block);
  const std::uint32_t high = word_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(block + 6, high, i) - 16);
}

void expand_q5_1(const unsigned char* block, float* out) {  // d, m, fifth bits, nibbles
  const float d = half_at(block), m = half_at(block + 2);
  const std::uint32_t high = word_at(block + 4);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(five_bits(block + 8, high, i)) + m;
}

void expand_q2_k(const unsigned char* block,
                 float* out) {  // scales and minima in nibbles, pairs of bits, d, dmin
  const float d = half_at(block + 80), dmin = half_at(block + 82);
  for (int i = 0; i < 256; ++i) {
    const unsigned char packed = block[i / 16];
    const float scale = d * static_cast<float>(packed & 15), min = dmin * static_cast<float>(packed >> 4);
    out[i] = scale * static_cast<float>(bits_of<4>(block + 16, i)) - min;
  }
}

void expand_q3_k(const unsigned char* block,
                 float* out) {  // third bits, pairs of bits, 16 scales of 6 bits, d
  const float d = half_at(block + 108);
  const unsigned char* const scales = block + 96;
  for (int i = 0; i < 256; ++i) {
    const int s = i / 16, low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    const int high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
    const int q = bits_of<4>(block + 32, i) | bits_of<8>(block, i) << 2;
    out[i] = d * static_cast<float>((low | high << 4) - 32) * static_cast<float>(q - 4);
  }
}

void expand_q5_k(const unsigned char* block, float* out) {  // d, dmin, scales and minima, fifth bits, nibbles
  const float d = half_at(block), dmin = half_at(block + 2);
  for (int i = 0; i < 256; ++i) {
    int scale, min;
    scale_and_min_k4(block + 4, i / 32, &scale, &min);
    const int q = bits_of<2>(block + 48, i) | bits_of<8>(block + 16, i) << 4;
    out[i] = d * static_cast<float>(scale) * static_cast<float>(q) - dmin * static_cast<float>(min);
  }
}

void expand_q6_k(const unsigned char* block,
                 float* out) {  // nibbles in lines of 64, pairs of bits, scales, d
  const float d = half_at(block + 208);
  for (int i = 0; i < 256; ++i) {
    const unsigned char byte = block[i / 128 * 64 + i % 64];
    const int low = i % 128 < 64 ? byte & 15 : byte >> 4, q = low | bits_of<4>(block + 128, i) << 4;
    const auto scale = static_cast<std::int8_t>(block[192 + i / 16]);
    out[i] = d * static_cast<float>(scale) * static_cast<float>(q - 32);
  }
}

void expand_tq2_0(const unsigned char* block, float* out) {  // pairs of bits, d
  const float d = half_at(block + 64);
  for (int i = 0; i < 256; ++i) out[i] = d * static_cast<float>(bits_of<4>(block, i) - 1);
}

// Bytes are fractions to the base 3: the digit before the point is that of the fraction times 3, and what
// stays behind it has the next one. 32 bytes of five digits, 16 of five, and four of four; then d.
void expand_tq1_0(const unsigned char* block, float* out) {
  const float d = half_at(block + 52);
  constexpr struct {
    int first, num_bytes, num_digits;
  } kParts[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
  for (const auto& part : kParts) {
    unsigned power = 1;
    for (int digit = 0; digit < part.num_digits; ++digit, power *= 3) {
      for (int i = 0; i < part.num_bytes; ++i) {
        const unsigned fraction = block[part.first + i] * power & 255;
        *out++ = d * static_cast<float>(static_cast<int>(fraction * 3 >> 8) - 1);
      }
    }
  }
}

void expand_iq4_xs(const unsigned char* block,
                   float* out) {  // d, high bits of 8 scales, low nibbles of them, nibbles
  const float d = half_at(block);
  for (int i = 0; i < 256; ++i) {
    const int s = i / 32, low = block[4 + s / 2] >> (s % 2 * 4) & 15,
              high = load_u16(block + 2) >> (2 * s) & 3;
    const int index = five_bits(block + 8 + 16 * s, 0, i % 32);
    out[i] = d * static_cast<float>((low | high << 4) - 32) * static_cast<float>(kIQ4NLValues[index]);
  }
}

void expand_nvfp4(const unsigned char* block, float* out) {  // 4 scales, nibbles of 8 bytes for each
  for (int i = 0; i < 64; ++i) {
    const unsigned char byte = block[4 + i / 16 * 8 + i % 8];
    const std::int8_t value = kMXFP4Values[i % 16 < 8 ? byte & 15 : byte >> 4];
    out[i] = kHalfOfUE4M3.values[block[i / 16]] * static_cast<float>(value);
  }
}

}  // namespace moeinf
