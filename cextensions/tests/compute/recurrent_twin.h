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
    const moeinf::RecurrentStretch stretch = {states, 0, count};
    run(kernels, s, layer.weights(), {&stretch, 1}, moeinf::RowSpan<float>{at, count, s.hidden});
    if (apart) {
      conv.swap(new_conv);
      heads.swap(new_heads);
    }
    at += count * s.hidden;
  }
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::fabs(x[i] - expected[i]) < 2e-4);
  for (std::size_t i = 0; i < heads.size(); ++i) CHECK(std::fabs(heads[i] - layer.heads[i]) < 2e-4);
}

// Rows of several sequences in one pass against each sequence by itself, bit for bit: `rows` of each.
template <typename Layer, typename Shape, typename Run>
void compare_beside(const Shape& s, const std::vector<std::int64_t>& rows, const std::string& isa,
                    const Run& run) {
  const Layer layer(s);
  const auto weights = layer.weights();
  moeinf::Kernels kernels(2, isa);
  const std::int64_t in_conv = (s.kernel - 1) * s.channels(), in_heads = std::int64_t(layer.heads.size());
  const auto count = std::int64_t(rows.size());
  std::int64_t tokens = 0;
  for (const std::int64_t each : rows) tokens += each;
  Floats x = random_floats(tokens * s.hidden, 1), alone = x;
  Floats before = random_floats(count * (in_conv + in_heads), 1), after = before, after_alone = before;
  const auto stretch = [&](std::int64_t i, std::int64_t first, Floats& left) {
    const std::size_t at = std::size_t(i * (in_conv + in_heads)), heads = at + std::size_t(in_conv);
    return moeinf::RecurrentStretch{
        {&before[at], &before[heads], &left[at], &left[heads]}, first, rows[std::size_t(i)]};
  };
  std::vector<moeinf::RecurrentStretch> together;
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    together.push_back(stretch(i, first, after));
    const moeinf::RecurrentStretch own = stretch(i, 0, after_alone);
    run(kernels, s, weights, {&own, 1}, {&alone[std::size_t(first * s.hidden)], own.tokens, s.hidden});
    first += own.tokens;
  }
  run(kernels, s, weights, together, {x.data(), tokens, s.hidden});
  CHECK(x == alone);
  CHECK(after == after_alone);
}

// Tokens of one sequence in one pass, each of which leaves states of its own, against passes of one token.
template <typename Layer, typename Shape, typename Run>
void compare_tokens_apart(const Shape& s, std::int64_t tokens, const std::string& isa, const Run& run) {
  const Layer layer(s);
  const auto weights = layer.weights();
  moeinf::Kernels kernels(2, isa);
  const std::int64_t before = s.kernel - 1, in_heads = std::int64_t(layer.heads.size());
  const Floats conv = random_floats(before * s.channels(), 1), heads = random_floats(in_heads, 1);
  Floats x = random_floats(tokens * s.hidden, 1), alone = x;
  Floats convs(std::size_t((before + tokens - 1) * s.channels())), all_heads(std::size_t(tokens * in_heads));
  Floats alone_convs = convs, alone_heads = all_heads;
  std::vector<moeinf::RecurrentStretch> together;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto stretch = [&](Floats& left_convs, Floats& left_heads, std::int64_t first) {
      float* const new_conv = left_convs.data() + t * s.channels();
      float* const new_heads = left_heads.data() + t * in_heads;
      return moeinf::RecurrentStretch{{t == 0 ? conv.data() : new_conv - s.channels(),
                                       t == 0 ? heads.data() : new_heads - in_heads, new_conv, new_heads},
                                      first,
                                      1};
    };
    together.push_back(stretch(convs, all_heads, t));
    const moeinf::RecurrentStretch own = stretch(alone_convs, alone_heads, 0);
    run(kernels, s, weights, {&own, 1}, {alone.data() + t * s.hidden, 1, s.hidden});
  }
  run(kernels, s, weights, together, {x.data(), tokens, s.hidden});
  CHECK(x == alone);
  CHECK(convs == alone_convs && all_heads == alone_heads);
}
