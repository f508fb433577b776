// float16 and bfloat16 as floats and back, rounded to nearest even, without help of the CPU.
//
// The functions are static, because ops.cc is compiled for instruction sets that the CPU may lack: of an
// ordinary inline function the linker could keep the copy that was made for one of them, for all callers.
#pragma once

#include <cstdint>
#include <cstring>

namespace moeinf {

static inline std::uint16_t load_u16(const unsigned char* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

static inline float float_of_bits(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float float_of_bfloat16(std::uint16_t bits) {
  return float_of_bits(static_cast<std::uint32_t>(bits) << 16);
}

static inline std::uint16_t bfloat16_of_float(float value) {  // a NaN stays one
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Without branches, so that loops over it become vectors.
static inline float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  // The exponent's bias goes from 15 to 127 by an exact product, which makes subnormals normal on the way.
  const std::uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
  return float_of_bits(scaled | sign | ((half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u));  // infinity and NaN
}

static inline std::uint16_t half_of_float(float value) {
  const std::uint32_t bits = bits_of_float(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more
  if (magnitude < 0x38800000u) {  // subnormal: the last place of 0.5 is its unit, so the sum rounds
    return static_cast<std::uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u));
  }
  const std::uint32_t to_even = 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + to_even) >> 13));
}

}  // namespace moeinf
