// The plain reading of blocks whose weights are points of a grid, several at once, times scale and signs.
#include "expand.h"
#include "grids.h"
#include "half.h"

namespace moeinf {
namespace {

float half_at(const unsigned char* p) { return float_of_half(load_u16(p)); }

// The weights of a point, of 4 or 8 bytes: scale times magnitude, negative where a bit of `signs` is set.
template <class Word>
void put_signed(float scale, Word point, unsigned signs, float* out) {
  for (unsigned i = 0; i < sizeof(Word); ++i) {
    const auto magnitude = static_cast<float>(point >> (8 * i) & 255);
    out[i] = scale * magnitude * (signs >> i & 1 ? -1.0f : 1.0f);
  }
}

std::uint32_t word_at(const unsigned char* p) {
  return load_u16(p) | static_cast<std::uint32_t>(load_u16(p + 2)) << 16;
}

// Eight weights of IQ1: a point of -1, 0 and 1, and an eighth more or less.
void put_shifted(float scale, std::uint64_t point, bool less, float* out) {
  for (int i = 0; i < 8; ++i) {
    const float value = static_cast<float>(static_cast<int>(point >> (8 * i) & 255) - 8) / 8.0f;
    out[i] = scale * (value + (less ? -0.125f : 0.125f));
  }
}

}  // namespace

std::uint16_t scale_of_iq1_m(const unsigned char* block) {
  unsigned scale = 0;
  for (int i = 0; i < 4; ++i) scale |= (load_u16(block + 48 + 2 * i) >> 12 & 15u) << (4 * i);
  return static_cast<std::uint16_t>(scale);
}

void expand_iq2_xxs(const unsigned char* block,
                    float* out) {  // d; of each 32: 4 indices, signs of 7 bits, scale of 4
  for (int s = 0; s < 8; ++s) {
    const unsigned char* const at = block + 2 + 8 * s;
    const std::uint32_t packed = word_at(at + 4);
    const float scale = half_at(block) * (0.5f + static_cast<float>(packed >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k) {
      put_signed(scale, kGridIQ2_XXS.points[at[k]], signs_of(packed >> (7 * k) & 127), out + 32 * s + 8 * k);
    }
  }
}

void expand_iq2_xs(const unsigned char* block,
                   float* out) {  // d; 32 indices of 9 bits with signs of 7; scales of 4
  for (int k = 0; k < 32; ++k) {
    const unsigned packed = load_u16(block + 2 + 2 * k), four = block[66 + k / 4] >> (k / 2 % 2 * 4) & 15u;
    const float scale = half_at(block) * (0.5f + static_cast<float>(four)) * 0.25f;
    put_signed(scale, kGridIQ2_XS.points[packed & 511], signs_of(packed >> 9), out + 8 * k);
  }
}

void expand_iq2_s(const unsigned char* block,
                  float* out) {  // d, indices, signs, high bits of indices, scales of 4 bits
  for (int k = 0; k < 32; ++k) {
    const unsigned index = block[2 + k] | (block[66 + k / 4] >> (k % 4 * 2) & 3u) << 8;
    const unsigned four = block[74 + k / 4] >> (k / 2 % 2 * 4) & 15u;
    const float scale = half_at(block) * (0.5f + static_cast<float>(four)) * 0.25f;
    put_signed(scale, kGridIQ2_S.points[index], block[34 + k], out + 8 * k);
  }
}

void expand_iq3_xxs(const unsigned char* block,
                    float* out) {  // d, indices; of each 32: signs of 7 bits, scale of 4
  for (int s = 0; s < 8; ++s) {
    const std::uint32_t packed = word_at(block + 66 + 4 * s);
    const float scale = half_at(block) * (0.5f + static_cast<float>(packed >> 28)) * 0.5f;
    for (int k = 0; k < 8; ++k) {
      const unsigned signs = signs_of(packed >> (k / 2 * 7) & 127) >> (k % 2 * 4);
      put_signed(scale, kGridIQ3_XXS.points[block[2 + 8 * s + k]], signs, out + 32 * s + 4 * k);
    }
  }
}

void expand_iq3_s(const unsigned char* block,
                  float* out) {  // d, indices, their ninth bits, signs, scales of 4 bits
  for (int k = 0; k < 64; ++k) {
    const unsigned index = block[2 + k] | (block[66 + k / 8] >> (k % 8) & 1u) << 8;
    const unsigned four = block[106 + k / 16] >> (k / 8 % 2 * 4) & 15u;
    const float scale = half_at(block) * static_cast<float>(1 + 2 * four);
    put_signed(scale, kGridIQ3_S.points[index], block[74 + k / 2] >> (k % 2 * 4) & 15u, out + 4 * k);
  }
}

void expand_iq1_s(const unsigned char* block,
                  float* out) {  // d, indices; of each 32: 4 times 3 high bits, scale, sign
  for (int k = 0; k < 32; ++k) {
    const unsigned packed = load_u16(block + 34 + k / 4 * 2);
    const unsigned index = block[2 + k] | (packed >> (k % 4 * 3) & 7u) << 8;
    const float scale = half_at(block) * static_cast<float>(2 * (packed >> 12 & 7) + 1);
    put_shifted(scale, kGridIQ1.points[index], (packed & 0x8000) != 0, out + 8 * k);
  }
}

void expand_iq1_m(const unsigned char* block,
                  float* out) {  // indices; high bits and signs; scales of 3 bits, and d
  const float d = float_of_half(scale_of_iq1_m(block));
  for (int k = 0; k < 32; ++k) {
    const unsigned packed = block[32 + k / 2] >> (k % 2 * 4) & 15u;
    const unsigned three = load_u16(block + 48 + k / 8 * 2) >> (k / 2 % 4 * 3) & 7u;
    put_shifted(d * static_cast<float>(2 * three + 1), kGridIQ1.points[block[k] | (packed & 7) << 8],
                packed >= 8, out + 8 * k);
  }
}

}  // namespace moeinf
