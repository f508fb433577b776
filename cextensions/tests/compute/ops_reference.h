// Random weights and activations, and their products in float64: what the inner loops are tested against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "moeinf/compute/formats/quantise.h"
#include "moeinf/compute/ops.h"

namespace moeinf {

inline std::vector<Format> all_formats() {
  std::vector<Format> formats;
  for (int f = 0; f < kNumFormats; ++f) formats.push_back(static_cast<Format>(f));
  return formats;
}
// What a sum in float may differ from the exact one, as a share of the sum of magnitudes.
constexpr double kTolerance = 1e-5;

struct Lines {  // 64-byte aligned, and no longer than asked for, so that ASan sees a read past the end
  explicit Lines(std::size_t num_bytes)
      : memory(static_cast<unsigned char*>(::operator new(num_bytes + 1, std::align_val_t{64}))) {}
  ~Lines() { ::operator delete(memory, std::align_val_t{64}); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  unsigned char* memory;
};

inline std::uint16_t bf16_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float rounded_to_bf16(float value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(bf16_of(value)) << 16;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline std::vector<float> random_floats(std::mt19937& random, std::int64_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// Where a block has float16 numbers.
inline std::vector<std::size_t> halves_of(Format format) {
  switch (format) {
    case Format::kMXFP4:
    case Format::kNVFP4:
    case Format::kIQ1_M:
      return {};
    case Format::kQ4_K:
    case Format::kQ5_K:
    case Format::kQ4_1:
    case Format::kQ5_1:
      return {0, 2};
    case Format::kQ2_K:
      return {80, 82};
    case Format::kQ3_K:
      return {108};
    case Format::kQ6_K:
      return {208};
    case Format::kTQ1_0:
      return {52};
    case Format::kTQ2_0:
      return {64};
    default:
      return {0};
  }
}

// Any bytes are weights; only scales are chosen, so that no sum drowns in another.
inline void set_scales(std::mt19937& random, Format format, unsigned char* block) {
  const auto half = [&] {
    return static_cast<std::uint16_t>(0x2000 + random() % 0x0c00 + (random() % 2 << 15));
  };
  for (const std::size_t at : halves_of(format)) {
    const std::uint16_t number = half();
    std::memcpy(block + at, &number, 2);
  }
  if (format == Format::kMXFP4) block[0] = static_cast<unsigned char>(120 + random() % 8);
  for (int s = 0; format == Format::kNVFP4 && s < 4; ++s)
    block[s] = static_cast<unsigned char>(24 + random() % 32);
  const std::uint16_t d = half();
  for (int i = 0; format == Format::kIQ1_M && i < 4; ++i) {  // nibbles above the scales
    block[49 + 2 * i] = static_cast<unsigned char>((block[49 + 2 * i] & 15) | (d >> (4 * i) & 15) << 4);
  }
}

struct TestMatrix {
  TestMatrix(std::mt19937& random, Format format, std::int64_t rows, std::int64_t cols)
      : bytes(row_bytes(format, cols) * static_cast<std::size_t>(rows)),
        view{bytes.data(), format, rows, cols} {
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const std::vector<float> values = random_floats(random, block_weights(format) == 1 ? rows * cols : 0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t half = format == Format::kBF16 || format == Format::kNarrowF32
                                     ? bf16_of(values[i])
                                     : static_cast<std::uint16_t>(random() % 0x3c00 + (i % 2 << 15));
      if (format == Format::kF32)
        std::memcpy(&bytes[4 * i], &values[i], 4);
      else
        std::memcpy(&bytes[2 * i], &half, 2);
    }
    if (values.empty()) {
      for (std::size_t at = 0; at < bytes.size(); at += block_bytes(format))
        set_scales(random, format, &bytes[at]);
    }
  }

  std::vector<float> dequantised() const {
    std::vector<float> out(static_cast<std::size_t>(view.rows * view.cols));
    dequantise(view, out.data());
    return out;
  }

  std::vector<unsigned char> bytes;
  Matrix view;
};

// What `prepare` makes of x, as floats again.
inline std::vector<float> prepared_values(ActivationKind kind, const std::vector<float>& x) {
  std::vector<float> out = x;
  if (kind == ActivationKind::kBF16 || kind == ActivationKind::kTiles) {
    for (float& value : out) value = rounded_to_bf16(value);
  }
  for (std::size_t b = 0; kind == ActivationKind::kInt8 && b < x.size(); b += 32) {
    float largest = 0;
    for (std::size_t i = b; i < b + 32; ++i) largest = std::fmax(largest, std::fabs(x[i]));
    for (std::size_t i = b; i < b + 32; ++i) {
      out[i] = largest == 0 ? 0 : largest / 127.0f * std::nearbyint(x[i] * (127.0f / largest));
    }
  }
  return out;
}

struct Reference {
  std::vector<double> sums, magnitudes;  // [num_x, rows]
};

inline Reference reference(const Matrix& w, std::vector<float> weights, ActivationKind kind,
                           const std::vector<float>& x) {
  if (kind == ActivationKind::kTiles) {
    for (float& weight : weights) weight = rounded_to_bf16(weight);
  }
  const std::size_t cols = static_cast<std::size_t>(w.cols), rows = static_cast<std::size_t>(w.rows);
  Reference out;
  for (std::size_t i = 0; i < x.size() / cols; ++i) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i * cols);
    const std::vector<float> row = prepared_values(kind, {begin, begin + w.cols});
    for (std::size_t r = 0; r < rows; ++r) {
      double sum = 0, magnitude = 0;
      for (std::size_t c = 0; c < cols; ++c) {
        const double product = static_cast<double>(weights[r * cols + c]) * static_cast<double>(row[c]);
        sum += product;
        magnitude += std::fabs(product);
      }
      out.sums.push_back(sum);
      out.magnitudes.push_back(magnitude);
    }
  }
  return out;
}

inline void prepare_all(const Ops& ops, ActivationKind kind, const std::vector<float>& x, std::int64_t cols,
                        unsigned char* out) {
  const std::size_t count = x.size() / static_cast<std::size_t>(cols);
  std::vector<const float*> rows;
  for (std::size_t i = 0; i < count; ++i) rows.push_back(x.data() + i * static_cast<std::size_t>(cols));
  const std::size_t at_once = kind == ActivationKind::kTiles ? kTileActivations : 1;
  for (std::size_t i = 0; i < count; i += at_once, out += at_once * activation_bytes(kind, cols)) {
    if (kind == ActivationKind::kTiles) {
      ops.prepare_tile(&rows[i], static_cast<int>(std::min(at_once, count - i)), cols, out);
    } else {
      ops.prepare(kind, rows[i], cols, out);
    }
  }
}

enum class By { kRows, kTiles };  // dot_rows; or multiply_tiles where there is one, else matmul_rows

inline ActivationKind kind_of(const Ops& ops, Format format, By by) {
  const ActivationKind kind = activation_of(format);
  const bool tiles = by == By::kTiles && ops.multiply_tiles != nullptr && kind != ActivationKind::kF32;
  return tiles ? ActivationKind::kTiles : kind;
}

// [num_x, rows], the rows split at `split`.

inline std::vector<float> product(const Ops& ops, const Matrix& w, const std::vector<float>& x, By by,
                                  std::int64_t split = 0) {
  const std::int64_t num_x = static_cast<std::int64_t>(x.size()) / w.cols;
  const ActivationKind kind = kind_of(ops, w.format, by);
  const Lines prepared(activation_bytes(kind, w.cols) * static_cast<std::size_t>(num_x));
  const Lines scratch(kind == ActivationKind::kTiles ? tile_scratch_bytes(w.cols)
                                                     : matmul_scratch_bytes(w.cols));
  prepare_all(ops, kind, x, w.cols, prepared.memory);
  std::vector<float> y(static_cast<std::size_t>(num_x * w.rows), std::numeric_limits<float>::quiet_NaN());
  for (const auto& [first, last] : {std::pair{std::int64_t{0}, split}, std::pair{split, w.rows}}) {
    if (kind == ActivationKind::kTiles)
      ops.multiply_tiles(w, first, last, prepared.memory, num_x, scratch.memory, y.data(), w.rows);
    else if (by == By::kTiles)
      ops.matmul_rows(w, first, last, prepared.memory, num_x, scratch.memory, y.data(), w.rows);
    else
      ops.dot_rows(w, first, last, prepared.memory, static_cast<int>(num_x), y.data(), w.rows);
  }
  return y;
}

inline bool close(const std::vector<float>& y, const Reference& expected) {
  for (std::size_t i = 0; i < y.size(); ++i) {
    if (!(std::fabs(static_cast<double>(y[i]) - expected.sums[i]) <= kTolerance * expected.magnitudes[i]))
      return false;
  }
  return y.size() == expected.sums.size();
}

}  // namespace moeinf
