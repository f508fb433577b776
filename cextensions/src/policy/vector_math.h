// Exponentials and logarithms that a compiler can vectorise: calls of the library's take most of a policy's
// time.
#pragma once

#include <cstdint>
#include <cstring>

namespace moeinf {

inline double double_of_bits(std::uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint64_t bits_of_double(double value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

constexpr double kRounds =
    6755399441055744.0;  // 1.5 times 2^52: what is added to it is rounded to a whole number

// e^x to 1e-12 of itself, for |x| < 700.
inline double exponential_of(double x) {
  const double shifted = x * 1.4426950408889634 + kRounds;  // x = n ln 2 + r, |r| < 0.35
  const double n = shifted - kRounds;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  p = p * r + 1;
  return p * double_of_bits((bits_of_double(shifted) + 1023) << 52);
}

// The natural logarithm to 1e-11, of a normal number above 0.
inline double logarithm_of(double x) {
  constexpr std::uint64_t kHalfRoot =
      0x3fe6a09e667f3bcd;  // of 1/2: x = 2^n m, with m from there to its double
  const std::uint64_t above = bits_of_double(x) - kHalfRoot + (std::uint64_t{1023} << 52);
  const std::uint64_t biased = above >> 52;
  const double m = double_of_bits(bits_of_double(x) - (biased << 52) + (std::uint64_t{1023} << 52));
  const double n = double_of_bits(biased + bits_of_double(kRounds)) - kRounds - 1023;
  const double s = (m - 1) / (m + 1), t = s * s;
  double p = 1.0 / 13;
  p = p * t + 1.0 / 11;
  p = p * t + 1.0 / 9;
  p = p * t + 1.0 / 7;
  p = p * t + 1.0 / 5;
  p = p * t + 1.0 / 3;
  p = p * t + 1;
  return n * 0.6931471805599453 + 2 * s * p;
}

}  // namespace moeinf
