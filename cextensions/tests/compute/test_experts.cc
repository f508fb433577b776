// Dense products and routed experts: against plain double arithmetic, and equal to the bit however work is
// split.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moeinf/compute/formats/quantise.h"
#include "moeinf/compute/layers/experts.h"

using moeinf::Activation;
using moeinf::ExpertKernel;
using moeinf::ExpertPart;
using moeinf::Format;
using moeinf::Kernels;
using moeinf::Matrix;
using Floats = std::vector<float>;
using Bytes = std::vector<unsigned char>;
using Ids = std::vector<std::int64_t>;

namespace {

constexpr std::int64_t kHidden = 64, kIntermediate = 96, kNumExperts = 6, kTopK = 3;
constexpr std::size_t kStride = 80 << 10;

Floats random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(random);
  return values;
}

Bytes stored(Format format, const Floats& values, std::int64_t rows, std::int64_t cols) {
  Bytes bytes(static_cast<std::size_t>(rows) * moeinf::row_bytes(format, cols));
  if (format == Format::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
  } else {
    moeinf::quantise(format, reinterpret_cast<const unsigned char*>(values.data()), Format::kF32, rows, cols,
                     bytes.data());
  }
  return bytes;
}

double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

struct Form {  // what experts compute
  bool gated = true, biased = false;
  Activation activation = Activation::kSilu;
  float limit = 0;
};

// Blocks of kNumExperts experts, last expert first, and the float weights that they hold; then their biases.
struct Layer {
  explicit Layer(Format format) : memory(kStride * kNumExperts) {
    const std::int64_t rows[] = {kIntermediate, kIntermediate, kHidden};
    std::size_t offset = 0;
    for (std::size_t p = 0; p < 3; ++p) {
      const std::int64_t cols = p == 2 ? kIntermediate : kHidden;
      parts[p] = {format, rows[p], cols, offset};
      for (std::int64_t e = 0; e < kNumExperts; ++e) {
        Floats values =
            random_floats(static_cast<std::size_t>(rows[p] * cols), static_cast<unsigned>(10 * e) + p);
        for (float& value : values) value /= 8;
        const Bytes bytes = stored(format, values, rows[p], cols);
        const Matrix matrix{bytes.data(), format, rows[p], cols};
        moeinf::dequantise(matrix, values.data());
        std::copy(bytes.begin(), bytes.end(),
                  memory.begin() + static_cast<std::ptrdiff_t>(offset_of(e) + offset));
        weights[p].push_back(values);
      }
      offset += static_cast<std::size_t>(rows[p]) * moeinf::row_bytes(format, cols);
    }
    for (std::size_t p = 0; p < 3; ++p) {
      bias_parts[p] = {Format::kF32, rows[p], 1, offset};
      for (std::int64_t e = 0; e < kNumExperts; ++e) {
        biases[p].push_back(
            random_floats(static_cast<std::size_t>(rows[p]), static_cast<unsigned>(100 + e) + p));
        std::memcpy(memory.data() + offset_of(e) + offset, biases[p].back().data(),
                    biases[p].back().size() * sizeof(float));
      }
      offset += static_cast<std::size_t>(rows[p]) * sizeof(float);
    }
    CHECK(offset <= kStride);
  }
  static std::size_t offset_of(std::int64_t e) {
    return kStride * static_cast<std::size_t>(kNumExperts - 1 - e);
  }

  ExpertKernel kernel(Kernels& kernels, const Form& form = {}) const {
    moeinf::ExpertParts chosen{{}, parts[1], parts[2], {}, {}, {}};
    if (form.gated) chosen.gate = parts[0];
    if (form.gated && form.biased) chosen.gate_bias = bias_parts[0];
    if (form.biased) chosen.up_bias = bias_parts[1], chosen.down_bias = bias_parts[2];
    const std::vector<moeinf::ExpertForm> forms = {{form.activation, form.limit}};
    const std::vector<moeinf::ExpertParts> layers = {chosen};
    return {kernels, memory.data(), memory.size(), layers, forms};
  }

  // The same cut after these rows of gate and up, and of down. A slice begins where its rows lie in the
  // block.
  ExpertKernel cut(Kernels& kernels, const Form& form, const Ids& act_rows, const Ids& down_rows) const {
    std::vector<moeinf::ExpertSlice> slices;
    const auto rows_of = [](ExpertPart part, std::int64_t first, std::int64_t last) {
      part.offset_bytes += static_cast<std::size_t>(first) * moeinf::row_bytes(part.format, part.cols);
      part.rows = last - first;
      return part;
    };
    std::int64_t first = 0;
    for (const std::int64_t last : act_rows) {
      slices.emplace_back();
      slices.back().up = rows_of(parts[1], first, last);
      if (form.gated) slices.back().gate = rows_of(parts[0], first, last);
      if (form.gated && form.biased) slices.back().gate_bias = rows_of(bias_parts[0], first, last);
      if (form.biased) slices.back().up_bias = rows_of(bias_parts[1], first, last);
      first = last;
    }
    first = 0;
    for (const std::int64_t last : down_rows) {
      slices.emplace_back();
      slices.back().down = rows_of(parts[2], first, last);
      if (form.biased) slices.back().down_bias = rows_of(bias_parts[2], first, last);
      first = last;
    }
    const std::vector<moeinf::ExpertForm> forms = {{form.activation, form.limit}};
    const std::vector<std::vector<moeinf::ExpertSlice>> layers = {slices};
    return {kernels, memory.data(), memory.size(), layers, forms};
  }

  Bytes memory;
  ExpertPart parts[3], bias_parts[3];
  std::vector<Floats> weights[3], biases[3];
};

struct Step {
  explicit Step(std::int64_t num_tokens, unsigned seed = 1)
      : num_tokens(num_tokens),
        hidden(random_floats(static_cast<std::size_t>(num_tokens * kHidden), seed)),
        weights(random_floats(static_cast<std::size_t>(num_tokens * kTopK), seed + 1)) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      for (std::int64_t j = 0; j < kTopK; ++j) ids.push_back((t * t + 2 * j + t % 2) % kNumExperts);
    }
  }
  void begin(ExpertKernel& kernel) const {
    kernel.begin({hidden.data(), num_tokens, kHidden}, {ids.data(), num_tokens, kTopK}, weights.data());
  }
  Floats zeros() const { return Floats(hidden.size()); }

  std::int64_t num_tokens;
  Floats hidden, weights;
  Ids ids;
};

void compute(ExpertKernel& kernel, const Ids& experts) {
  Ids offsets;
  for (const std::int64_t e : experts) offsets.push_back(static_cast<std::int64_t>(Layer::offset_of(e)));
  kernel.compute(experts, offsets);
}

Floats run(ExpertKernel& kernel, const Step& step) {
  step.begin(kernel);
  compute(kernel, kernel.experts());
  Floats out = step.zeros();
  kernel.finish(out.data());
  return out;
}

double activated(const Form& form, double gate, double up) {
  if (form.activation == Activation::kSwigluClamped) {
    const double g = std::min<double>(gate, form.limit), u = std::clamp<double>(up, -form.limit, form.limit);
    return g / (1 + std::exp(-1.702 * g)) * (u + 1);
  }
  if (form.activation == Activation::kSiluClamped) {
    const double g = std::min<double>(gate, form.limit), u = std::clamp<double>(up, -form.limit, form.limit);
    return g / (1 + std::exp(-g)) * u;
  }
  if (form.activation == Activation::kClampedSilu) {
    const double g = std::min<double>(gate / (1 + std::exp(-gate)), form.limit);
    return g * std::clamp<double>(up, -form.limit, form.limit);
  }
  const double a = form.gated ? gate : up;
  const double value = form.activation == Activation::kSilu   ? a / (1 + std::exp(-a))
                       : form.activation == Activation::kGelu ? a * (1 + std::erf(a / std::sqrt(2.0))) / 2
                       : form.activation == Activation::kSquaredRelu ? std::max(a, 0.0) * a
                                                                     : std::max(a, 0.0);
  return form.gated ? value * up : value;
}

// Element h of the sum for token t, in double.
double expected(const Layer& layer, const Step& step, std::int64_t t, std::int64_t h, const Form& form = {}) {
  double sum = 0;
  for (std::int64_t j = 0; j < kTopK; ++j) {
    const auto place = static_cast<std::size_t>(t * kTopK + j);
    const auto e = static_cast<std::size_t>(step.ids[place]);
    if (form.biased) sum += step.weights[place] * layer.biases[2][e][static_cast<std::size_t>(h)];
    for (std::int64_t i = 0; i < kIntermediate; ++i) {
      const float* x = step.hidden.data() + t * kHidden;
      const auto row = static_cast<std::size_t>(i);
      const double gate = dot(layer.weights[0][e].data() + i * kHidden, x, kHidden) +
                          (form.biased ? layer.biases[0][e][row] : 0.0f);
      const double up = dot(layer.weights[1][e].data() + i * kHidden, x, kHidden) +
                        (form.biased ? layer.biases[1][e][row] : 0.0f);
      const float down = layer.weights[2][e][static_cast<std::size_t>(h * kIntermediate + i)];
      sum += step.weights[place] * down * activated(form, gate, up);
    }
  }
  return sum;
}

}  // namespace

TEST(experts_equal_plain_double_arithmetic_for_few_tokens_and_many) {
  Kernels kernels(2, "generic");
  for (const Format format : {Format::kF32, Format::kQ8_0}) {
    const Layer layer(format);
    ExpertKernel kernel = layer.kernel(kernels);
    const double tolerance = format == Format::kF32 ? 1e-4 : 0.1;
    for (const std::int64_t num_tokens : {1, 2, 5, 40}) {
      const Step step(num_tokens);
      const Floats out = run(kernel, step);
      for (std::int64_t t = 0; t < num_tokens; t += 3) {
        for (std::int64_t h = 0; h < kHidden; h += 7) {
          CHECK(std::abs(out[static_cast<std::size_t>(t * kHidden + h)] - expected(layer, step, t, h)) <
                tolerance);
        }
      }
    }
  }
}

TEST(each_expert_of_a_part_may_have_a_scale) {
  Kernels kernels(2, "generic");
  Layer layer(Format::kF32);
  for (std::size_t p = 0; p < 3; ++p) {
    std::vector<float> scales;
    for (std::size_t e = 0; e < kNumExperts; ++e) {
      scales.push_back(0.5F + 0.125F * static_cast<float>(p + e));
      for (float& value : layer.weights[p][e]) value *= scales.back();
    }
    layer.parts[p].scales = std::make_shared<const std::vector<float>>(scales);
  }
  const Form form{true, true};
  for (const std::int64_t num_tokens : {1, 40}) {
    const Step step(num_tokens);
    ExpertKernel kernel = layer.kernel(kernels, form);
    const Floats out = run(kernel, step);
    for (std::int64_t t = 0; t < num_tokens; t += 3)
      for (std::int64_t h = 0; h < kHidden; h += 7)
        CHECK(std::abs(out[static_cast<std::size_t>(t * kHidden + h)] - expected(layer, step, t, h, form)) <
              1e-3);
  }
  layer.parts[2].scales = std::make_shared<const std::vector<float>>(1, 2.0F);
  ExpertKernel kernel = layer.kernel(kernels, form);
  CHECK(throws<std::invalid_argument>([&] { run(kernel, Step(40)); }));
}

TEST(experts_of_every_form_equal_plain_double_arithmetic) {
  const Form forms[] = {{true, true},
                        {false, false, Activation::kRelu},
                        {false, true, Activation::kRelu},
                        {false, false, Activation::kSquaredRelu},
                        {true, false, Activation::kGelu},
                        {false, true, Activation::kGelu},
                        {true, true, Activation::kSwigluClamped, 1.5f},
                        {true, false, Activation::kSiluClamped, 0.5f},
                        {true, false, Activation::kClampedSilu, 0.5f}};
  const Layer layer(Format::kF32);
  for (const char* isa : {"", "generic"}) {
    Kernels kernels(2, isa);
    for (const Form& form : forms) {
      ExpertKernel kernel = layer.kernel(kernels, form);
      for (const std::int64_t num_tokens : {1, 3, 40}) {
        const Step step(num_tokens);
        const Floats out = run(kernel, step);
        for (std::int64_t t = 0; t < num_tokens; t += 3) {
          for (std::int64_t h = 0; h < kHidden; h += 7) {
            CHECK(std::abs(out[static_cast<std::size_t>(t * kHidden + h)] -
                           expected(layer, step, t, h, form)) < 1e-4);
          }
        }
      }
    }
  }
}

TEST(experts_that_arrive_one_by_one_in_any_order_give_the_same_bits) {
  Kernels kernels(2, "");
  for (const Format format : {Format::kF32, Format::kQ8_0, Format::kQ4_0}) {
    const Layer layer(format);
    ExpertKernel kernel = layer.kernel(kernels);
    for (const std::int64_t num_tokens : {1, 4, 33}) {
      const Step step(num_tokens);
      const Floats at_once = run(kernel, step);
      step.begin(kernel);
      Ids experts = kernel.experts();
      std::reverse(experts.begin(), experts.end());
      for (const std::int64_t e : experts) compute(kernel, {e});
      Floats split = step.zeros();
      kernel.finish(split.data());
      CHECK(split == at_once);
    }
  }
}

TEST(experts_in_slices_give_the_bits_of_whole_ones_however_calls_are_cut) {
  const Form forms[] = {{}, {true, true}, {false, true, Activation::kRelu}};
  for (const Format format : {Format::kF32, Format::kQ8_0}) {
    const Layer layer(format);
    for (const Form& form : forms) {
      for (const int num_threads : {1, 2}) {
        Kernels kernels(num_threads, "");
        ExpertKernel whole = layer.kernel(kernels, form);
        ExpertKernel cut = layer.cut(kernels, form, {40, 73, 96}, {1, 64});
        for (const std::int64_t num_tokens : {1, 4, 33, 130}) {
          if (num_tokens > 33 && num_threads == 1) continue;  // takes seconds under the thread sanitizer
          const Step step(num_tokens);
          const Floats expected_out = run(whole, step);
          for (const std::size_t at_once : {1, 3, 7, 100}) {
            if (num_tokens > 33 && at_once != (format == Format::kF32 ? 7U : 100U)) continue;
            step.begin(cut);
            Ids ids, offsets;
            for (auto e = cut.experts().rbegin(); e != cut.experts().rend(); ++e) {
              for (std::int64_t slice = 0; slice < 5; ++slice) {
                ids.push_back(*e * 5 + slice);
                offsets.push_back(static_cast<std::int64_t>(Layer::offset_of(*e)));
              }
            }
            for (std::size_t i = 0; i < ids.size(); i += at_once) {
              const std::size_t count = std::min(at_once, ids.size() - i);
              cut.compute({ids.data() + i, count}, {offsets.data() + i, count});
            }
            Floats out = step.zeros();
            cut.finish(out.data());
            CHECK(out == expected_out);
          }
        }
      }
    }
  }
}

TEST(slices_that_do_not_follow_each_other_are_refused_and_change_nothing) {
  Kernels kernels(1, "generic");
  const Layer layer(Format::kF32);
  ExpertKernel whole = layer.kernel(kernels), cut = layer.cut(kernels, {}, {40, 96}, {64});
  const Step step(1);  // experts 0, 2 and 4
  const Floats expected_out = run(whole, step);
  step.begin(cut);
  const auto compute_slices = [&](const Ids& ids) {
    Ids offsets;
    for (const std::int64_t id : ids) offsets.push_back(static_cast<std::int64_t>(Layer::offset_of(id / 3)));
    cut.compute(ids, offsets);
  };
  const auto refused = [&](const Ids& ids) {
    return throws<std::invalid_argument>([&] { compute_slices(ids); });
  };
  CHECK(refused({1}));           // the first comes first
  CHECK(refused({0, 2}));        // none is left out
  CHECK(refused({0, 1, 2, 0}));  // nor computed twice
  CHECK(refused({0, 6}));        // one expert after the other
  CHECK(refused({0, 1, 2, 6, 12}));
  compute_slices({0, 1});
  CHECK(refused({6}));
  CHECK(refused({2, 6, 8}));
  Floats out = step.zeros();
  CHECK(throws<std::invalid_argument>([&] { cut.finish(out.data()); }));
  compute_slices({2, 12});
  compute_slices({13, 14, 6, 7, 8});
  cut.finish(out.data());
  CHECK(out == expected_out);
  const auto no_expert = [&](const Ids& act_rows, const Ids& down_rows) {
    return throws<std::invalid_argument>([&] { layer.cut(kernels, {}, act_rows, down_rows); });
  };
  CHECK(no_expert({40, 95}, {64}));
  CHECK(no_expert({96}, {63}));
  CHECK(no_expert({96}, {}));
  CHECK(no_expert({}, {64}));
}

TEST(the_number_of_threads_does_not_change_a_bit) {
  const Layer layer(Format::kQ8_0);
  const Step step(21);
  std::vector<Floats> outs;
  for (const int num_threads : {1, 2, 3}) {
    Kernels kernels(num_threads, "");
    ExpertKernel kernel = layer.kernel(kernels);
    outs.push_back(run(kernel, step));
  }
  CHECK(outs[0] == outs[1] && outs[0] == outs[2]);
}

TEST(finish_adds_to_what_is_there_and_a_kernel_serves_steps_of_any_size_in_turn) {
  Kernels kernels(2, "");
  const Layer layer(Format::kF32);
  ExpertKernel kernel = layer.kernel(kernels);
  const Floats first = run(kernel, Step(1));
  run(kernel, Step(50));
  run(kernel, Step(0));
  CHECK(run(kernel, Step(1)) == first);
  const Step step(1);
  step.begin(kernel);
  compute(kernel, kernel.experts());
  Floats out(first.size(), 100.0f);
  kernel.finish(out.data());
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::abs(out[i] - 100.0f - first[i]) < 1e-4);
}

TEST(an_expert_may_come_twice_for_one_token_and_a_token_without_any_gets_nothing) {
  Kernels kernels(2, "generic");
  const Layer layer(Format::kF32);
  ExpertKernel kernel = layer.kernel(kernels);
  Step step(1);
  step.ids = {4, 2, 4};
  const Floats out = run(kernel, step);
  for (std::int64_t h = 0; h < kHidden; ++h) {
    CHECK(std::abs(out[static_cast<std::size_t>(h)] - expected(layer, step, 0, h)) < 1e-4);
  }
  kernel.begin({step.hidden.data(), 1, kHidden}, {step.ids.data(), 1, 0}, step.weights.data());
  CHECK(kernel.experts().empty());
  Floats untouched = step.hidden;
  kernel.finish(untouched.data());
  CHECK(untouched == step.hidden);
}

TEST(misuse_of_a_step_is_refused_and_leaves_it_as_it_was) {
  Kernels kernels(1, "generic");
  const Layer layer(Format::kF32);
  ExpertKernel kernel = layer.kernel(kernels);
  Floats out(static_cast<std::size_t>(kHidden));
  CHECK(throws<std::invalid_argument>([&] { kernel.finish(out.data()); }));
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {0}); }));
  const Step step(1);  // experts 0, 2 and 4
  const Floats expected_out = run(kernel, step);
  step.begin(kernel);
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {0, 1}); }));
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {0, 0}); }));
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {-1}); }));
  const std::int64_t expert = 0;
  for (const std::int64_t offset : {std::int64_t{-1}, static_cast<std::int64_t>(layer.memory.size())}) {
    CHECK(throws<std::invalid_argument>([&] { kernel.compute({&expert, 1}, {&offset, 1}); }));
  }
  compute(kernel, {0});
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {0}); }));
  CHECK(throws<std::invalid_argument>([&] { kernel.finish(out.data()); }));
  compute(kernel, {4, 2});
  kernel.finish(out.data());
  CHECK(out == expected_out);
  Step wrong(1);
  wrong.ids[1] = -3;
  CHECK(throws<std::invalid_argument>([&] { wrong.begin(kernel); }));
  CHECK(throws<std::invalid_argument>([&] { compute(kernel, {0}); }));
}

TEST(parts_that_do_not_fit_together_are_refused) {
  Kernels kernels(1, "generic");
  const ExpertPart gate{Format::kF32, 32, 64, 0}, down{Format::kF32, 64, 32, 0};
  const auto refused = [&](const ExpertPart& g, const ExpertPart& u, const ExpertPart& d) {
    return throws<std::invalid_argument>(
        [&] { ExpertKernel kernel(kernels, nullptr, 0, {moeinf::ExpertParts{g, u, d, {}, {}, {}}}); });
  };
  CHECK(!refused(gate, gate, down));
  CHECK(refused(gate, down, down));
  CHECK(refused(gate, gate, gate));
  CHECK(refused({Format::kQ4_K, 32, 64, 0}, gate, down));
  const auto refused_bias = [&](const ExpertPart& bias) {
    return throws<std::invalid_argument>([&] {
      ExpertKernel kernel(kernels, nullptr, 0, {moeinf::ExpertParts{gate, gate, down, {}, bias, {}}});
    });
  };
  CHECK(!refused_bias({Format::kBF16, 32, 1, 0}));
  CHECK(refused_bias({Format::kBF16, 64, 1, 0}));
  CHECK(refused_bias({Format::kQ8_0, 32, 1, 0}));
  CHECK(throws<std::invalid_argument>([&] {  // a limit without a gate
    const std::vector<moeinf::ExpertParts> layers = {{{}, gate, down, {}, {}, {}}};
    const std::vector<moeinf::ExpertForm> forms = {{Activation::kSwigluClamped, 7}};
    ExpertKernel kernel(kernels, nullptr, 0, layers, forms);
  }));
}

TEST(linears_of_mixed_formats_equal_each_alone_and_plain_double_arithmetic) {
  constexpr std::int64_t kRows[] = {70, 33, 130};
  const Format formats[] = {Format::kF32, Format::kQ8_0, Format::kF32};
  for (const int num_threads : {1, 2}) {
    Kernels kernels(num_threads, "generic");
    for (const std::int64_t num_x : {1, 8, 9, 30}) {
      const Floats x = random_floats(static_cast<std::size_t>(num_x * kHidden), 3);
      std::vector<Bytes> bytes;
      std::vector<Floats> ys;
      std::vector<Matrix> matrices;
      std::vector<float*> outs;
      for (std::size_t m = 0; m < 3; ++m) {
        const Floats w =
            random_floats(static_cast<std::size_t>(kRows[m] * kHidden), static_cast<unsigned>(m));
        bytes.push_back(stored(formats[m], w, kRows[m], kHidden));
        matrices.push_back({bytes[m].data(), formats[m], kRows[m], kHidden});
        ys.emplace_back(static_cast<std::size_t>(num_x * kRows[m]));
      }
      for (Floats& y : ys) outs.push_back(y.data());
      kernels.linears(matrices, {x.data(), num_x, kHidden}, outs);
      for (std::size_t m = 0; m < 3; ++m) {
        Floats alone(ys[m].size()), w(static_cast<std::size_t>(kRows[m] * kHidden));
        kernels.linear(matrices[m], {x.data(), num_x, kHidden}, alone.data());
        CHECK(alone == ys[m]);
        moeinf::dequantise(matrices[m], w.data());
        for (std::int64_t i = 0; i < num_x * kRows[m]; ++i) {
          const double y = dot(w.data() + i % kRows[m] * kHidden, x.data() + i / kRows[m] * kHidden, kHidden);
          CHECK(std::abs(y - alone[static_cast<std::size_t>(i)]) < (formats[m] == Format::kF32 ? 1e-4 : 0.5));
        }
      }
    }
  }
}

TEST(a_read_rate_is_measured_and_senseless_ones_are_refused) {
  moeinf::Pool pool(2);
  CHECK(moeinf::memory_read_rate(pool, 3 << 20, 2) > 0);
  CHECK(throws<std::invalid_argument>([&] { moeinf::memory_read_rate(pool, 1000, 2); }));
  CHECK(throws<std::invalid_argument>([&] { moeinf::memory_read_rate(pool, 3 << 20, 0); }));
}

TEST(products_have_rates_in_memory_and_in_caches_and_senseless_ones_are_refused) {
  Kernels kernels(2, "");
  for (const Format format : {Format::kQ4_0, Format::kQ8_0}) {
    const Bytes bytes = stored(format, random_floats(96 * kHidden, 3), 96, kHidden);
    const Matrix w = {bytes.data(), format, 96, kHidden};
    const std::int64_t num_x = format == Format::kQ4_0 ? 8 : 1;
    const auto rates = moeinf::product_read_rates(kernels, w, num_x, 1 << 20, 2);
    CHECK(rates.size() == 2);
    for (const moeinf::ReadRates& each : rates) CHECK(each.plain > 0 && each.product > 0);
    const std::vector<double> cached = moeinf::cached_product_rates(kernels, w, num_x, 2);
    CHECK(cached.size() == 2 && *std::min_element(cached.begin(), cached.end()) > 0);
    CHECK(throws<std::invalid_argument>([&] { moeinf::product_read_rates(kernels, w, 1, 1000, 2); }));
    CHECK(throws<std::invalid_argument>([&] { moeinf::product_read_rates(kernels, w, 1, 3 << 20, 0); }));
    CHECK(throws<std::invalid_argument>([&] { moeinf::product_read_rates(kernels, w, 9, 3 << 20, 1); }));
    CHECK(throws<std::invalid_argument>([&] { moeinf::cached_product_rates(kernels, w, 0, 1); }));
  }
  kernels.begin_pass(1000);  // whose products go by tiles
  const Bytes bytes = stored(Format::kQ8_0, random_floats(96 * kHidden, 3), 96, kHidden);
  CHECK(moeinf::cached_product_rates(kernels, {bytes.data(), Format::kQ8_0, 96, kHidden}, 2, 1)[0] > 0);
}
