// What tests of recurrent layers share: random numbers, and passes against a twin in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "moeinf/compute/kernels.h"
#include "moeinf/compute/layers/recurrent.h"

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

inline Floats random_floats(std::int64_t count, double scale) {
  static std::mt19937 random_bits(5);
  std::normal_distribution<float> normal(0.0f, float(scale));
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random_bits);
  return values;
}

inline Doubles times(const Floats& w, const Doubles& x) {
  Doubles y(w.size() / x.size());
  for (std::size_t i = 0; i < w.size(); ++i) y[i / x.size()] += double(w[i]) * x[i % x.size()];
  return y;
}

inline double silu(double x) { return x / (1 + std::exp(-x)); }

enum class States { kApart, kInPlace };  // that a pass leaves, and those that it found

// Passes of these sizes, one behind the other. A Layer has step(x) and heads, its states; run is the layer of
// the engine.
template <typename Layer, typename Shape, typename Run>
void compare_passes(const Shape& s, const std::vector<std::int64_t>& passes, const std::string& isa,
                    States where, const Run& run) {
  Layer layer(s);
  std::int64_t tokens = 0;
  for (const std::int64_t count : passes) tokens += count;
  Floats x = random_floats(tokens * s.hidden, 1), expected = x;
  for (std::int64_t t = 0; t < tokens; ++t) layer.step(&expected[std::size_t(t * s.hidden)]);
  moeinf::Kernels kernels(2, isa);
  Floats conv(std::size_t((s.kernel - 1) * s.channels())), heads(layer.heads.size());
  Floats new_conv = conv, new_heads = heads;
  const bool apart = where == States::kApart;
  float* at = x.data();
  for (const std::int64_t count : passes) {
    const moeinf::RecurrentStates states = {conv.data(), heads.data(), (apart ? new_conv : conv).data(),
                                            (apart ? new_heads : heads).data()};
    run(kernels, s, layer.weights(), states, moeinf::RowSpan<float>{at, count, s.hidden});
    if (apart) {
      conv.swap(new_conv);
      heads.swap(new_heads);
    }
    at += count * s.hidden;
  }
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(x[i] - expected[i]) < 2e-4);
  for (std::size_t i = 0; i < heads.size(); ++i) CHECK(std::fabs(heads[i] - layer.heads[i]) < 2e-4);
}
