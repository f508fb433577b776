// Blocks of every format: what they mean, how weights are rounded into them, and what is refused.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "compute/formats/half.h"
#include "moeinf/compute/formats/formats.h"
#include "moeinf/compute/formats/quantise.h"

using moeinf::Format;

namespace {

const Format kQuantised[] = {Format::kQ8_0, Format::kQ4_0, Format::kQ4_K, Format::kIQ4_NL, Format::kMXFP4};

using Bytes = std::vector<unsigned char>;

std::vector<float> normal_weights(std::size_t count, float scale = 1) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> weights(count);
  for (float& weight : weights) weight = normal(generator);
  return weights;
}

const unsigned char* bytes_of(const std::vector<float>& weights) {
  return reinterpret_cast<const unsigned char*>(weights.data());
}

Bytes quantised(Format format, const std::vector<float>& weights) {
  const auto cols = static_cast<std::int64_t>(weights.size());
  Bytes out(moeinf::row_bytes(format, cols));
  moeinf::quantise(format, bytes_of(weights), Format::kF32, 1, cols, out.data());
  return out;
}

std::vector<float> dequantised(Format format, const Bytes& data) {
  const auto cols =
      static_cast<std::int64_t>(data.size() / moeinf::block_bytes(format)) * moeinf::block_weights(format);
  std::vector<float> out(static_cast<std::size_t>(cols));
  moeinf::dequantise({data.data(), format, 1, cols}, out.data());
  return out;
}

template <typename Block>
Bytes block_bytes_of(const Block& block) {
  Bytes data(sizeof block);
  std::memcpy(data.data(), &block, sizeof block);
  return data;
}

double relative_error(const std::vector<float>& weights, const std::vector<float>& found) {
  double error = 0, energy = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    error += std::pow(static_cast<double>(weights[i]) - found[i], 2);
    energy += std::pow(static_cast<double>(weights[i]), 2);
  }
  return std::sqrt(error / energy);
}

}  // namespace

TEST(every_format_is_found_by_its_name_and_an_unknown_one_lists_them) {
  for (int f = 0; f < moeinf::kNumFormats; ++f) {
    CHECK(moeinf::format_named(moeinf::name_of(static_cast<Format>(f))) == static_cast<Format>(f));
  }
  try {
    moeinf::format_named("q9_k");
    CHECK(false);
  } catch (const std::invalid_argument& error) {
    CHECK(std::string(error.what()).find("'q9_k'; known: f32, f16, bf16, q8_0") != std::string::npos);
  }
}

TEST(halves_survive_the_way_to_floats_and_back) {
  for (std::uint32_t half = 0; half < 0x10000; ++half) {
    const auto bits = static_cast<std::uint16_t>(half);
    const bool is_nan = (bits & 0x7fff) > 0x7c00;
    const float value = moeinf::float_of_half(bits);
    CHECK(is_nan ? std::isnan(value) : moeinf::half_of_float(value) == bits);
  }
}

TEST(floats_become_the_nearest_half_and_ties_the_even_one) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = moeinf::float_of_half(half),
                high = moeinf::float_of_half(static_cast<std::uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;
    CHECK(moeinf::half_of_float(middle) == half + half % 2);
    CHECK(moeinf::half_of_float(std::nextafter(middle, low)) == half);
    CHECK(moeinf::half_of_float(std::nextafter(middle, high)) == half + 1);
  }
  CHECK(moeinf::half_of_float(65519.99f) == 0x7bff && moeinf::half_of_float(65520.0f) == 0x7c00);
}

TEST(blocks_of_one_level_mean_scale_times_value) {
  moeinf::BlockQ8_0 q8 = {moeinf::half_of_float(0.5f), {}};
  q8.q[0] = -128;
  q8.q[31] = 127;
  std::vector<float> found = dequantised(Format::kQ8_0, block_bytes_of(q8));
  CHECK(found[0] == -64 && found[1] == 0 && found[31] == 63.5f);

  moeinf::BlockQ4_0 q4 = {moeinf::half_of_float(2), {0xf0}};  // low nibble: weight 0, high nibble: weight 16
  found = dequantised(Format::kQ4_0, block_bytes_of(q4));
  CHECK(found[0] == -16 && found[16] == 14 && found[1] == -16);

  moeinf::BlockIQ4_NL nl = {moeinf::half_of_float(1), {0xf7}};
  found = dequantised(Format::kIQ4_NL, block_bytes_of(nl));
  CHECK(found[0] == -10 && found[16] == 113 && found[17] == -127);

  moeinf::BlockMXFP4 mx = {128, {0xe7}};  // scale 2: 6 * 2, -4 * 2
  found = dequantised(Format::kMXFP4, block_bytes_of(mx));
  CHECK(found[0] == 12 && found[16] == -8 && found[1] == 0);
}

TEST(scales_of_mxfp4_reach_from_subnormal_numbers_to_2_to_the_127) {
  for (int e = 0; e < 255; ++e) {
    const moeinf::BlockMXFP4 block = {static_cast<std::uint8_t>(e), {0x02}};  // E2M1 1.0
    CHECK(dequantised(Format::kMXFP4, block_bytes_of(block))[0] == std::ldexp(1.0f, e - 127));
  }
  CHECK(std::isnan(dequantised(Format::kMXFP4, block_bytes_of(moeinf::BlockMXFP4{255, {0x02}}))[0]));
}

TEST(sub_blocks_of_q4_k_have_scales_and_minima_of_6_bits) {
  moeinf::BlockQ4_K block = {};
  block.d = moeinf::half_of_float(0.25f);
  block.dmin = moeinf::half_of_float(2);
  block.scales[1] = 63;        // scale of sub-block 1
  block.scales[2] = 0xc0;      // top bits of the scale of sub-block 6
  block.scales[6] = 0x40 | 5;  // top bits of the minimum of sub-block 6; minimum of sub-block 2
  block.scales[10] = 0x2f;     // low nibbles of scale (15) and minimum (2) of sub-block 6
  block.q[0] = 0x9f;           // weight 0 of sub-block 0 and, high, of sub-block 1
  block.q[96] = 0x0a;          // weight 0 of sub-block 6
  const std::vector<float> found = dequantised(Format::kQ4_K, block_bytes_of(block));
  CHECK(found[0] == 0);
  CHECK(found[32] == 0.25f * 63 * 9);
  CHECK(found[64] == -2.0f * 5);
  CHECK(found[6 * 32] == 0.25f * 63 * 10 - 2.0f * 18);
}

TEST(rounding_loses_no_more_than_the_format_must) {
  const std::vector<float> weights = normal_weights(64 * 256, 0.02f);
  // ggml's own are 0.0054, 0.086, 0.0713, 0.0761 and 0.114.
  const double bounds[] = {0.0055, 0.088, 0.073, 0.078, 0.12};
  for (std::size_t f = 0; f < 5; ++f) {
    CHECK(relative_error(weights, dequantised(kQuantised[f], quantised(kQuantised[f], weights))) < bounds[f]);
  }
}

TEST(a_group_far_from_zero_keeps_its_differences_in_q4_k) {
  std::vector<float> weights = normal_weights(256);
  for (float& weight : weights) weight -= 100;
  CHECK(relative_error(weights, dequantised(Format::kQ4_K, quantised(Format::kQ4_K, weights))) < 0.002);
}

TEST(a_block_depends_on_its_own_weights_alone) {
  const std::vector<float> weights = normal_weights(11 * 256);
  for (const Format format : kQuantised) {
    const auto step = static_cast<std::size_t>(moeinf::block_weights(format));
    const Bytes whole = quantised(format, weights);
    for (std::size_t start = 0; start < weights.size(); start += step) {
      const std::vector<float> block(weights.begin() + static_cast<std::ptrdiff_t>(start),
                                     weights.begin() + static_cast<std::ptrdiff_t>(start + step));
      const Bytes alone = quantised(format, block);
      CHECK(std::memcmp(alone.data(), whole.data() + start / step * alone.size(), alone.size()) == 0);
    }
  }
}

TEST(rounding_what_was_rounded_changes_little) {
  const std::vector<float> weights = normal_weights(16 * 256);
  for (const Format format : kQuantised) {
    const std::vector<float> once = dequantised(format, quantised(format, weights));
    CHECK(relative_error(once, dequantised(format, quantised(format, once))) < 0.03);
  }
}

TEST(zeros_tiny_and_huge_weights_stay_numbers) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  const float values[] = {0, -0.0f, smallest, -smallest, 1e-38f, -1e-20f, 1e-15f, -1e-8f, 65504, -65504};
  for (const Format format : kQuantised) {
    for (const float value : values) {
      for (const bool alternating : {false, true}) {
        std::vector<float> weights(256, value);
        for (std::size_t i = 1; alternating && i < weights.size(); i += 2) weights[i] = -value / 3;
        const Bytes data = quantised(format, weights);
        CHECK(moeinf::first_bad_scale({data.data(), format, 1, 256}) == -1);
        for (const float found : dequantised(format, data))
          CHECK(std::fabs(found) <= 1.4f * std::fabs(value) + 1e-6f);
      }
    }
  }
}

TEST(sources_of_16_bits_give_the_blocks_of_their_values) {
  std::vector<float> weights = normal_weights(512);
  std::vector<std::uint16_t> half(512), bfloat(512);
  std::vector<float> of_half(512), of_bfloat(512);
  for (std::size_t i = 0; i < 512; ++i) {
    half[i] = moeinf::half_of_float(weights[i]);
    bfloat[i] = static_cast<std::uint16_t>(moeinf::bits_of_float(weights[i]) >> 16);
    of_half[i] = moeinf::float_of_half(half[i]);
    of_bfloat[i] = moeinf::float_of_bfloat16(bfloat[i]);
  }
  for (const Format format : kQuantised) {
    Bytes out(moeinf::row_bytes(format, 512));
    moeinf::quantise(format, reinterpret_cast<const unsigned char*>(half.data()), Format::kF16, 2, 256,
                     out.data());
    CHECK(out == quantised(format, of_half));
    moeinf::quantise(format, reinterpret_cast<const unsigned char*>(bfloat.data()), Format::kBF16, 2, 256,
                     out.data());
    CHECK(out == quantised(format, of_bfloat));
  }
}

TEST(f32_weights_become_narrow_where_their_lower_halves_are_zeros_and_else_stay_as_they_are) {
  std::vector<float> weights = normal_weights(513);
  for (float& weight : weights) {
    weight = moeinf::float_of_bfloat16(static_cast<std::uint16_t>(moeinf::bits_of_float(weight) >> 16));
  }
  weights[7] = HUGE_VALF;
  Bytes data(bytes_of(weights), bytes_of(weights) + 4 * weights.size());
  CHECK(moeinf::narrow_in_place(data.data(), weights.size()));
  data.resize(2 * weights.size());
  CHECK(dequantised(Format::kNarrowF32, data) == weights);
  weights[512] = moeinf::float_of_bits(moeinf::bits_of_float(weights[512]) | 1);
  const Bytes before(bytes_of(weights), bytes_of(weights) + 4 * weights.size());
  Bytes after = before;
  CHECK(!moeinf::narrow_in_place(after.data(), weights.size()));
  CHECK(after == before);
}

TEST(weights_that_no_block_can_hold_are_refused) {
  for (const Format format : kQuantised) {
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 65505.0f, -1e30f}) {
      std::vector<float> weights(512, 1.0f);
      weights[301] = bad;
      CHECK(throws<std::invalid_argument>([&] { quantised(format, weights); }));
    }
  }
}

TEST(what_is_no_whole_number_of_blocks_or_no_way_between_formats_is_refused) {
  std::vector<float> weights(288, 1.0f);
  Bytes out(4096);
  const auto attempt = [&](Format to, Format from, std::int64_t cols) {
    return throws<std::invalid_argument>(
        [&] { moeinf::quantise(to, bytes_of(weights), from, 1, cols, out.data()); });
  };
  CHECK(attempt(Format::kQ4_K, Format::kF32, 288) && attempt(Format::kQ8_0, Format::kF32, 33));
  CHECK(attempt(Format::kBF16, Format::kF32, 32) && attempt(Format::kQ8_0, Format::kQ4_0, 32));
  CHECK(!attempt(Format::kQ8_0, Format::kF32, 288));
}

TEST(the_first_block_whose_scale_is_no_number_is_named) {
  const std::vector<float> weights = normal_weights(8 * 256);
  for (const Format format : kQuantised) {
    const Bytes sound = quantised(format, weights);
    const std::int64_t cols = 512, rows = 4, per_row = cols / moeinf::block_weights(format);
    CHECK(moeinf::first_bad_scale({sound.data(), format, rows, cols}) == -1);
    for (const std::int64_t block : {std::int64_t{0}, per_row + 1, rows * per_row - 1}) {
      Bytes spoilt = sound;
      unsigned char* at = spoilt.data() + static_cast<std::size_t>(block) * moeinf::block_bytes(format);
      if (format == Format::kMXFP4) {
        at[0] = 255;
      } else {
        at[format == Format::kQ4_K ? 3 : 1] = block % 2 ? 0x7c : 0xfe;  // infinity, or a NaN
      }
      CHECK(moeinf::first_bad_scale({spoilt.data(), format, rows, cols}) == block);
    }
  }
  const Bytes plain(64, 0xff);
  CHECK(moeinf::first_bad_scale({plain.data(), Format::kBF16, 1, 32}) == -1);
}

TEST(blocks_of_gpt_oss_are_taken_over_without_loss) {
  Bytes nibbles(3 * 16), scales = {120, 0, 254};
  for (std::size_t i = 0; i < nibbles.size(); ++i) nibbles[i] = static_cast<unsigned char>(i * 37 + 11);
  std::vector<moeinf::BlockMXFP4> blocks(3);
  moeinf::repack_mxfp4(nibbles.data(), scales.data(), 3, blocks.data());
  std::vector<float> found(96);
  moeinf::dequantise({reinterpret_cast<const unsigned char*>(blocks.data()), Format::kMXFP4, 3, 32},
                     found.data());
  for (std::size_t i = 0; i < 96; ++i) {
    const int nibble = i % 2 ? nibbles[i / 2] >> 4 : nibbles[i / 2] & 15;
    CHECK(found[i] == std::ldexp(moeinf::kMXFP4Values[nibble] / 2.0f, scales[i / 32] - 127));
  }
}
