// The inner loops: every instruction set against a float64 reference, one row against many.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "ops_reference.h"

using namespace moeinf;

namespace {

std::vector<std::int64_t> column_counts(Format format) {
  if (block_weights(format) == 256) return {256, 768, 2304};
  if (block_weights(format) == 64) return {64, 192, 2112};
  if (block_weights(format) == 32) return {32, 64, 96, 416, 2080};
  return {1, 7, 31, 33, 64, 250, 2063};
}

void check_all(const std::vector<std::string>& isas, const std::vector<std::int64_t>& activation_counts,
               By by) {
  std::mt19937 random(1);
  for (const Format format : all_formats()) {
    for (const std::int64_t cols : column_counts(format)) {
      const TestMatrix w(random, format, 1 + random() % 9 + (cols == 96 || cols == 33 ? 100 : 0), cols);
      const std::vector<float> weights = w.dequantised();
      for (const std::int64_t num_x : activation_counts) {
        if (cols > 500 && num_x > 20) continue;  // long enough as it is
        const std::vector<float> x = random_floats(random, num_x * cols);
        std::map<ActivationKind, Reference> expected;
        for (const std::string& isa : isas) {
          const Ops& ops = ops_for(isa);
          const ActivationKind kind = kind_of(ops, format, by);
          if (expected.count(kind) == 0) expected[kind] = reference(w.view, weights, kind, x);
          if (close(product(ops, w.view, x, by), expected[kind])) continue;
          throw std::runtime_error(isa + ", " + name_of(format) + ", " + std::to_string(w.view.rows) +
                                   " rows of " + std::to_string(cols) + ", " + std::to_string(num_x) +
                                   " activations");
        }
      }
    }
  }
}

void check_independence(By by, std::int64_t num_x) {
  std::mt19937 random(2);
  for (const Format format : all_formats()) {
    const std::vector<std::int64_t> counts = column_counts(format);
    const std::int64_t cols = num_x == 5 ? counts.back() : counts[1];  // seconds with a sanitizer as it is
    const TestMatrix w(random, format, 103, cols);
    const std::vector<float> x = random_floats(random, num_x * cols);
    for (const std::string& isa : available_isas()) {
      const Ops& ops = ops_for(isa);
      const std::vector<float> together = product(ops, w.view, x, by);
      CHECK(together == product(ops, w.view, x, by, 50));
      for (const std::int64_t i : {std::int64_t{0}, num_x / 2, num_x - 1}) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i * cols);
        const auto same = together.begin() + static_cast<std::ptrdiff_t>(i * 103);
        CHECK(product(ops, w.view, {begin, begin + cols}, by, 1) == std::vector<float>(same, same + 103));
      }
    }
  }
}

}  // namespace

TEST(generic_products_of_up_to_eight_activations_equal_a_float64_reference) {
  check_all({"generic"}, {1, 2, 3, 4, 5, 6, 7, 8}, By::kRows);
}

TEST(generic_products_of_many_activations_equal_a_float64_reference) {
  check_all({"generic"}, {1, 9, 10, 67}, By::kTiles);
}

TEST(every_instruction_set_multiplies_up_to_eight_activations_as_the_reference_does) {
  check_all(available_isas(), {1, 2, 3, 4, 5, 6, 7, 8}, By::kRows);
}

TEST(every_instruction_set_multiplies_many_activations_as_the_reference_does) {
  check_all(available_isas(), {1, 2, 9, 12, 33, 70}, By::kTiles);
}

// So many blocks of random bytes that every number of a point comes up, every seven stored signs in every
// place and every scale.
TEST(every_point_of_a_grid_is_multiplied_as_the_reference_does) {
  std::mt19937 random(9);
  for (const Format format : {Format::kIQ1_S, Format::kIQ1_M, Format::kIQ2_XXS, Format::kIQ2_XS,
                              Format::kIQ2_S, Format::kIQ3_XXS, Format::kIQ3_S}) {
    const TestMatrix w(random, format, 512, 1024);
    const std::vector<float> x = random_floats(random, 1024);
    for (const std::string& isa : available_isas()) {
      for (const By by : {By::kRows, By::kTiles}) {
        const ActivationKind kind = kind_of(ops_for(isa), format, by);
        CHECK(close(product(ops_for(isa), w.view, x, by), reference(w.view, w.dequantised(), kind, x)));
      }
    }
  }
}

TEST(a_product_of_few_depends_neither_on_the_other_activations_nor_on_the_split_of_rows) {
  for (const std::int64_t num_x : {2, 5, kMaxDotRows}) check_independence(By::kRows, num_x);
}

TEST(a_product_of_many_depends_neither_on_the_other_activations_nor_on_the_split_of_rows) {
  for (const std::int64_t num_x : {5, 34}) check_independence(By::kTiles, num_x);
}

// Where a lane is a row, for a few activations (columns.inc) as for many. Rows end in whole vectors of them
// and within one, and there are fewer than that; columns end in whole groups and within one.
TEST(rows_in_lanes_give_few_activations_the_bits_that_they_give_many) {
  std::mt19937 random(6);
  for (const Format format :
       {Format::kQ4_0, Format::kQ4_1, Format::kQ5_1, Format::kIQ4_NL, Format::kIQ4_XS, Format::kMXFP4,
        Format::kQ2_K, Format::kQ3_K, Format::kQ4_K, Format::kQ5_K, Format::kTQ2_0}) {
    for (const std::int64_t cols : column_counts(format)) {
      for (const std::int64_t rows : {1, 7, 16, 27, 48}) {
        const TestMatrix w(random, format, rows, cols);
        for (const std::int64_t num_x : {1, 4, 7}) {
          const std::vector<float> x = random_floats(random, num_x * cols);
          for (const std::string& isa : available_isas()) {
            if (isa != "avx2" && isa != "avxvnni") continue;
            CHECK(product(ops_for(isa), w.view, x, By::kRows) ==
                  product(ops_for(isa), w.view, x, By::kTiles));
          }
        }
      }
    }
  }
}

// At any length, so that vectors end within a row.
TEST(f32_weights_that_are_held_narrow_give_the_same_bits) {
  std::mt19937 random(4);
  for (const std::int64_t cols : column_counts(Format::kF32)) {
    const TestMatrix narrow(random, Format::kNarrowF32, 37, cols);
    const std::vector<float> weights = narrow.dequantised();
    const Matrix wide = {reinterpret_cast<const unsigned char*>(weights.data()), Format::kF32, 37, cols};
    for (const std::int64_t num_x : {1, 3, 8, 19}) {
      const std::vector<float> x = random_floats(random, num_x * cols);
      for (const std::string& isa : available_isas()) {
        for (const By by : {By::kRows, By::kTiles}) {
          if (by == By::kRows && num_x > kMaxDotRows) continue;
          CHECK(product(ops_for(isa), narrow.view, x, by) == product(ops_for(isa), wide, x, by));
        }
      }
    }
  }
}

TEST(a_row_range_writes_its_own_results_only) {
  std::mt19937 random(3);
  const TestMatrix w(random, Format::kQ8_0, 9, 64);
  const std::vector<float> x = random_floats(random, 2 * 64);
  for (const std::string& isa : available_isas()) {
    const Ops& ops = ops_for(isa);
    const Lines prepared(2 * activation_bytes(ActivationKind::kInt8, 64));
    prepare_all(ops, ActivationKind::kInt8, x, 64, prepared.memory);
    std::vector<float> y(20, -1.0f);
    ops.dot_rows(w.view, 2, 7, prepared.memory, 2, y.data(), 10);
    for (std::size_t i = 0; i < y.size(); ++i) CHECK((y[i] == -1.0f) == (i % 10 < 2 || i % 10 >= 7));
  }
}

// -128 times 127 everywhere: 16 bits could not hold the sum of two such products.
TEST(extreme_bytes_do_not_overflow_the_sums) {
  std::vector<unsigned char> bytes(34 * 4);
  const std::uint16_t one = 0x3c00;
  for (std::size_t b = 0; b < 4; ++b) {
    std::memset(&bytes[34 * b], 0x80, 34);
    std::memcpy(&bytes[34 * b], &one, 2);
  }
  const Matrix w = {bytes.data(), Format::kQ8_0, 1, 128};
  for (const std::string& isa : available_isas()) {
    CHECK(product(ops_for(isa), w, std::vector<float>(128, 127.0f), By::kRows)[0] ==
          -128.0f * 127.0f * 128.0f);
    CHECK(product(ops_for(isa), w, std::vector<float>(128, -127.0f), By::kRows)[0] ==
          128.0f * 127.0f * 128.0f);
  }
}

TEST(the_smallest_mxfp4_scales_are_subnormal_numbers) {
  std::vector<unsigned char> bytes(17, 0x22);  // all weights are 1
  for (const unsigned char e : {0, 1, 2}) {
    bytes[0] = e;
    const Matrix w = {bytes.data(), Format::kMXFP4, 1, 32};
    for (const std::string& isa : available_isas()) {
      CHECK(product(ops_for(isa), w, std::vector<float>(32, 127.0f), By::kRows)[0] ==
            std::ldexp(127.0f * 32, e - 127));
    }
  }
}

TEST(what_is_not_finite_in_an_activation_shows_in_every_result) {
  std::mt19937 random(4);
  for (const Format format : all_formats()) {
    const TestMatrix w(random, format, 5, 256);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      std::vector<float> x = random_floats(random, 2 * 256);
      x[256 + 77] = bad;
      for (const std::string& isa : available_isas()) {
        for (const By by : {By::kRows, By::kTiles}) {
          const std::vector<float> y = product(ops_for(isa), w.view, x, by);
          for (std::size_t r = 0; r < 5; ++r) CHECK(std::isfinite(y[r]) && !std::isfinite(y[5 + r]));
        }
      }
    }
  }
}

TEST(codes_of_nvfp4_that_stand_for_no_scale_count_as_zero) {
  std::vector<unsigned char> bytes(36, 0x22);             // all weights are 1
  const unsigned char scales[4] = {0x7f, 0, 0xff, 0x38};  // the third ignores its sign: 480; the last is 1
  std::memcpy(bytes.data(), scales, 4);
  const Matrix w = {bytes.data(), Format::kNVFP4, 1, 64};
  for (const std::string& isa : available_isas()) {
    CHECK(product(ops_for(isa), w, std::vector<float>(64, 127.0f), By::kRows)[0] == 127.0f * 16 * (480 + 1));
  }
}

TEST(an_activation_of_zeros_or_of_subnormal_numbers_gives_zero) {
  std::mt19937 random(5);
  const TestMatrix w(random, Format::kQ4_K, 3, 256);
  for (const std::string& isa : available_isas()) {
    for (const float value : {0.0f, 1e-42f}) {
      for (const float y : product(ops_for(isa), w.view, std::vector<float>(256, value), By::kRows))
        CHECK(y == 0.0f);
    }
  }
}

TEST(silu_is_exact_to_a_few_units_in_the_last_place) {
  for (const std::string& isa : available_isas()) {
    for (const std::int64_t count : {1, 15, 1000}) {
      std::vector<float> gate(static_cast<std::size_t>(count)), up(gate.size()), out(gate.size());
      for (std::size_t i = 0; i < gate.size(); ++i) {
        gate[i] = static_cast<float>(i) * 0.17f - 80.0f;
        up[i] = 1.0f + static_cast<float>(i % 3);
      }
      ops_for(isa).activate(Activation::kSilu, 0, gate.data(), up.data(), out.data(), count);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const double g = static_cast<double>(gate[i]),
                     exact = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
        CHECK(std::fabs(static_cast<double>(out[i]) - exact) <= 4e-7 * std::fabs(exact));
      }
    }
  }
}

TEST(silu_keeps_what_is_not_finite_and_vanishes_far_below_zero) {
  const float infinity = std::numeric_limits<float>::infinity(), ones[] = {1, 1, 1, 1, 1};
  const float gate[] = {std::numeric_limits<float>::quiet_NaN(), infinity, -200.0f, -89.0f, 0.0f};
  for (const std::string& isa : available_isas()) {
    float out[5];
    ops_for(isa).activate(Activation::kSilu, 0, gate, ones, out, 5);
    CHECK(std::isnan(out[0]) && out[1] == infinity && out[2] == 0.0f && std::fabs(out[3]) < 1e-36f &&
          out[4] == 0.0f);
  }
}

TEST(every_activation_is_that_of_double_arithmetic_with_and_without_a_gate) {
  std::mt19937 random(8);
  std::vector<float> a = random_floats(random, 203), up = random_floats(random, 203), out(203);
  for (float& value : a) value *= 4;
  for (float& value : up) value *= 4;
  const auto exact = [](Activation act, double x) {
    if (act == Activation::kSilu) return x / (1 + std::exp(-x));
    if (act == Activation::kGelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    if (act == Activation::kGeluTanh)
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
    if (act == Activation::kQuickGelu) return x / (1 + std::exp(-1.702 * x));
    return std::max(x, 0.0) * (act == Activation::kSquaredRelu ? x : 1.0);
  };
  for (const std::string& isa : available_isas()) {
    for (const Activation act : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                 Activation::kQuickGelu, Activation::kRelu, Activation::kSquaredRelu}) {
      for (const bool gated : {true, false}) {
        ops_for(isa).activate(act, 0, a.data(), gated ? up.data() : nullptr, out.data(), 203);
        for (std::size_t i = 0; i < a.size(); ++i) {
          const double expected = exact(act, a[i]) * (gated ? static_cast<double>(up[i]) : 1.0);
          CHECK(std::fabs(out[i] - expected) <= 4e-6 * std::max(1.0, std::fabs(expected)));
        }
      }
    }
    for (const Activation act : {Activation::kSiluClamped, Activation::kClampedSilu,
                                 Activation::kSwigluClamped, Activation::kSoftcapped}) {
      ops_for(isa).activate(act, {3.0f, 1.5f}, a.data(), up.data(), out.data(), 203);
      for (std::size_t i = 0; i < a.size(); ++i) {
        const double g = std::min<double>(a[i], 3), u = std::clamp<double>(up[i], -3, 3);
        const double after = std::min<double>(a[i] / (1 + std::exp(-static_cast<double>(a[i]))), 3);
        const double capped = 1.5 * std::tanh(a[i] / 1.5) / (1 + std::exp(-static_cast<double>(a[i]))) * 3 *
                              std::tanh(up[i] / 3.0);
        const double expected = act == Activation::kSoftcapped    ? capped
                                : act == Activation::kSiluClamped ? g / (1 + std::exp(-g)) * u
                                : act == Activation::kClampedSilu ? after * u
                                                                  : g / (1 + std::exp(-1.702 * g)) * (u + 1);
        CHECK(std::fabs(out[i] - expected) <= 4e-6 * std::max(1.0, std::fabs(expected)));
      }
    }
    ops_for(isa).activate(Activation::kSoftcapped, {0.0f, 1.5f}, a.data(), up.data(), out.data(), 203);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double g = 1.5 * std::tanh(a[i] / 1.5) / (1 + std::exp(-static_cast<double>(a[i])));
      CHECK(std::fabs(out[i] - g * up[i]) <= 4e-6 * std::max(1.0, std::fabs(g * up[i])));
    }
  }
}

TEST(what_is_stored_is_added_in_each_of_its_formats_at_any_address) {
  const float values[] = {1.5f, -2.25f, 0.0f, 65504.0f, 0x1p-24f, -0.375f, 3.0f, -8.0f, 0.5f};
  for (const Format format : {Format::kF32, Format::kF16, Format::kBF16}) {
    const std::size_t width = row_bytes(format, 1);
    std::vector<unsigned char> memory(9 * width + 1);
    for (const std::string& isa : available_isas()) {
      const Ops& ops = ops_for(isa);
      std::vector<unsigned char> aligned(9 * width);
      ops.store_kv(format, values, 9, aligned.data());
      std::copy(aligned.begin(), aligned.end(), memory.begin() + 1);
      std::vector<float> sum(9, 1.0f);
      ops.add_stored(format, memory.data() + 1, sum.data(), 9);
      for (std::size_t i = 0; i < 9; ++i) {
        const float rounded = format == Format::kBF16 && values[i] == 65504.0f ? 65536.0f : values[i];
        CHECK(sum[i] == 1.0f + rounded);
      }
    }
  }
}

TEST(a_scaled_sum_is_rounded_after_the_product_and_after_the_sum) {
  std::mt19937 random(6);
  const std::vector<float> x = random_floats(random, 77), start = random_floats(random, 77);
  for (const std::string& isa : available_isas()) {
    std::vector<float> sum = start;
    ops_for(isa).add_scaled(x.data(), 0.3f, sum.data(), 77);
    for (std::size_t i = 0; i < x.size(); ++i) {
      volatile float scaled = 0.3f * x[i];
      CHECK(sum[i] == start[i] + scaled);
    }
  }
}

TEST(the_best_instruction_set_is_taken_and_others_are_refused_by_name) {
  const std::vector<std::string> isas = available_isas();
  CHECK(isas.back() == "generic" && ops_for("").name == isas.front());
  for (const std::string& isa : isas) CHECK(ops_for(isa).name == isa);
  CHECK(throws<std::invalid_argument>([] { ops_for("sse9"); }));
  for (const std::string isa :
       {"avx2", "avxvnni", "avx512", "avx512bf16", "amx", "neon", "neon_dotprod", "neon_i8mm"}) {
    bool available = false;
    for (const std::string& name : isas) available = available || name == isa;
    CHECK(available != throws<std::invalid_argument>([&] { ops_for(isa); }));
  }
}
