// Rounds columns in turn, so that later ones make up for what earlier ones have lost.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "expand.h"
#include "fit_scale.h"
#include "moeinf/compute/formats/quantise.h"
#include "put_code.h"

namespace moeinf {

namespace {

constexpr int kMostColumns = 256;

// The codes of a format: whole numbers, between which weights lie at equal distances, or at those of iq4_nl.
struct Coding {
  int lowest, highest;
  void (*put)(unsigned char* block, int i, int code);
  bool of_table = false;
};

Coding coding_of(Format format) {
  switch (format) {
    case Format::kQ8_0:
      return {-127, 127, put_q8_0};
    case Format::kQ4_0:
      return {0, 15, put_q4_0};
    case Format::kQ4_1:
      return {0, 15, put_q4_1};
    case Format::kQ5_0:
      return {0, 31, put_q5_0};
    case Format::kQ5_1:
      return {0, 31, put_q5_1};
    case Format::kQ2_K:
      return {0, 3, put_q2_k};
    case Format::kQ3_K:
      return {0, 7, put_q3_k};
    case Format::kQ4_K:
      return {0, 15, put_q4_k};
    case Format::kQ5_K:
      return {0, 31, put_q5_k};
    case Format::kQ6_K:
      return {0, 63, put_q6_k};
    case Format::kIQ4_NL:
      return {0, 15, put_q4_0, true};
    case Format::kIQ4_XS:
      return {0, 15, put_iq4_xs, true};
    default:
      throw std::invalid_argument(std::string("the codes of ") + name_of(format) + " are not known");
  }
}

// What a block's weights may become by the scales that it has.
struct Levels {
  float zero[kMostColumns],
      step[kMostColumns];  // the weight of code c is zero + c * step, or value[c] * step

  Levels(Format format, const Coding& coding, unsigned char* block) {
    const int count = static_cast<int>(block_weights(format));
    for (int i = 0; i < count; ++i) coding.put(block, i, 0);
    expand_block(format, block, zero);
    for (int i = 0; i < count; ++i) coding.put(block, i, 1);
    expand_block(format, block, step);
    const float apart = coding.of_table ? static_cast<float>(kIQ4NLValues[1] - kIQ4NLValues[0]) : 1.0f;
    for (int i = 0; i < count; ++i) step[i] = (step[i] - zero[i]) / apart;
  }

  // The nearest code to x, and its weight.
  int nearest(const Coding& coding, int i, float x, float* weight) const {
    if (coding.of_table) {
      const float value = step[i] != 0 ? x / step[i] : 0;
      int code = 0;
      for (const float border : lanes::kIQ4NLBorders) code += value > border;
      *weight = static_cast<float>(kIQ4NLValues[code]) * step[i];
      return code;
    }
    const float units = step[i] != 0 ? std::nearbyint((x - zero[i]) / step[i]) : 0;
    const float code =
        std::clamp(units, static_cast<float>(coding.lowest), static_cast<float>(coding.highest));
    *weight = zero[i] + code * step[i];
    return static_cast<int>(code);
  }
};

constexpr int kRounds = 4;  // of choosing scales

// One block of a row after the other.
class Turn {
 public:
  Turn(Format format, RowSpan<const float> upper, Span<const float> importance)
      : format_(format), coding_(coding_of(format)), upper_(upper), importance_(importance) {}

  // Scales are chosen for what the columns aim at in front of the block, and then for what they have aimed
  // at, as long as that is better.
  void round(const float* weights, const float* aims, std::int64_t start, float* errors, unsigned char* out) {
    const std::int64_t count = block_weights(format_);
    unsigned char block[kMostColumns * 2];
    float lost[kMostColumns], aimed[kMostColumns];
    double least = HUGE_VAL;
    std::copy_n(aims, count, aimed);
    for (int turn = 0; turn < kRounds; ++turn) {
      quantise(format_, reinterpret_cast<const unsigned char*>(aimed), Format::kF32, 1, count, block,
               {importance_.data() + start, static_cast<std::size_t>(count)});
      std::copy_n(aims, count, aimed);
      const double cost = codes(weights, aimed, start, lost, block);
      if (!(cost < least)) return;
      least = cost;
      std::copy_n(lost, count, errors);
      std::copy_n(block, block_bytes(format_), out);
    }
  }

 private:
  // Rounds by the scales of the block; aims, to which what errors ask is added, end as what columns have
  // aimed at.
  double codes(const float* weights, float* aims, std::int64_t start, float* errors,
               unsigned char* block) const {
    const int count = static_cast<int>(block_weights(format_));
    const Levels levels(format_, coding_, block);
    double cost = 0;
    for (int i = 0; i < count; ++i) {
      float became;
      coding_.put(block, i, levels.nearest(coding_, i, aims[i], &became));
      errors[i] = weights[i] - became;
      const float off = aims[i] - became;
      cost += static_cast<double>(importance_[static_cast<std::size_t>(start + i)]) * off * off;
      const float* const owed = upper_.row(start + i) + start;
      for (int later = i + 1; later < count; ++later) aims[later] += errors[i] * owed[later];
    }
    return cost;
  }

  Format format_;
  Coding coding_;
  RowSpan<const float> upper_;
  Span<const float> importance_;
};

}  // namespace

void quantise_in_turn(Format format, RowSpan<const float> weights, RowSpan<const float> asked,
                      RowSpan<const float> upper, Span<const float> importance, RowSpan<float> errors,
                      unsigned char* out) {
  const std::int64_t cols = weights.cols, count = block_weights(format);
  if (cols > kMostColumns || cols % count != 0)
    throw std::invalid_argument(std::to_string(cols) + " columns are no whole blocks of " + name_of(format) +
                                ", or more than " + std::to_string(kMostColumns));
  Turn turn(format, upper, importance);
  float aims[kMostColumns];
  for (std::int64_t row = 0; row < weights.rows; ++row) {
    const float *weight = weights.row(row), *more = asked.row(row);
    for (std::int64_t k = 0; k < cols; ++k) aims[k] = weight[k] + more[k];
    for (std::int64_t start = 0; start < cols; start += count, out += block_bytes(format)) {
      float* const error = errors.row(row) + start;
      turn.round(weight + start, aims + start, start, error, out);
      for (std::int64_t k = start; k < start + count; ++k) {
        const float* const owed = upper.row(k);
        for (std::int64_t later = start + count; later < cols; ++later)
          aims[later] += error[k - start] * owed[later];
      }
    }
  }
}

}  // namespace moeinf
