// Gated DeltaNet against its formula in double precision, on every instruction set that this CPU has.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "moeinf/compute/layers/delta.h"
#include "recurrent_twin.h"

namespace {

using moeinf::DeltaShape;
using moeinf::DeltaWeights;
using moeinf::Matrix;

Doubles normed(const double* x, const Floats& weight, double eps) {
  double sum = 0;
  for (std::size_t i = 0; i < weight.size(); ++i) sum += x[i] * x[i];
  Doubles out(weight.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = x[i] * weight[i] / std::sqrt(sum / double(out.size()) + eps);
  return out;
}

// A layer with four projections, and what it has seen in double precision.
struct Layer {
  DeltaShape s;
  std::vector<Floats> projections;
  Floats output, norm, taps, decay, bias, q_norm, k_norm, head_norm;
  std::vector<Doubles> seen;  // the channels of each token
  Doubles heads;

  explicit Layer(const DeltaShape& shape) : s(shape), heads(std::size_t(s.values() * s.key_dim)) {
    for (const std::int64_t rows : {s.channels(), s.values(), s.num_value_heads, s.num_value_heads})
      projections.push_back(random_floats(rows * s.hidden, 1 / std::sqrt(double(s.hidden))));
    output = random_floats(s.hidden * s.values(), 1 / std::sqrt(double(s.values())));
    norm = random_floats(s.hidden, 1);
    taps = random_floats(s.kernel * s.channels(), 0.5);
    decay = random_floats(s.num_value_heads, 1);
    for (float& value : decay) value = -std::exp(value);
    bias = random_floats(s.num_value_heads, 1);
    q_norm = Floats(std::size_t(s.key_dim), 1 / float(s.key_dim));
    k_norm = Floats(std::size_t(s.key_dim), 1 / std::sqrt(float(s.key_dim)));
    head_norm = random_floats(s.value_dim, 1);
    seen.assign(std::size_t(s.kernel - 1), Doubles(std::size_t(s.channels())));
  }

  static Matrix matrix(const Floats& w, std::int64_t cols) {
    return {reinterpret_cast<const unsigned char*>(w.data()), moeinf::Format::kF32,
            std::int64_t(w.size()) / cols, cols};
  }

  DeltaWeights weights() const {
    std::vector<Matrix> matrices;
    for (const Floats& w : projections) matrices.push_back(matrix(w, s.hidden));
    return {matrices,        matrix(output, s.values()),
            norm.data(),     taps.data(),
            decay.data(),    bias.data(),
            q_norm.data(),   k_norm.data(),
            head_norm.data()};
  }

  void step(float* x) {
    const Doubles hidden = normed(Doubles(x, x + s.hidden).data(), norm, s.norm_eps);
    seen.push_back(times(projections[0], hidden));
    const Doubles gates = times(projections[1], hidden), rates = times(projections[2], hidden),
                  steps = times(projections[3], hidden);
    const auto channels = std::size_t(s.channels()), keys = std::size_t(s.keys());
    Doubles mixed(channels);
    for (std::size_t c = 0; c < channels; ++c) {
      for (std::size_t i = 0; i < std::size_t(s.kernel); ++i)
        mixed[c] += taps[i * channels + c] * seen[seen.size() - std::size_t(s.kernel) + i][c];
      mixed[c] = silu(mixed[c]);
    }
    const auto key_dim = std::size_t(s.key_dim), value_dim = std::size_t(s.value_dim);
    Doubles gated;
    for (std::size_t h = 0; h < std::size_t(s.num_value_heads); ++h) {
      const std::size_t key_head = h / std::size_t(s.shared_by());
      const Doubles q = normed(&mixed[key_head * key_dim], q_norm, s.unit_eps),
                    k = normed(&mixed[keys + key_head * key_dim], k_norm, s.unit_eps);
      const double a = std::exp(decay[h] * std::log1p(std::exp(steps[h] + bias[h])));
      Doubles out(value_dim);
      for (std::size_t c = 0; c < value_dim; ++c) {
        double* const column = &heads[h * key_dim * value_dim + c];
        double found = 0;
        for (std::size_t i = 0; i < key_dim; ++i) found += a * column[i * value_dim] * k[i];
        const double lacking = mixed[2 * keys + h * value_dim + c] - found;
        for (std::size_t i = 0; i < key_dim; ++i) {
          double& state = column[i * value_dim];
          state = a * state + k[i] * lacking / (1 + std::exp(-rates[h]));
          out[c] += state * q[i];
        }
      }
      out = normed(out.data(), head_norm, s.norm_eps);
      for (std::size_t c = 0; c < value_dim; ++c) gated.push_back(out[c] * silu(gates[h * value_dim + c]));
    }
    const Doubles added = times(output, gated);
    for (std::size_t i = 0; i < added.size(); ++i) x[i] += float(added[i]);
  }
};

TEST(delta_net_is_that_of_its_double_precision_twin) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const States where : {States::kApart, States::kInPlace}) {
      compare_passes<Layer>(DeltaShape{24, 2, 6, 5, 37, 4, 1e-5f, 1e-6f}, {1, 2, 1, 70, 9, 1}, isa, where,
                            moeinf::delta_net);
      compare_passes<Layer>(DeltaShape{24, 1, 1, 12, 3, 2, 1e-5f, 1e-6f}, {3, 1, 64}, isa, where,
                            moeinf::delta_net);
      compare_passes<Layer>(DeltaShape{16, 1, 2, 16, 129, 5, 1e-5f, 1e-6f}, {1, 1, 1, 5}, isa, where,
                            moeinf::delta_net);
    }
  }
}

TEST(sequences_side_by_side_have_what_each_has_alone_of_delta_net) {
  for (const std::string& isa : moeinf::available_isas()) {
    compare_beside<Layer>(DeltaShape{24, 2, 6, 5, 37, 4, 1e-5f, 1e-6f}, {1, 3, 8}, isa, moeinf::delta_net);
    compare_beside<Layer>(DeltaShape{24, 2, 6, 5, 37, 4, 1e-5f, 1e-6f}, {70, 1}, isa, moeinf::delta_net);
    compare_tokens_apart<Layer>(DeltaShape{24, 2, 6, 5, 37, 4, 1e-5f, 1e-6f}, 5, isa, moeinf::delta_net);
  }
}

}  // namespace
