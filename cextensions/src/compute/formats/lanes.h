// Four groups of 32 or 16 weights side by side, one in each lane of a vector: sums and searches over a group
// need no sum across lanes, and a group's result cannot depend on the width of the machine's vectors.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "half.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

namespace moeinf::lanes {

constexpr int kLanes = 4;  // every 64-bit CPU has vectors of four floats
constexpr int kGroup = 32;

typedef float Floats __attribute__((vector_size(kLanes * sizeof(float))));
typedef std::int32_t Ints __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

template <int N>
struct TileOf {
  Floats x[N];  // lane g of x[i] is weight i of group g
};
using Tile = TileOf<kGroup>;

inline Floats floats_at(const float* p) {
  Floats floats;
  std::memcpy(&floats, p, sizeof floats);
  return floats;
}

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

template <int N = kGroup>
TileOf<N> tile_of(const float* weights) {
  TileOf<N> tile;
  for (int i = 0; i < N; ++i) {
    tile.x[i] = Floats{weights[i], weights[N + i], weights[2 * N + i], weights[3 * N + i]};
  }
  return tile;
}

// The weight of the largest magnitude, with its sign; the first of several.
template <int N>
Floats extreme(const TileOf<N>& tile) {
  Floats amax = splat(0), found = splat(0);
  for (const Floats& x : tile.x) {
    const Ints beyond = absolute(x) > amax;
    amax = beyond ? absolute(x) : amax;
    found = beyond ? x : found;
  }
  return found;
}

// What an error in each weight costs, by its column; columns: of each weight. Where nothing is known of them,
// null, one in a large weight is taken to cost more than one in a small one: the weight's magnitude plus the
// root mean square of its group.
template <int N>
TileOf<N> importance_of(const TileOf<N>& tile, const float* columns) {
  if (columns != nullptr) return tile_of<N>(columns);
  Floats energy = splat(0);
  for (const Floats& x : tile.x) energy += x * x;
  Floats spread = splat(0);
  for (int g = 0; g < kLanes; ++g) spread[g] = std::sqrt(energy[g] / N);
  TileOf<N> importance;
  for (int i = 0; i < N; ++i) importance.x[i] = spread + absolute(tile.x[i]);
  return importance;
}

}  // namespace moeinf::lanes
