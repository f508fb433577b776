// float16 and bfloat16 as floats and back, rounded to nearest even, without help of the CPU.
#pragma once

#include <cstdint>
#include <cstring>

namespace moeinf {

inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of_bfloat16(std::uint16_t bits) {
  return float_of_bits(static_cast<std::uint32_t>(bits) << 16);
}

inline float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fff) << 13;
  // The exponent's bias goes from 15 to 127 by an exact product, which makes subnormals normal on the way.
  const std::uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
  return float_of_bits(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : scaled));
}

inline std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint16_t sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // subnormal: the last place of 0.5 is its unit, so the sum rounds
    return static_cast<std::uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
  }
  const std::uint32_t to_even = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + to_even) >> 13));
}

}  // namespace moeinf
