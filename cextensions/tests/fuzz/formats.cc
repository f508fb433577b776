// Blocks of weights, and numbers of a cache: what every instruction set makes of them, beside the plain
// reading.
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>

#include "check.h"
#include "compute/formats/half.h"
#include "compute/ops_reference.h"
#include "fuzz/targets.h"
#include "moeinf/compute/formats/quantise.h"
#include "moeinf/compute/ops.h"

namespace moeinf::fuzz {
namespace {

constexpr std::size_t kMostBlocks = 4;

const std::vector<const Ops*>& all_ops() {
  static const std::vector<const Ops*> all = [] {
    std::vector<const Ops*> found;
    for (const std::string& isa : available_isas()) found.push_back(&ops_for(isa));
    return found;
  }();
  return all;
}

std::vector<float> dequantised(const Matrix& matrix) {
  std::vector<float> out(static_cast<std::size_t>(matrix.rows * matrix.cols));
  dequantise(matrix, out.data());
  return out;
}

bool all_finite(const float* begin, std::int64_t count) {
  return std::all_of(begin, begin + count, [](float weight) { return std::isfinite(weight); });
}

// Whether two numbers are the same bits, or both no number.
bool same(float one, float other) {
  return bits_of_float(one) == bits_of_float(other) || (std::isnan(one) && std::isnan(other));
}

// Whether a byte of a block is a part of its scales that no other byte changes.
bool is_of_scale(Format format, std::size_t at) {
  if (format == Format::kMXFP4) return at == 0;
  if (format == Format::kNVFP4) return at < 4;
  if (format == Format::kIQ1_M) return at >= 48;
  const std::vector<std::size_t> halves = halves_of(format);
  return std::any_of(halves.begin(), halves.end(), [at](std::size_t half) { return at / 2 == half / 2; });
}

// What the weights of each block might be at most, whatever its codes are: products of integers are only as
// exact as that, also where they make up zero.
std::vector<float> most_of(const Matrix& w) {
  const std::vector<float> weights = dequantised(w);
  std::vector<float> most(weights.size());
  for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::fabs(weights[i]);
  const auto per_block = static_cast<std::size_t>(block_weights(w.format));
  const std::size_t size = block_bytes(w.format);
  for (std::size_t block = 0; per_block > 1 && block < most.size() / per_block; ++block) {
    float largest = 0;
    for (const int fill : {0x00, 0xff, 0x77, 0x88, 0x5a, 0xc3}) {
      std::vector<unsigned char> bytes(w.data + block * size, w.data + (block + 1) * size);
      for (std::size_t at = 0; at < size; ++at)
        if (!is_of_scale(w.format, at)) bytes[at] = static_cast<unsigned char>(fill);
      for (const float weight : dequantised({bytes.data(), w.format, 1, block_weights(w.format)}))
        largest = std::fmax(largest, std::fabs(weight));
    }
    for (std::size_t i = block * per_block; i < (block + 1) * per_block; ++i)
      most[i] = std::fmax(most[i], largest);
  }
  return most;
}

// Products with one row of activations or several are those of the plain reading, but for what float sums
// lose.
void check_products(const Matrix& w, const Ops& ops, By by, std::int64_t num_x, std::uint32_t seed) {
  const std::vector<float> weights = dequantised(w);
  const auto is_vast = [](float weight) { return std::fabs(weight) > 1e30f; };
  const std::vector<float> most = most_of(w);
  if (std::any_of(most.begin(), most.end(), is_vast)) return;  // whose products with integers overflow
  std::vector<float> x(static_cast<std::size_t>(num_x * w.cols));
  for (float& each : x) {
    seed = seed * 1664525 + 1013904223;
    each = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-30f;
  }
  const std::vector<float> found = product(ops, w, x, by);
  const ActivationKind kind = kind_of(ops, w.format, by);
  const Reference expected = reference(w, weights, kind, x), bound = reference(w, most, kind, x);
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(std::fabs(static_cast<double>(found[i]) - expected.sums[i]) <=
          kTolerance * bound.magnitudes[i] + 1e-35);
  }
}

}  // namespace

// A byte for the format, one for the instruction set, one for how activations come, then whole blocks.
void blocks(Input input) {
  const auto format = static_cast<Format>(input.below(kNumFormats));
  const Ops& ops = *all_ops()[input.below(all_ops().size())];
  const auto how = input.number<std::uint8_t>();
  const auto bytes = input.numbers<unsigned char>(4096);
  const std::size_t size = block_bytes(format), most = block_weights(format) == 1 ? 70 : kMostBlocks;
  const std::size_t num_blocks = std::min(most, bytes.size() / size);
  if (num_blocks == 0) return;
  const std::int64_t rows = how % 2 && num_blocks % 2 == 0 ? 2 : 1;
  const auto cols = static_cast<std::int64_t>(num_blocks) / rows * block_weights(format);
  const std::vector<unsigned char> data(bytes.begin(),
                                        bytes.begin() + static_cast<std::ptrdiff_t>(num_blocks * size));
  const Matrix w = {data.data(), format, rows, cols};
  const std::vector<float> found = dequantised(w);
  const std::int64_t first_bad = first_bad_scale(w);
  std::int64_t first_infinite = -1;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(num_blocks) && first_infinite < 0; ++b)
    if (!all_finite(&found[static_cast<std::size_t>(b * block_weights(format))], block_weights(format)))
      first_infinite = b;
  if (format != Format::kMXFP4 && block_weights(format) > 1) CHECK(first_bad == first_infinite);
  if (first_infinite < 0)
    check_products(w, ops, how & 2 ? By::kTiles : By::kRows, 1 + (how >> 2) % kMaxDotRows, how);
}

// A byte for the format, one for that of the numbers, and one for how they are taken; then the numbers.
void weights(Input input) {
  static constexpr Format kWritten[] = {Format::kQ8_0,  Format::kQ4_0, Format::kQ4_1,  Format::kQ5_0,
                                        Format::kQ5_1,  Format::kQ2_K, Format::kQ3_K,  Format::kQ4_K,
                                        Format::kQ5_K,  Format::kQ6_K, Format::kMXFP4, Format::kIQ4_NL,
                                        Format::kIQ4_XS};
  static constexpr Format kSources[] = {Format::kF32, Format::kF16, Format::kBF16};
  const Format format = kWritten[input.below(std::size(kWritten))], from = kSources[input.below(3)];
  const auto how = input.number<std::uint8_t>();
  auto bytes = input.numbers<unsigned char>(4096);
  const auto step = static_cast<std::size_t>(block_weights(format));
  const std::size_t count = std::min(bytes.size() / block_bytes(from), 2 * step) / step * step;
  if (count == 0) return;
  bytes.resize(count * block_bytes(from));
  const auto cols = static_cast<std::int64_t>(count);
  const std::vector<float> given = dequantised({bytes.data(), from, 1, cols});
  const bool sound =
      std::all_of(given.begin(), given.end(), [](float x) { return std::fabs(x) <= kLargestWeight; });
  std::vector<float> importance(how % 2 ? count : 0);
  for (std::size_t i = 0; i < importance.size(); ++i)
    importance[i] = std::ldexp(1.0f, static_cast<int>((i * how) % 31) - 15);
  std::vector<unsigned char> out(row_bytes(format, cols));
  try {
    quantise(format, bytes.data(), from, 1, cols, out.data(), importance);
  } catch (const std::invalid_argument&) {
    CHECK(!sound);
    return;
  }
  CHECK(sound);
  const Matrix made = {out.data(), format, 1, cols};
  CHECK(first_bad_scale(made) == -1);
  const std::vector<float> found = dequantised(made);
  for (std::size_t block = 0; block < count; block += step) {
    float largest = 0;
    for (std::size_t i = block; i < block + step; ++i) largest = std::fmax(largest, std::fabs(given[i]));
    for (std::size_t i = block; i < block + step; ++i) CHECK(std::fabs(found[i]) <= 3 * largest + 1e-4f);
    std::vector<unsigned char> alone(block_bytes(format));
    quantise(format, bytes.data() + block * block_bytes(from), from, 1, static_cast<std::int64_t>(step),
             alone.data(),
             importance.empty() ? Span<const float>() : Span<const float>(importance.data() + block, step));
    CHECK(std::equal(alone.begin(), alone.end(),
                     out.begin() + static_cast<std::ptrdiff_t>(block / step * alone.size())));
  }
}

// A byte for the format, one for the instruction set; then numbers, and their bytes once more as kept ones.
void kept(Input input) {
  static constexpr Format kFormats[] = {Format::kF32, Format::kF16, Format::kBF16, Format::kQ8_0};
  const Format format = kFormats[input.below(4)];
  const Ops& ops = *all_ops()[input.below(all_ops().size())];
  const auto bytes = input.numbers<unsigned char>(2048);
  const auto unit = static_cast<std::size_t>(block_weights(format));
  const std::size_t num_kept = bytes.size() / block_bytes(format) * unit;
  std::vector<float> widened(num_kept);
  const std::vector<unsigned char> rows(
      bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(num_kept / unit * block_bytes(format)));
  ops.widen_kv(format, rows.data(), static_cast<std::int64_t>(num_kept), widened.data());
  const std::vector<float> plain = dequantised({rows.data(), format, 1, static_cast<std::int64_t>(num_kept)});
  for (std::size_t i = 0; i < num_kept; ++i) CHECK(same(widened[i], plain[i]));

  std::vector<float> x(bytes.size() / sizeof(float) / unit * unit);
  if (x.empty()) return;
  std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
  std::vector<unsigned char> stored(row_bytes(format, static_cast<std::int64_t>(x.size())));
  ops.store_kv(format, x.data(), static_cast<std::int64_t>(x.size()), stored.data());
  const std::vector<float> found =
      dequantised({stored.data(), format, 1, static_cast<std::int64_t>(x.size())});
  for (std::size_t i = 0; i < x.size() && format != Format::kQ8_0; ++i) {
    CHECK(same(found[i], format == Format::kF16    ? float_of_half(half_of_float(x[i]))
                         : format == Format::kBF16 ? float_of_bfloat16(bfloat16_of_float(x[i]))
                                                   : x[i]));
  }
  for (std::size_t block = 0; format == Format::kQ8_0 && block < x.size(); block += unit) {
    float largest = 0;
    for (std::size_t i = block; i < block + unit; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    if (!all_finite(&x[block], 32) || largest > kLargestWeight) continue;
    // Half of a step is lost, and what rounding the scale to float16 takes of 127 of them.
    const float lost = largest / 127 * 0.51f + 127 * 0x1p-25f + largest * 0x1.1p-11f;
    for (std::size_t i = block; i < block + unit; ++i) CHECK(std::fabs(found[i] - x[i]) <= lost);
  }
}

}  // namespace moeinf::fuzz
