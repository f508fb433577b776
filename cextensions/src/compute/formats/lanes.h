// Four groups of 32 weights side by side, one in each lane of a vector: sums and searches over a group need
// no sum across lanes, and a group's result cannot depend on the width of the machine's vectors.
#pragma once

#include <cstdint>

#include "half.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace moeinf::lanes {

constexpr int kLanes = 4;  // every 64-bit CPU has vectors of four floats
constexpr int kGroup = 32;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

struct Tile {
  Floats x[kGroup];  // lane g of x[i] is weight i of group g
};

inline Floats splat(float value) { return Floats{value, value, value, value}; }

inline Floats absolute(Floats x) { return reinterpret_cast<Floats>(reinterpret_cast<Ints>(x) & 0x7fffffff); }

// GCC makes four instructions of the generic form where one would do, and this is the innermost loop of all.
#ifdef __SSE__
inline Floats smaller(Floats a, Floats b) { return _mm_min_ps(a, b); }
inline Floats larger(Floats a, Floats b) { return _mm_max_ps(a, b); }
#else
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
#endif

// To the nearest whole number, ties to even, for |x| < 2^22: beyond 1.5 * 2^23 a float has no fraction left.
inline Floats nearest(Floats x) { return (x + 12582912.0f) - 12582912.0f; }

inline Ints to_ints(Floats x) { return __builtin_convertvector(x, Ints); }

// 1 / x, and 0 where the stored scale would be 0: then all weights of the group are.
inline Floats inverse_or_zero(Floats x) {
  Floats result;
  for (int g = 0; g < kLanes; ++g) result[g] = half_of_float(x[g]) << 1 & 0xffff ? 1.0f / x[g] : 0.0f;
  return result;
}

inline Tile tile_of(const float* weights) {
  Tile tile;
  for (int i = 0; i < kGroup; ++i) {
    tile.x[i] = Floats{weights[i], weights[kGroup + i], weights[2 * kGroup + i], weights[3 * kGroup + i]};
  }
  return tile;
}

}  // namespace moeinf::lanes
