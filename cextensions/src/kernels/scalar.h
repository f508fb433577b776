// Conversions of single numbers that every instruction set shares.
#pragma once

#include <cstdint>
#include <cstring>

inline std::uint16_t load_u16(const unsigned char* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

inline float f32_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

inline std::uint32_t bits_of_f32(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float f32_of_bf16(std::uint16_t bits) { return f32_of_bits(static_cast<std::uint32_t>(bits) << 16); }

// Rounds to nearest even; a NaN stays one.
inline std::uint16_t bf16_of_f32(float value) {
  const std::uint32_t bits = bits_of_f32(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

inline float f32_of_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fffu) << 13;
  if ((bits & 0x7c00u) == 0x7c00u) return f32_of_bits(sign | 0x7f800000u | magnitude);  // inf, NaN
  // The exponent of a half is 112 less than that of a float; the product is exact, for subnormal halves too.
  return f32_of_bits(sign | bits_of_f32(f32_of_bits(magnitude) * 0x1p112f));
}
