// Latent attention in long and short passes against its definition in double precision, which makes every key
// and value; the sums of rows and the softmax that it is made of.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "moeinf/compute/layers/latent.h"
#include "ops_reference.h"

using namespace moeinf;

namespace {

using Floats = std::vector<float>;

// Queries, keys, values and rows of one layer, token after token.
struct Layer {
  Layer(const LatentShape& s, std::int64_t tokens, std::mt19937& random)
      : shape(s),
        keys_values(random_floats(random, s.num_heads * (s.qk_nope_head_dim + s.value_dim) * s.rank)),
        rows(random_floats(random, tokens * s.width())),
        queries(random_floats(random, tokens * s.num_heads * s.query_dim())),
        cos(random_floats(random, tokens * s.rotary_pairs)),
        sin(random_floats(random, tokens * s.rotary_pairs)) {}

  Matrix matrix() const {
    return {reinterpret_cast<const unsigned char*>(keys_values.data()), Format::kF32,
            shape.num_heads * (shape.qk_nope_head_dim + shape.value_dim), shape.rank};
  }

  // The end of a query or row of token t, rotated.
  std::vector<double> rotated(const float* x, std::int64_t t) const {
    std::vector<double> out(std::size_t(2 * shape.rotary_pairs));
    for (std::int64_t i = 0; i < shape.rotary_pairs; ++i) {
      const auto a = std::size_t(shape.pairs == moeinf::Pairs::kNeighbours ? 2 * i : i);
      const auto b =
          std::size_t(shape.pairs == moeinf::Pairs::kNeighbours ? 2 * i + 1 : i + shape.rotary_pairs);
      const double c = cos[std::size_t(t * shape.rotary_pairs + i)],
                   s = sin[std::size_t(t * shape.rotary_pairs + i)];
      out[a] = x[a] * c - x[b] * s;
      out[b] = x[b] * c + x[a] * s;
    }
    return out;
  }

  // Row r of head h times the latent of token t: a number of its key or value.
  double made(std::int64_t h, std::int64_t r, std::int64_t t) const {
    double sum = 0;
    const float* const weights =
        keys_values.data() + (h * (shape.qk_nope_head_dim + shape.value_dim) + r) * shape.rank;
    for (std::int64_t c = 0; c < shape.rank; ++c)
      sum += double(weights[c]) * rows[std::size_t(t * shape.width() + c)];
    return sum;
  }

  double score(std::int64_t h, std::int64_t t, std::int64_t seen) const {
    const float* const query = queries.data() + (t * shape.num_heads + h) * shape.query_dim();
    double sum = 0;
    for (std::int64_t i = 0; i < shape.qk_nope_head_dim; ++i) sum += query[i] * made(h, i, seen);
    const std::vector<double> asked = rotated(query + shape.qk_nope_head_dim, t);
    const std::vector<double> key = rotated(rows.data() + seen * shape.width() + shape.rank, seen);
    for (std::size_t i = 0; i < key.size(); ++i) sum += asked[i] * key[i];
    return sum * double(shape.scale);
  }

  std::vector<double> expected(std::int64_t h, std::int64_t t) const {
    std::vector<double> weights, out(std::size_t(shape.value_dim));
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    for (std::int64_t seen = 0; seen <= t; ++seen) {
      weights.push_back(score(h, t, seen));
      largest = std::fmax(largest, weights.back());
    }
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (std::int64_t seen = 0; seen <= t; ++seen) {
      for (std::int64_t v = 0; v < shape.value_dim; ++v) {
        out[std::size_t(v)] += weights[std::size_t(seen)] / total * made(h, shape.qk_nope_head_dim + v, seen);
      }
    }
    return out;
  }

  // [tokens, heads * value_dim], by passes of the given sizes.
  Floats attended(Kernels& kernels, const std::vector<std::int64_t>& passes,
                  Format kept = Format::kF32) const {
    const std::int64_t tokens = std::int64_t(rows.size()) / shape.width();
    const Lines cache(rows.size() * sizeof(float));
    Floats out(std::size_t(tokens * shape.num_heads * shape.value_dim));
    std::int64_t length = 0;
    for (const std::int64_t count : passes) {
      const auto part = [&](auto& all, std::int64_t cols) {
        return moeinf::RowSpan<std::remove_pointer_t<decltype(all.data())>>{all.data() + length * cols, count,
                                                                            cols};
      };
      const moeinf::Turns turns = {part(cos, shape.rotary_pairs), part(sin, shape.rotary_pairs)};
      store_latents(kernels, shape, {cache.memory, kept}, length, part(rows, shape.width()), turns);
      attend_latents(kernels, shape, matrix(), {cache.memory, kept}, length,
                     part(queries, shape.num_heads * shape.query_dim()), turns,
                     part(out, shape.num_heads * shape.value_dim));
      length += count;
    }
    CHECK(length == tokens);
    return out;
  }

  LatentShape shape;
  Floats keys_values, rows, queries, cos, sin;
};

void compare(const LatentShape& shape, const std::vector<std::int64_t>& passes) {
  std::mt19937 random(5);
  std::int64_t tokens = 0;
  for (const std::int64_t count : passes) tokens += count;
  const Layer layer(shape, tokens, random);
  for (const std::string& isa : available_isas()) {
    Kernels kernels(2, isa);
    const Floats found = layer.attended(kernels, passes);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t h = 0; h < shape.num_heads; ++h) {
        const std::vector<double> expected = layer.expected(h, t);
        for (std::int64_t v = 0; v < shape.value_dim; ++v) {
          const float value = found[std::size_t((t * shape.num_heads + h) * shape.value_dim + v)];
          CHECK(std::fabs(double(value) - expected[std::size_t(v)]) < 1e-4);
        }
      }
    }
  }
}

// Queries that share rows, of which the fourth sees none and the others fewer and fewer. Values are the first
// numbers of the rows, or lie apart; then what rounding takes of queries is multiplied, too.
struct SharedRowsCase {
  static constexpr std::int64_t kWidth = 96, kRank = 96, kRows = 300;

  SharedRowsCase(std::mt19937& random, Format format, bool has_values)
      : matrix(random, format, kRows, kWidth), value_matrix(random, format, kRows, kRank), apart(has_values) {
    rows = matrix.dequantised();
    for (float& number : rows) number = rounded_to_bf16(number);
    values = apart ? value_matrix.dequantised() : rows;
    for (float& number : values) number = rounded_to_bf16(number);
    float largest = 0;
    for (const float number : rows) largest = std::fmax(largest, std::fabs(number));
    asked = random_floats(random, kMaxSharing * kWidth);
    for (float& number : asked) number = apart ? number / largest : rounded_to_bf16(number / largest);
    for (std::int64_t q = 0; q < kMaxSharing; ++q) seen.push_back(q == 3 ? 0 : kRows - 9 * (q % 33));
  }

  // Of `count` queries from `first` on: sums [count, rank], each followed by its state. in_pairs: values are
  // laid out beforehand; rounds: softmax weights are rounded to bf16.
  Floats attended(const Ops& ops, int first, int count, bool in_pairs = false, bool rounds = false) const {
    const std::size_t query_bytes = activation_bytes(ActivationKind::kBF16, kWidth);
    const Lines scratch(shared_rows_bytes(kWidth, kRank, apart)), queries(std::size_t(count) * query_bytes),
        rests(std::size_t(count) * query_bytes);
    for (int q = 0; q < count; ++q) {
      Floats left(asked.begin() + (first + q) * kWidth, asked.begin() + (first + q + 1) * kWidth);
      ops.prepare(ActivationKind::kBF16, left.data(), kWidth, queries.memory + std::size_t(q) * query_bytes);
      for (float& number : left) number -= rounded_to_bf16(number);
      ops.prepare(ActivationKind::kBF16, left.data(), kWidth, rests.memory + std::size_t(q) * query_bytes);
    }
    const Lines pairs(std::size_t((kRows + 63) / 64 * 64 * kRank * 2));
    if (in_pairs) ops.pair_values(value_matrix.view.data, kRank, kRows, kRank, pairs.memory);
    const SharedRowsTask task = {queries.memory,
                                 std::int64_t(query_bytes),
                                 count,
                                 matrix.view.data,
                                 matrix.view.format,
                                 kRows,
                                 kWidth,
                                 kRank,
                                 seen.data() + first,
                                 scratch.memory,
                                 apart && !in_pairs ? value_matrix.view.data : nullptr,
                                 apart ? rests.memory : nullptr,
                                 rounds,
                                 in_pairs ? pairs.memory : nullptr};
    std::vector<SoftmaxState> states(std::size_t(count), {0.25f, 1.0f});  // a sink
    Floats sums(std::size_t(count * kRank)), out;
    ops.attend_shared(task, states.data(), sums.data());
    for (std::int64_t q = 0; q < count; ++q) {
      out.insert(out.end(), sums.begin() + q * kRank, sums.begin() + (q + 1) * kRank);
      out.insert(out.end(), {states[std::size_t(q)].largest, states[std::size_t(q)].total});
    }
    return out;
  }

  std::vector<double> expected(std::int64_t q) const {
    std::vector<double> out(std::size_t(kRank), 0.0);
    double total = std::exp(0.25);
    for (std::int64_t r = 0; r < seen[std::size_t(q)]; ++r) {
      double score = 0;
      for (std::int64_t c = 0; c < kWidth; ++c)
        score += double(asked[std::size_t(q * kWidth + c)]) * double(rows[std::size_t(r * kWidth + c)]);
      total += std::exp(score);
      for (std::int64_t c = 0; c < kRank; ++c)
        out[std::size_t(c)] +=
            std::exp(score) * double(values[std::size_t(r * (apart ? kRank : kWidth) + c)]);
    }
    for (double& number : out) number /= total;
    return out;
  }

  TestMatrix matrix, value_matrix;
  bool apart;
  Floats rows, values, asked;
  std::vector<std::int64_t> seen;
};

}  // namespace

TEST(latent_attention_is_that_of_its_double_precision_twin) {
  compare({3, 21, 5, 4, 3, Pairs::kHalves, 0.1f}, {7, 1, 1, 11});
  compare({35, 9, 3, 2, 2, Pairs::kNeighbours, 0.3f}, {1, 2, 9});
  compare({1, 1, 1, 1, 1, Pairs::kHalves, 1.0f}, {1, 3});
}

TEST(latent_attention_in_runs_of_rows_is_put_together_right) {
  compare({2, 4, 2, 2, 1, Pairs::kHalves, 0.3f}, {140, 3, 1, 120, 1});  // more than two blocks of rows
}

TEST(latent_attention_is_the_same_for_every_number_of_threads) {
  std::mt19937 random(6);
  const Layer layer({20, 33, 8, 4, 4, Pairs::kNeighbours, 0.2f}, 300, random);
  Kernels one(1, ""), three(3, "");
  const std::vector<std::int64_t> passes = {290, 9, 1};
  CHECK(layer.attended(one, passes) == layer.attended(three, passes));
}

TEST(attention_to_shared_rows_is_that_of_its_double_precision_twin_and_of_each_query_alone) {
  std::mt19937 random(8);
  for (const auto& [format, apart] : {std::pair{Format::kBF16, false}, std::pair{Format::kQ8_0, false},
                                      std::pair{Format::kBF16, true}, std::pair{Format::kQ8_0, true}}) {
    const SharedRowsCase with(random, format, apart);
    double largest = 0;
    for (const float number : with.values) largest = std::fmax(largest, std::fabs(double(number)));
    for (const std::string& isa : available_isas()) {
      const Ops& ops = ops_for(isa);
      if (ops.attend_shared == nullptr) continue;
      const Floats together = with.attended(ops, 0, kMaxSharing);
      for (int q = 0; q < kMaxSharing; ++q) {
        const auto from = together.begin() + q * (with.kRank + 2);
        CHECK(with.attended(ops, q, 1) == Floats(from, from + with.kRank + 2));
        const std::vector<double> expected = with.expected(q);
        for (std::int64_t c = 0; c < with.kRank; ++c)
          CHECK(std::fabs(double(from[c] / from[with.kRank + 1]) - expected[std::size_t(c)]) <=
                kTolerance * largest);
      }
    }
  }
}

TEST(values_in_pairs_are_weighed_as_they_lie_and_rounded_weights_lose_their_last_digits) {
  std::mt19937 random(10);
  const SharedRowsCase with(random, Format::kBF16, true);
  double largest = 0;
  for (const float number : with.values) largest = std::fmax(largest, std::fabs(double(number)));
  for (const std::string& isa : available_isas()) {
    const Ops& ops = ops_for(isa);
    CHECK((ops.pair_values == nullptr) == (ops.attend_shared == nullptr));
    if (ops.pair_values == nullptr) continue;
    CHECK(with.attended(ops, 0, kMaxSharing, true) == with.attended(ops, 0, kMaxSharing));
    const Floats together = with.attended(ops, 0, kMaxSharing, true, true);
    CHECK(together == with.attended(ops, 0, kMaxSharing, false, true));
    CHECK(together != with.attended(ops, 0, kMaxSharing));
    for (int q = 0; q < kMaxSharing; ++q) {
      const auto from = together.begin() + q * (with.kRank + 2);
      CHECK(with.attended(ops, q, 1, true, true) == Floats(from, from + with.kRank + 2));
      const std::vector<double> expected = with.expected(q);
      for (std::int64_t c = 0; c < with.kRank; ++c)
        CHECK(std::fabs(double(from[c] / from[with.kRank + 1]) - expected[std::size_t(c)]) <=
              0x1p-9 * largest);
    }
  }
}

TEST(latent_attention_of_bf16_rows_is_the_same_for_every_instruction_set_and_number_of_threads) {
  std::mt19937 random(9);
  const Layer layer({20, 64, 8, 4, 16, Pairs::kNeighbours, 0.05f}, 300, random);
  const std::vector<std::int64_t> passes = {150, 140, 9, 1};
  Kernels generic(1, "generic");
  const Floats expected = layer.attended(generic, passes, Format::kBF16);
  for (const std::string& isa : available_isas()) {
    Kernels one(1, isa), three(3, isa);
    const Floats found = isa == "generic" ? expected : layer.attended(one, passes, Format::kBF16);
    CHECK(found == layer.attended(three, passes, Format::kBF16));
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(std::fabs(found[i] - expected[i]) < 1e-2f);
  }
}

TEST(sums_of_rows_equal_a_float64_reference_and_depend_on_nothing_else) {
  std::mt19937 random(7);
  for (const Format format : {Format::kF32, Format::kF16, Format::kBF16}) {
    for (const std::int64_t cols : {1, 7, 33, 130, 300}) {
      const TestMatrix w(random, format, 19, cols);
      const Floats weights = w.dequantised(), x = random_floats(random, 11 * 20);
      for (const std::string& isa : available_isas()) {
        const Ops& ops = ops_for(isa);
        const std::int64_t first = cols / 3;
        Floats together(std::size_t(11 * cols), 0.5f);
        ops.weighted_sum(w.view, first, cols, x.data(), 20, 11, together.data(), cols);
        for (std::int64_t i = 0; i < 11; ++i) {
          Floats alone(std::size_t(cols), 0.5f);
          ops.weighted_sum(w.view, first, cols, x.data() + 20 * i, 20, 1, alone.data(), cols);
          for (std::int64_t c = 0; c < cols; ++c) {
            double sum = 0.5, magnitude = 0.5;
            for (std::int64_t r = 0; c >= first && r < 19; ++r) {
              const double product = double(x[std::size_t(20 * i + r)]) * weights[std::size_t(r * cols + c)];
              sum += product;
              magnitude += std::fabs(product);
            }
            CHECK(alone[std::size_t(c)] == together[std::size_t(i * cols + c)]);
            CHECK(std::fabs(double(alone[std::size_t(c)]) - sum) <= kTolerance * magnitude);
          }
        }
      }
    }
  }
}

TEST(a_softmax_by_blocks_keeps_the_largest_score_and_scales_what_came_before) {
  for (const std::string& isa : available_isas()) {
    SoftmaxState state = {-std::numeric_limits<float>::infinity(), 0};
    Floats sums = {0, 0, 0}, first = {1, 3, 2}, second = {0, 5}, nothing;
    ops_for(isa).online_softmax(nothing.data(), 0, state, sums.data(), 3);
    CHECK(state.total == 0);
    ops_for(isa).online_softmax(first.data(), 3, state, sums.data(), 3);
    CHECK(state.largest == 3 && std::fabs(first[0] - std::exp(-2.0f)) < 1e-6f && first[1] == 1);
    sums = {1, 2, 4};
    ops_for(isa).online_softmax(second.data(), 2, state, sums.data(), 3);
    CHECK(state.largest == 5 && second[1] == 1 && std::fabs(sums[2] - 4 * std::exp(-2.0f)) < 1e-6f);
    const double total = std::exp(-4.0) + std::exp(-2.0) + std::exp(-3.0) + std::exp(-5.0) + 1;
    CHECK(std::fabs(double(state.total) - total) < 1e-6);
  }
}
