// Rounds columns in turn, so that later ones make up for what earlier ones have lost.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "expand.h"
#include "fit_scale.h"
#include "grid_forms.h"
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

constexpr int kRounds = 4;    // of choosing scales
constexpr int kTogether = 8;  // rows whose blocks of 32 quantise takes at once

// Rounds the blocks of neighbouring rows that lie in the same columns.
class Turn {
 public:
  Turn(Format format, RowSpan<const float> upper, Span<const float> importance)
      : format_(format),
        round_(rounding_of(format)),
        count_(static_cast<int>(block_weights(format))),
        upper_(upper),
        importance_(importance) {}

  // Of the columns from `start` on, weights, aims and errors of the first row; those of the next row lie
  // `stride` numbers behind them, and its block `bytes_of_row` behind `out`. Scales are chosen for what the
  // columns aim at in front of the block, and then for what they have aimed at, as long as that is better.
  void round(std::int64_t rows, std::int64_t start, const float* weights, std::int64_t stride,
             const float* aims, float* errors, unsigned char* out, std::size_t bytes_of_row) {
    double least[kTogether];
    std::fill_n(least, rows, HUGE_VAL);
    bool ended[kTogether] = {};
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(aims + r * kMostColumns, count_, aimed_ + r * count_);
    const std::size_t num_bytes = block_bytes(format_);
    for (int turn = 0; turn < kRounds; ++turn) {
      quantise(format_, reinterpret_cast<const unsigned char*>(aimed_), Format::kF32, rows, count_, blocks_,
               {importance_.data() + start, static_cast<std::size_t>(count_)});
      for (std::int64_t r = 0; r < rows; ++r) {
        if (ended[r]) continue;
        float* const aimed = aimed_ + r * count_;
        unsigned char* const block = blocks_ + static_cast<std::size_t>(r) * num_bytes;
        std::copy_n(aims + r * kMostColumns, count_, aimed);
        const double cost = (this->*round_)(weights + r * stride, aimed, start, block);
        ended[r] = !(cost < least[r]);
        if (ended[r]) continue;
        least[r] = cost;
        std::copy_n(lost_, count_, errors + r * stride);
        std::copy_n(block, num_bytes, out + static_cast<std::size_t>(r) * bytes_of_row);
      }
    }
  }

 private:
  // Rounds by the scales of the block; aims, to which what errors ask is added, end as what columns have
  // aimed at. Returns what it costs.
  using Rounding = double (Turn::*)(const float* weights, float* aims, std::int64_t start,
                                    unsigned char* block);

  static Rounding rounding_of(Format format) {
    switch (format) {
      case Format::kIQ3_S:
        return &Turn::points<FormIQ3_S>;
      case Format::kIQ3_XXS:
        return &Turn::points<FormIQ3_XXS>;
      case Format::kIQ2_S:
        return &Turn::points<FormIQ2_S>;
      case Format::kIQ2_XS:
        return &Turn::points<FormIQ2_XS>;
      case Format::kIQ2_XXS:
        return &Turn::points<FormIQ2_XXS>;
      default:
        coding_of(format);  // throws where there is none
        return &Turn::codes;
    }
  }

  double codes(const float* weights, float* aims, std::int64_t start, unsigned char* block) {
    const Coding coding = coding_of(format_);
    const Levels levels(format_, coding, block);
    double cost = 0;
    for (int i = 0; i < count_; ++i) {
      float became;
      coding.put(block, i, levels.nearest(coding, i, aims[i], &became));
      cost += settle(i, weights[i], became, aims, start);
    }
    return cost;
  }

  // Several columns become a point of a grid, or as many points as have their signs together: that whose
  // columns, one after the other, cost the least between them.
  template <class Form>
  double points(const float* weights, float* aims, std::int64_t start, unsigned char* block) {
    double cost = 0;
    for (int first = 0; first < count_; first += Form::kSigned) {
      const float scale = scale_of(block, Form::scale(block, first / Form::kGroup));
      const auto picked = [&](int parity, float limit) {
        return pick<Form>(weights + first, aims + first, start + first, scale, parity, limit);
      };
      auto best = picked(Form::kEven ? 0 : Form::Tree::kAny, HUGE_VALF);
      if (Form::kEven && Form::kSigned > Form::Tree::kDims) {  // two points with an odd number each
        const auto odd = picked(1, best.cost);
        if (odd.cost < best.cost) best = odd;
      }
      for (int p = 0; p < best.kPoints; ++p)
        Form::put_point(block, first / Form::Tree::kDims + p, best.points[p].index, best.points[p].signs);
      for (int k = 0; k < Form::kSigned; ++k)
        cost += settle(first + k, weights[first + k], best.became[k], aims, start);
    }
    return cost;
  }

  template <class Form>
  struct Picked {
    static constexpr int kPoints = Form::kSigned / Form::Tree::kDims;
    typename Form::Tree::Chosen points[kPoints];
    float became[Form::kSigned] = {}, cost = 0;
  };

  // Of the columns from `start` on, points of which each has the least cost behind those in front of it, as
  // far as they cost less than `limit` together.
  template <class Form>
  Picked<Form> pick(const float* weights, const float* aims, std::int64_t start, float scale, int parity,
                    float limit) const {
    constexpr int kDims = Form::Tree::kDims;
    const auto& tree = tree_of<Form>();
    const float inverse = scale > 0 ? 1 / scale : 0;
    float aimed[Form::kSigned];
    std::copy_n(aims, Form::kSigned, aimed);
    Picked<Form> picked;
    for (int first = 0; first < Form::kSigned; first += kDims) {
      typename Form::Tree::InTurn turn;
      turn.parity = parity;
      for (int k = 0; k < kDims; ++k) {
        turn.weights[k] = weights[first + k] * inverse;
        turn.aims[k] = aimed[first + k] * inverse;
        turn.importance[k] = importance_[static_cast<std::size_t>(start + first + k)];
        std::copy_n(upper_.row(start + first + k) + start + first, kDims, turn.owed[k]);
      }
      const float left = limit - picked.cost;
      const auto chosen = tree.nearest_in_turn(turn, left);
      if (!(chosen.cost < left)) {
        picked.cost = limit;
        return picked;
      }
      picked.cost += chosen.cost;
      for (int k = 0; k < kDims; ++k) {
        const float magnitude = scale * tree.point(chosen.index)[k];
        const float became = chosen.signs >> k & 1 ? -magnitude : magnitude;
        const float *const owed = upper_.row(start + first + k) + start, lost = weights[first + k] - became;
        for (int later = first + kDims; later < Form::kSigned; ++later) aimed[later] += lost * owed[later];
        picked.became[first + k] = became;
      }
      picked.points[first / kDims] = chosen;
    }
    return picked;
  }

  // Notes what column i has lost, and lets the later ones make up for it. Returns what it costs.
  double settle(int i, float weight, float became, float* aims, std::int64_t start) {
    lost_[i] = weight - became;
    const float off = aims[i] - became, *const owed = upper_.row(start + i) + start;
    for (int later = i + 1; later < count_; ++later) aims[later] += lost_[i] * owed[later];
    return static_cast<double>(importance_[static_cast<std::size_t>(start + i)]) * off * off;
  }

  Format format_;
  Rounding round_;
  int count_;
  RowSpan<const float> upper_;
  Span<const float> importance_;
  float aimed_[kTogether * kMostColumns], lost_[kMostColumns];
  unsigned char blocks_[kTogether * kMostColumns * 2];
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
  const std::size_t bytes_of_row = row_bytes(format, cols);
  float aims[kTogether][kMostColumns];
  for (std::int64_t first = 0; first < weights.rows; first += kTogether) {
    const std::int64_t rows = std::min<std::int64_t>(kTogether, weights.rows - first);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t k = 0; k < cols; ++k)
        aims[r][k] = weights.row(first + r)[k] + asked.row(first + r)[k];
    }
    for (std::int64_t start = 0; start < cols; start += count) {
      turn.round(rows, start, weights.row(first) + start, cols, aims[0] + start, errors.row(first) + start,
                 out + static_cast<std::size_t>(first) * bytes_of_row + row_bytes(format, start),
                 bytes_of_row);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t k = start; k < start + count; ++k) {
          const float error = errors.row(first + r)[k], *const owed = upper.row(k);
          for (std::int64_t later = start + count; later < cols; ++later)
            aims[r][later] += error * owed[later];
        }
      }
    }
  }
}

}  // namespace moeinf
