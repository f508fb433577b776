// Attention and the router against plain double-precision twins, on every instruction set that this CPU has.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "check.h"
#include "compute/layers/attend_few.h"
#include "moeinf/compute/layers/attention.h"
#include "moeinf/compute/layers/router.h"

namespace {

using moeinf::AttentionShape;
using moeinf::AttentionWeights;
using moeinf::Format;
using moeinf::HeadNorm;
using moeinf::Kernels;
using moeinf::Matrix;
using moeinf::Pairs;
using Floats = std::vector<float>;

Floats random_floats(std::int64_t count, float scale, std::mt19937& random) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

Matrix matrix_of(const Floats& values, std::int64_t rows, std::int64_t cols) {
  return {reinterpret_cast<const unsigned char*>(values.data()), Format::kF32, rows, cols};
}

std::vector<double> times(const Floats& w, const std::vector<double>& x) {
  std::vector<double> y(w.size() / x.size());
  for (std::size_t r = 0; r < y.size(); ++r) {
    for (std::size_t c = 0; c < x.size(); ++c) y[r] += double(w[r * x.size() + c]) * x[c];
  }
  return y;
}

void norm(std::vector<double>& x, std::size_t first, std::size_t count, const Floats& weight, double eps) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += x[first + i] * x[first + i];
  for (std::size_t i = 0; i < count; ++i) x[first + i] *= weight[i] / std::sqrt(sum / double(count) + eps);
}

// What a layer has beside its matrices and norms.
enum Extras : unsigned { kNothing = 0, kBiases = 1, kLayerNorm = 2, kSinks = 4 };

// A layer with random weights, and the positions it has seen, in double precision.
struct Layer {
  AttentionShape shape;
  Floats q, k, v, o, norm_weight, q_norm, k_norm, q_bias, k_bias, v_bias, o_bias, norm_bias, sinks;
  std::vector<std::vector<double>> keys, values;

  Layer(const AttentionShape& s, unsigned extras, std::mt19937& random) : shape(s) {
    const std::int64_t queries = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
    const std::int64_t q_rows = queries * (s.gated ? 2 : 1);
    const float scale = 1.0f / std::sqrt(float(s.hidden));
    if (extras & kLayerNorm) norm_bias = random_floats(s.hidden, 1, random);
    if (extras & kSinks) sinks = random_floats(s.num_heads, 2, random);
    q = random_floats(q_rows * s.hidden, scale, random);
    k = random_floats(kv * s.hidden, scale, random);
    v = random_floats(kv * s.hidden, scale, random);
    o = random_floats(s.hidden * queries, scale, random);
    norm_weight = random_floats(s.hidden, 1, random);
    q_norm = random_floats(s.head_norm == HeadNorm::kAll ? queries : s.head_dim, 1, random);
    k_norm = random_floats(s.head_norm == HeadNorm::kAll ? kv : s.head_dim, 1, random);
    if (!(extras & kBiases)) return;
    q_bias = random_floats(q_rows, 1, random);
    k_bias = random_floats(kv, 1, random);
    v_bias = random_floats(kv, 1, random);
    o_bias = random_floats(s.hidden, 1, random);
  }

  AttentionWeights weights() const {
    const std::int64_t queries = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
    const bool normed = shape.head_norm != HeadNorm::kNone;
    const auto pointer = [](const Floats& values) { return values.empty() ? nullptr : values.data(); };
    return {matrix_of(q, queries * (shape.gated ? 2 : 1), shape.hidden),
            matrix_of(k, kv, shape.hidden),
            matrix_of(v, kv, shape.hidden),
            matrix_of(o, shape.hidden, queries),
            norm_weight.data(),
            normed ? pointer(q_norm) : nullptr,
            normed ? pointer(k_norm) : nullptr,
            nullptr,  // no norm of values
            pointer(q_bias),
            pointer(k_bias),
            pointer(v_bias),
            pointer(o_bias),
            pointer(norm_bias),
            pointer(sinks)};
  }

  static std::vector<double> product(const Floats& w, const Floats& bias, const std::vector<double>& x) {
    std::vector<double> y = times(w, x);
    for (std::size_t i = 0; i < bias.size(); ++i) y[i] += bias[i];
    return y;
  }

  // Norms, clamp and positions of y, which is what came of a projection.
  std::vector<double> heads(std::vector<double> y, const Floats& weight, std::int64_t count, const float* cos,
                            const float* sin) const {
    if (shape.head_norm == HeadNorm::kAll) norm(y, 0, y.size(), weight, shape.norm_eps);
    for (double& value : y)
      value = shape.clip > 0 ? std::clamp<double>(value, -shape.clip, shape.clip) : value;
    const auto dim = std::size_t(shape.head_dim), pairs = std::size_t(shape.rotary_pairs);
    for (std::size_t h = 0; h < std::size_t(count); ++h) {
      if (shape.head_norm == HeadNorm::kEach) norm(y, h * dim, dim, weight, shape.norm_eps);
      for (std::size_t i = 0; i < pairs; ++i) {
        double& first = y[h * dim + (shape.pairs == Pairs::kNeighbours ? 2 * i : i)];
        double& second = y[h * dim + (shape.pairs == Pairs::kNeighbours ? 2 * i + 1 : i + pairs)];
        const double a = first, b = second;
        first = a * cos[i] - b * sin[i];
        second = b * cos[i] + a * sin[i];
      }
    }
    return y;
  }

  // One token behind those seen.
  void step(float* x, const float* cos, const float* sin) {
    std::vector<double> normed(x, x + shape.hidden);
    if (norm_bias.empty()) {
      norm(normed, 0, normed.size(), norm_weight, shape.front_eps);
    } else {
      double mean = 0;
      for (const double value : normed) mean += value / double(normed.size());
      for (double& value : normed) value -= mean;
      norm(normed, 0, normed.size(), norm_weight, shape.front_eps);
      for (std::size_t i = 0; i < normed.size(); ++i) normed[i] += norm_bias[i];
    }
    std::vector<double> queries = product(q, q_bias, normed), gates;
    if (shape.gated) split(queries, gates);
    const std::vector<double> query = heads(queries, q_norm, shape.num_heads, cos, sin);
    keys.push_back(heads(product(k, k_bias, normed), k_norm, shape.num_kv_heads, cos, sin));
    values.push_back(product(v, v_bias, normed));
    for (double& value : values.back())
      value = shape.clip > 0 ? std::clamp<double>(value, -shape.clip, shape.clip) : value;
    const std::size_t first = shape.window > 0 && keys.size() > std::size_t(shape.window)
                                  ? keys.size() - std::size_t(shape.window)
                                  : 0;
    std::vector<double> mixed(query.size());
    for (std::size_t h = 0; h < std::size_t(shape.num_heads); ++h) mix(query, h, first, mixed);
    for (std::size_t i = 0; i < gates.size(); ++i) mixed[i] /= 1 + std::exp(-gates[i]);
    const std::vector<double> out = product(o, o_bias, mixed);
    for (std::size_t i = 0; i < out.size(); ++i) x[i] += float(shape.residual * out[i]);
  }

  // Rows that are a query and a gate in turn.
  void split(std::vector<double>& queries, std::vector<double>& gates) const {
    const auto dim = shape.head_dim;
    const std::vector<double> both = queries;
    queries.clear();
    for (auto from = both.begin(); from != both.end(); from += 2 * dim) {
      queries.insert(queries.end(), from, from + dim);
      gates.insert(gates.end(), from + dim, from + 2 * dim);
    }
  }

  void mix(const std::vector<double>& query, std::size_t h, std::size_t first,
           std::vector<double>& mixed) const {
    const auto dim = std::size_t(shape.head_dim), kv = h / std::size_t(shape.num_heads / shape.num_kv_heads);
    std::vector<double> weights;
    double total = sinks.empty() ? 0 : std::exp(double(sinks[h]));
    for (std::size_t j = first; j < keys.size(); ++j) {
      double score = 0;
      for (std::size_t i = 0; i < dim; ++i) score += query[h * dim + i] * keys[j][kv * dim + i];
      score *= double(shape.scale);
      if (shape.cap > 0) score = double(shape.cap) * std::tanh(score / double(shape.cap));
      weights.push_back(std::exp(score));
      total += weights.back();
    }
    for (std::size_t j = first; j < keys.size(); ++j) {
      for (std::size_t i = 0; i < dim; ++i)
        mixed[h * dim + i] += weights[j - first] / total * values[j][kv * dim + i];
    }
  }
};

struct Cache {
  std::vector<unsigned char> keys, values;
  Format format;
  std::int64_t capacity;

  Cache(const AttentionShape& s, Format f, std::int64_t tokens)
      : keys(moeinf::row_bytes(f, s.num_kv_heads * tokens * s.head_dim)),
        values(keys.size()),
        format(f),
        capacity(tokens) {}
  moeinf::KVView view() { return {keys.data(), values.data(), format, capacity}; }
};

double largest_difference(const Floats& a, const Floats& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(double(a[i]) - double(b[i]));
    if (!(difference <= most)) most = difference;
  }
  return most;
}

// The plain form: positions of whole heads, nothing scaled but by the square root of the head's size.
AttentionShape plain_shape(std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                           std::int64_t head_dim, float eps, HeadNorm head_norm, float clip,
                           std::int64_t window) {
  AttentionShape shape = {hidden,
                          heads,
                          kv_heads,
                          head_dim,
                          eps,
                          head_norm,
                          clip,
                          window,
                          false,
                          head_dim / 2,
                          Pairs::kHalves,
                          1 / std::sqrt(float(head_dim)),
                          1.0f,
                          false,
                          false,
                          0.0f,
                          1,
                          0};
  shape.front_eps = 3 * eps;
  return shape;
}

// Passes of the given sizes, one behind the other, over tokens [tokens, hidden]. As parts of one prompt: how
// many tokens that has is said beforehand, so that all go one way.
enum class Passes { kOfTheirOwn, kOfOnePrompt };
Floats attended(Kernels& kernels, const Layer& layer, Format kv, Floats x, const Floats& cos,
                const Floats& sin, const std::vector<std::int64_t>& passes, Passes which) {
  const std::int64_t hidden = layer.shape.hidden, pairs = layer.shape.rotary_pairs;
  const std::int64_t tokens = std::int64_t(x.size()) / hidden;
  if (which == Passes::kOfOnePrompt) kernels.begin_pass(tokens);
  Cache cache(layer.shape, kv, tokens + 3);
  std::int64_t length = 0;
  for (const std::int64_t count : passes) {
    moeinf::attend(kernels, layer.shape, layer.weights(), cache.view(), length,
                   {{cos.data() + length * pairs, count, pairs}, {sin.data() + length * pairs, count, pairs}},
                   {&x[std::size_t(length * hidden)], count, hidden});
    length += count;
  }
  CHECK(length == tokens);
  return x;
}

// Passes against token after token in double precision.
void compare(const AttentionShape& shape, unsigned extras, Format kv, const std::vector<std::int64_t>& passes,
             const std::string& isa, double tolerance) {
  std::mt19937 random(7);
  Layer layer(shape, extras, random);
  std::int64_t tokens = 0;
  for (const std::int64_t count : passes) tokens += count;
  const Floats x = random_floats(tokens * shape.hidden, 1, random);
  Floats expected = x;
  const std::int64_t pairs = shape.rotary_pairs;
  const Floats cos = random_floats(tokens * pairs, 1, random), sin = random_floats(tokens * pairs, 1, random);
  for (std::int64_t t = 0; t < tokens; ++t)
    layer.step(&expected[std::size_t(t * shape.hidden)], cos.data() + t * pairs, sin.data() + t * pairs);
  Kernels kernels(2, isa);
  const Floats found = attended(kernels, layer, kv, x, cos, sin, passes, Passes::kOfTheirOwn);
  CHECK(largest_difference(found, expected) < tolerance);
}

TEST(attention_is_that_of_its_double_precision_twin) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const HeadNorm head_norm : {HeadNorm::kNone, HeadNorm::kEach, HeadNorm::kAll}) {
      const AttentionShape shape =
          plain_shape(40, 6, 2, 10, 1e-6f, head_norm, head_norm == HeadNorm::kNone ? 0.9f : 0.0f, 0);
      compare(shape, head_norm == HeadNorm::kAll ? kNothing : kBiases, Format::kF32, {3, 1, 1, 70, 8, 9, 1},
              isa, 2e-4);
    }
  }
}

TEST(a_window_hides_what_lies_before_it) {
  for (const std::string& isa : moeinf::available_isas()) {
    const AttentionShape shape = plain_shape(32, 4, 4, 8, 1e-5f, HeadNorm::kNone, 0.0f, 13);
    compare(shape, kNothing, Format::kF32, {5, 30, 1, 1, 40, 2}, isa, 2e-4);
  }
}

TEST(more_query_heads_than_a_task_takes_share_a_key) {
  for (const std::string& isa : moeinf::available_isas()) {
    const AttentionShape shape = plain_shape(24, 11, 1, 6, 1e-5f, HeadNorm::kEach, 0.0f, 0);
    compare(shape, kNothing, Format::kF32, {2, 20, 1, 150}, isa, 2e-4);
  }
}

TEST(some_dimensions_of_a_head_have_positions_or_none_in_either_order_of_pairs) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const Pairs which : {Pairs::kHalves, Pairs::kNeighbours}) {
      for (const std::int64_t pairs : {0, 3, 6}) {
        AttentionShape shape = plain_shape(32, 4, 2, 12, 1e-5f, HeadNorm::kEach, 0.0f, 0);
        shape.rotary_pairs = pairs;
        shape.pairs = which;
        shape.scale = 0.11f;
        shape.residual = 0.22f;
        compare(shape, kNothing, Format::kF32, {3, 1, 20, 1}, isa, 2e-4);
      }
    }
  }
}

TEST(sinks_take_their_share_of_few_tokens_and_of_many_within_a_window_and_without) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const std::int64_t window : {0, 7}) {
      AttentionShape shape = plain_shape(32, 11, 1, 8, 1e-5f, HeadNorm::kNone, 0.0f, window);
      shape.scale = 0.3f;
      compare(shape, kBiases | kSinks, Format::kF32, {1, 1, 5, 40, 1, 150, 8}, isa, 2e-4);
    }
  }
}

TEST(scores_are_capped_of_few_tokens_and_of_many_within_a_window_and_without) {
  for (const std::string& isa : moeinf::available_isas()) {
    for (const std::int64_t window : {0, 7}) {
      AttentionShape shape = plain_shape(32, 6, 2, 8, 1e-5f, HeadNorm::kNone, 0.0f, window);
      shape.cap = 0.3f;
      compare(shape, kNothing, Format::kF32, {1, 1, 5, 40, 1, 150, 8}, isa, 2e-4);
    }
  }
}

TEST(gates_multiply_what_heads_give_and_a_layer_norm_may_come_first) {
  for (const std::string& isa : moeinf::available_isas()) {
    AttentionShape shape = plain_shape(40, 6, 2, 10, 1e-5f, HeadNorm::kEach, 0.0f, 0);
    shape.gated = true;
    shape.rotary_pairs = 2;
    compare(shape, kNothing, Format::kF32, {4, 1, 30, 1}, isa, 2e-4);
    shape.head_norm = HeadNorm::kNone;
    compare(shape, kBiases | kLayerNorm, Format::kF32, {4, 1, 30, 1, 140}, isa, 2e-4);
  }
}

// Tokens of which the last choose among the positions, and what a layer gives in the place of their states.
Floats chosen_output(const AttentionShape& shape, Format kv, std::int64_t tokens,
                     const std::vector<std::int64_t>& positions, std::int64_t choosing) {
  std::mt19937 random(7);
  Layer layer(shape, kNothing, random);
  Floats x = random_floats(tokens * shape.hidden, 1, random);
  const Floats angles = random_floats(tokens * shape.rotary_pairs, 1, random);
  Kernels kernels(2, "");
  Cache cache(shape, kv, tokens);
  const std::int64_t each = choosing == 0 ? 0 : std::int64_t(positions.size()) / choosing;
  const moeinf::RowSpan<const float> turns = {angles.data(), tokens, shape.rotary_pairs};
  moeinf::attend(kernels, shape, layer.weights(), cache.view(), 0, {turns, turns},
                 {x.data(), tokens, shape.hidden}, {}, {positions.data(), choosing, each});
  return x;
}

TEST(tokens_attend_to_the_positions_that_are_chosen_for_them) {
  for (const Format kv : {Format::kF32, Format::kBF16}) {
    AttentionShape shape = plain_shape(40, 6, 2, 10, 1e-6f, HeadNorm::kEach, 0.0f, 0);
    shape.replaces = true;
    const Floats all = chosen_output(shape, kv, 6, {}, 0);
    CHECK(chosen_output(shape, kv, 6, {0, 1, 2, 3, 4, -1, 0, 1, 2, 3, 4, 5}, 2) == all);
    const Floats fewer = chosen_output(shape, kv, 6, {0, 1, 2, 3, 4, -1, 2, 5, -1, 0, 0, 0}, 2);
    const auto last = std::ptrdiff_t(5 * shape.hidden);
    CHECK(std::equal(all.begin(), all.begin() + last, fewer.begin()));
    CHECK(!std::equal(all.begin() + last, all.end(), fewer.begin() + last));
    shape.window = 0;
    shape.most_chosen = 6;
    CHECK(moeinf::attention_workspace_bytes(shape, {Format::kF32, kv, 6, 6, 2}) > 0);
  }
}

TEST(keys_and_values_of_16_bits_lose_only_their_last_digits) {
  for (const std::string& isa : moeinf::available_isas()) {
    const AttentionShape shape = plain_shape(64, 4, 2, 16, 1e-6f, HeadNorm::kEach, 0.0f, 0);
    compare(shape, kNothing, Format::kF16, {20, 1, 5, 300, 1}, isa, 2e-2);
    compare(shape, kNothing, Format::kBF16, {20, 1, 5, 300, 1}, isa, 1.5e-1);
  }
}

TEST(prompts_by_tiles_give_what_products_of_floats_give_however_they_are_cut) {
  const std::vector<std::string> isas = moeinf::available_isas();
  if (std::find(isas.begin(), isas.end(), "amx") == isas.end()) return;
  constexpr std::int64_t kTokens = 300;
  for (const auto& [heads, kv_heads, dim] :
       {std::array{8, 1, 64}, std::array{2, 2, 128}, std::array{80, 2, 64}, std::array{6, 3, 72}}) {
    std::mt19937 random(9);
    const Layer layer(plain_shape(48, heads, kv_heads, dim, 1e-6f, HeadNorm::kEach, 0.0f, 0), kSinks, random);
    const Floats x = random_floats(kTokens * 48, 1, random),
                 cos = random_floats(kTokens * dim / 2, 1, random),
                 sin = random_floats(kTokens * dim / 2, 1, random);
    const auto of = [&](const std::string& isa, int threads, const std::vector<std::int64_t>& passes) {
      Kernels kernels(threads, isa);
      return attended(kernels, layer, Format::kBF16, x, cos, sin, passes, Passes::kOfOnePrompt);
    };
    const Floats floats = of("avx512bf16", 2, {kTokens}), tiles = of("amx", 2, {kTokens});
    CHECK(largest_difference(tiles, floats) < 1e-4);
    CHECK(tiles != floats);  // they go ways of their own
    CHECK(of("amx", 1, {1, 130, 2, 100, 67}) == tiles);
    CHECK(of("amx", 3, {64, 236}) == tiles);
  }
}

// As of the patches of a picture, each of which sees all others, with heads of 72 numbers, no whole number of
// tiles.
TEST(tokens_that_see_each_other_attend_by_tiles_as_by_floats) {
  const std::vector<std::string> isas = moeinf::available_isas();
  if (std::find(isas.begin(), isas.end(), "amx") == isas.end()) return;
  for (const auto& [tokens, dim, sees_all] : {std::tuple{150, 72, false}, std::tuple{640, 72, false},
                                              std::tuple{640, 72, true}, std::tuple{1100, 64, true}}) {
    std::mt19937 random(9);
    Layer layer(plain_shape(48, 2, 2, dim, 1e-6f, HeadNorm::kEach, 0.0f, 0), kBiases, random);
    layer.shape.sees_all = sees_all;
    const std::int64_t pairs = dim / 2;
    const Floats x = random_floats(tokens * 48, 1, random), angles = random_floats(tokens * pairs, 1, random);
    const std::vector<std::int64_t> ends(std::size_t(tokens), tokens);
    const auto of = [&](const std::string& isa, int threads) {
      Kernels kernels(threads, isa);
      Cache cache(layer.shape, Format::kBF16, tokens);
      Floats found = x;
      const moeinf::RowSpan<const float> turns = {angles.data(), tokens, pairs};
      moeinf::attend(kernels, layer.shape, layer.weights(), cache.view(), 0, {turns, turns},
                     {found.data(), tokens, 48}, {ends.data(), ends.size()});
      return found;
    };
    const Floats floats = of("avx512bf16", 2), tiles = of("amx", 2);
    CHECK(largest_difference(tiles, floats) < (sees_all ? 5e-3 : 2e-5) * largest_difference(floats, x));
    CHECK(tiles != floats);
    CHECK(of("amx", 1) == tiles && of("amx", 3) == tiles);
  }
}

TEST(sixteen_threads_have_work_at_one_key_value_head) {
  const AttentionShape one = plain_shape(64, 8, 1, 16, 1e-6f, HeadNorm::kNone, 0.0f, 0);
  for (const std::int64_t length : {4095, 8191, 8192, 32767, 99999}) {
    CHECK(moeinf::few_tasks(one, length, 1) >= 16);
    CHECK(moeinf::few_tasks(one, length, 1) <= 32);
  }
  const AttentionShape window = plain_shape(64, 16, 1, 16, 1e-6f, HeadNorm::kNone, 0.0f, 1024);
  CHECK(moeinf::few_tasks(window, 99999, 1) == 2 * 4);
  CHECK(moeinf::few_tasks(one, 0, 1) == 1);
}

TEST(halves_are_rounded_to_the_nearest_even_and_keep_what_is_not_finite) {
  const float values[] = {0.0f,  -0.0f, 1.0f,       -2.5f,          65504.0f, 65519.0f,  65520.0f, 1e30f,
                          6e-8f, 2e-8f, 1.0009766f, 1.00048828125f, INFINITY, -INFINITY, NAN};
  const std::uint16_t halves[] = {0, 0x8000, 0x3c00, 0xc100, 0x7bff, 0x7bff, 0x7c00, 0x7c00,
                                  1, 0,      0x3c01, 0x3c00, 0x7c00, 0xfc00, 0x7e00};
  for (const std::string& isa : moeinf::available_isas()) {
    std::uint16_t stored[15];
    moeinf::ops_for(isa).store_kv(Format::kF16, values, 15, stored);
    CHECK(std::memcmp(stored, halves, sizeof halves) == 0);
  }
}

TEST(the_router_takes_the_largest_of_the_softmax_and_of_equals_the_first) {
  const std::int64_t experts = 13, hidden = 24, k = 4;
  std::mt19937 random(3);
  Floats gate = random_floats(experts * hidden, 1, random);
  std::copy(gate.begin(), gate.begin() + hidden, gate.begin() + 5 * hidden);  // expert 5 equals expert 0
  const Floats weight = random_floats(hidden, 1, random);
  for (const std::int64_t tokens : {std::int64_t{1}, std::int64_t{40}}) {
    const Floats x = random_floats(tokens * hidden, 1, random);
    for (const bool normalise : {false, true}) {
      Kernels kernels(2, "");
      Floats normed(x.size()), weights(std::size_t(tokens * k));
      std::vector<std::int64_t> ids(std::size_t(tokens * k));
      const moeinf::RouterWeights router{weight.data(), 1e-6f, matrix_of(gate, experts, hidden), k,
                                         normalise};
      moeinf::route(kernels, router, {x.data(), tokens, hidden}, normed.data(), ids.data(), weights.data());
      for (std::int64_t t = 0; t < tokens; ++t) {
        std::vector<double> row(x.begin() + t * hidden, x.begin() + (t + 1) * hidden);
        norm(row, 0, row.size(), weight, 1e-6);
        std::vector<double> scores = times(gate, row);
        double total = 0, chosen = 0;
        for (double& score : scores) total += score = std::exp(score);
        std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
        for (std::int64_t e = 0; e < experts; ++e) order[std::size_t(e)] = e;
        std::stable_sort(order.begin(), order.end(),
                         [&](auto a, auto b) { return scores[std::size_t(a)] > scores[std::size_t(b)]; });
        for (std::int64_t j = 0; j < k; ++j) chosen += scores[std::size_t(order[std::size_t(j)])] / total;
        for (std::int64_t j = 0; j < k; ++j) {
          const auto place = std::size_t(t * k + j);
          CHECK(ids[place] == order[std::size_t(j)]);
          const double share = scores[std::size_t(order[std::size_t(j)])] / total;
          CHECK(std::fabs(weights[place] - (normalise ? share / chosen : share)) < 1e-5);
        }
        for (std::int64_t i = 0; i < hidden; ++i)
          CHECK(std::fabs(normed[std::size_t(t * hidden + i)] - row[std::size_t(i)]) < 1e-5);
      }
    }
  }
}

TEST(a_router_that_meets_no_number_still_chooses_distinct_experts) {
  const Floats gate(5 * 8, 1.0f), weight(8, 1.0f), x(8, NAN);
  Kernels kernels(1, "");
  Floats normed(8), weights(3);
  std::vector<std::int64_t> ids(3);
  moeinf::route(kernels, {weight.data(), 1e-6f, matrix_of(gate, 5, 8), 3, true}, {x.data(), 1, 8},
                normed.data(), ids.data(), weights.data());
  std::sort(ids.begin(), ids.end());
  CHECK(std::unique(ids.begin(), ids.end()) == ids.end() && ids.front() >= 0 && ids.back() < 5);
}

}  // namespace
