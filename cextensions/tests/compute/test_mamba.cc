// Mamba-2, and the recurrence of Mamba, against their formulas in double precision, on every instruction set
// that this CPU has.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "moeinf/compute/layers/mamba.h"
#include "recurrent_twin.h"

namespace {

using moeinf::MambaShape;
using moeinf::MambaWeights;
using moeinf::Matrix;

void norm(double* x, const float* weight, std::size_t count, double eps) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += x[i] * x[i];
  for (std::size_t i = 0; i < count; ++i) x[i] *= weight[i] / std::sqrt(sum / double(count) + eps);
}

// A layer, and what it has seen in double precision.
struct Layer {
  MambaShape s;
  Floats input, output, front, taps, conv_bias, decay, bias, skip, gate_norm;
  std::vector<Doubles> seen;  // the channels of each token
  Doubles heads;

  explicit Layer(const MambaShape& shape) : s(shape), heads(std::size_t(s.inner() * s.state_size)) {
    input = random_floats(s.projected() * s.hidden, 1 / std::sqrt(double(s.hidden)));
    output = random_floats(s.hidden * s.inner(), 1 / std::sqrt(double(s.inner())));
    front = random_floats(s.hidden, 1);
    taps = random_floats(s.kernel * s.channels(), 0.5);
    conv_bias = random_floats(s.channels(), 0.5);
    decay = random_floats(s.num_heads, 1);
    for (float& value : decay) value = -std::exp(value);
    bias = random_floats(s.num_heads, 1);
    skip = random_floats(s.num_heads, 1);
    gate_norm = random_floats(s.inner(), 1);
    seen.assign(std::size_t(s.kernel - 1), Doubles(std::size_t(s.channels())));
  }

  static Matrix matrix(const Floats& w, std::int64_t cols) {
    return {reinterpret_cast<const unsigned char*>(w.data()), moeinf::Format::kF32,
            std::int64_t(w.size()) / cols, cols};
  }

  MambaWeights weights() const {
    return {matrix(input, s.hidden),
            matrix(output, s.inner()),
            front.data(),
            taps.data(),
            conv_bias.data(),
            decay.data(),
            bias.data(),
            skip.data(),
            gate_norm.data()};
  }

  void step(float* x) {
    Doubles hidden(x, x + s.hidden);
    norm(hidden.data(), front.data(), hidden.size(), s.norm_eps);
    const Doubles projected = times(input, hidden);
    const auto inner = std::size_t(s.inner()), channels = std::size_t(s.channels());
    const auto keys = std::size_t(s.keys()), dim = std::size_t(s.head_dim), size = std::size_t(s.state_size);
    seen.emplace_back(projected.begin() + s.inner(), projected.begin() + s.inner() + s.channels());
    Doubles mixed(conv_bias.begin(), conv_bias.end());
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = 0; i < std::size_t(s.kernel); ++i)
        mixed[c] += taps[i * channels + c] * seen[seen.size() - std::size_t(s.kernel) + i][c];
      mixed[c] = silu(mixed[c]);
    }
    Doubles gated(inner);
    for (std::size_t h = 0; h < std::size_t(s.num_heads); ++h) {
      const std::size_t group = h / std::size_t(s.num_heads / s.num_groups);
      const double* const key = &mixed[inner + group * size];
      const double length = std::log1p(std::exp(projected[inner + channels + h] + bias[h]));
      const double a = std::exp(decay[h] * length);
      for (std::size_t c = 0; c < dim; ++c) {
        const double value = mixed[h * dim + c];
        double out = skip[h] * value;
        for (std::size_t i = 0; i < size; ++i) {
          double& state = heads[(h * size + i) * dim + c];
          state = a * state + key[i] * length * value;
          out += state * key[keys + i];
        }
        gated[h * dim + c] = out * silu(projected[h * dim + c]);
      }
    }
    const std::size_t of_group = inner / std::size_t(s.num_groups);
    for (std::size_t at = 0; at < inner; at += of_group)
      norm(&gated[at], &gate_norm[at], of_group, s.norm_eps);
    const Doubles added = times(output, gated);
    for (std::size_t i = 0; i < added.size(); ++i) x[i] += float(s.residual * added[i]);
  }
};

TEST(mamba_is_that_of_its_double_precision_twin) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const States where : {States::kApart, States::kInPlace}) {
      compare_passes<Layer>(MambaShape{24, 6, 37, 2, 5, 4, 1e-5f, 1.0f}, {1, 2, 1, 70, 9, 1}, isa, where,
                            moeinf::mamba);
      compare_passes<Layer>(MambaShape{24, 1, 3, 1, 12, 2, 1e-5f, 0.5f}, {3, 1, 64}, isa, where,
                            moeinf::mamba);
      compare_passes<Layer>(MambaShape{16, 4, 129, 4, 16, 5, 1e-5f, 1.0f}, {1, 1, 1, 5}, isa, where,
                            moeinf::mamba);
    }
  }
}

TEST(sequences_side_by_side_have_what_each_has_alone_of_mamba) {
  for (const std::string& isa : moeinf::available_isas()) {
    compare_beside<Layer>(MambaShape{24, 6, 37, 2, 5, 4, 1e-5f, 1.0f}, {1, 3, 8}, isa, moeinf::mamba);
    compare_beside<Layer>(MambaShape{24, 6, 37, 2, 5, 4, 1e-5f, 1.0f}, {70, 1}, isa, moeinf::mamba);
    compare_tokens_apart<Layer>(MambaShape{24, 6, 37, 2, 5, 4, 1e-5f, 1.0f}, 5, isa, moeinf::mamba);
  }
}

// Channels that fill no vector, and more than one task has; each array ends where it is allocated.
TEST(channels_of_mamba_are_those_of_their_double_precision_twins) {
  const std::int64_t tokens = 5, channels = 131, states = 6;
  const auto count = [](std::int64_t rows, std::int64_t cols) { return rows * cols; };
  const Floats steps = random_floats(count(tokens, channels), 6),
               values = random_floats(count(tokens, channels), 1),
               keys = random_floats(count(tokens, states), 1),
               queries = random_floats(count(tokens, states), 1),
               gates = random_floats(count(tokens, channels), 2), skip = random_floats(channels, 1),
               begun = random_floats(count(states, channels), 1);
  Floats rates = random_floats(count(states, channels), 1);
  for (float& rate : rates) rate = -std::exp(rate);
  Doubles left(begun.begin(), begun.end()), wanted(values.size());
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const auto at = std::size_t(t * channels + c);
      const double step = std::log1p(std::exp(double(steps[at]))), x = values[at];
      double out = double(skip[std::size_t(c)]) * x;
      for (std::int64_t i = 0; i < states; ++i) {
        double& state = left[std::size_t(i * channels + c)];
        state = std::exp(step * double(rates[std::size_t(i * channels + c)])) * state +
                step * x * double(keys[std::size_t(t * states + i)]);
        out += state * double(queries[std::size_t(t * states + i)]);
      }
      wanted[at] = out * silu(gates[at]);
    }
  }
  for (const std::string& isa : moeinf::available_isas()) {
    for (const States where : {States::kApart, States::kInPlace}) {
      moeinf::Kernels kernels(2, isa);
      Floats old = begun, apart(begun.size()), out(values.size());
      float* const now = where == States::kApart ? apart.data() : old.data();
      moeinf::channel_scan(
          kernels, {steps.data(), values.data(), keys.data(), queries.data(), gates.data(), channels,
                    rates.data(), skip.data(), tokens, channels, states, old.data(), now, out.data()});
      for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::fabs(out[i] - wanted[i]) < 1e-3);
      for (std::size_t i = 0; i < left.size(); ++i) CHECK(std::fabs(now[i] - left[i]) < 1e-3);
    }
  }
}

}  // namespace
