#include "moeinf/sampling/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace moeinf {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kFew = 1024;  // scores that are sorted
constexpr std::int64_t kRow = 1024;  // scores that are looked at one by one for the draw

float above(float score) { return std::nextafter(score, kInfinity); }

// What passes: scores above `score`, and those equal to it with an index below `equal_end`.
struct Border {
  float score;
  std::int64_t equal_end;
};

class Choice {
 public:
  Choice(const Ops& ops, const float* scores, std::int64_t count, std::vector<float>& weights,
         std::vector<std::int32_t>& found)
      : ops_(ops), scores_(scores), count_(count), weights_(weights), found_(found) {
    if (static_cast<std::int64_t>(weights_.size()) < count) {
      weights_.resize(static_cast<std::size_t>(count));
      found_.resize(static_cast<std::size_t>(count));
    }
    largest_ = ops_.largest_score(scores_, count_);
  }

  std::int64_t run(const Draw& draw) {
    Border border = {-kInfinity, count_};
    if (draw.top_p < 1) {
      weigh(1);
      border = leading(draw.top_p);
    }
    const float floor = draw.min_p > 0 ? largest_ + std::log(draw.min_p) : -kInfinity;
    if (floor > border.score) border = {floor, count_};
    if (draw.top_p >= 1 || draw.temperature != 1) weigh(draw.temperature);
    return fallen_on(draw.uniform, border);
  }

 private:
  void weigh(float temperature) {
    ops_.weigh_scores(scores_, count_, largest_, 1 / std::max(temperature, 1e-30f), weights_.data());
  }

  // The border of top_p. The sum of weights from a score on is bracketed, by four scores a pass, until few
  // lie in the bracket: none of them weighs less than its lower end.
  Border leading(double share) {
    float low = -kInfinity, high = kInfinity;
    float floors[kScoreFloors] = {-kInfinity, largest_ - 12, largest_ - 6, largest_ - 2};
    double sums[kScoreFloors], from_low = 0, from_high = 0, target = 0;
    for (bool first = true;; first = false) {
      ops_.sum_from(scores_, weights_.data(), count_, floors, kScoreFloors, sums);
      if (first) target = std::max(share * sums[0], std::numeric_limits<double>::min());  // one passes always
      int k = 0;
      for (; k < kScoreFloors && sums[k] >= target; ++k) {
        low = floors[k];
        from_low = sums[k];
      }
      if (k < kScoreFloors) {
        high = floors[k];
        from_high = sums[k];
      }
      const float bottom = std::max(low, largest_ - 81), top = std::min(high, above(largest_));
      if (from_low - from_high <= kFew * std::exp(static_cast<double>(bottom - largest_))) break;
      const float step = (top - bottom) / (kScoreFloors + 1);
      for (k = 0; k < kScoreFloors; ++k) floors[k] = bottom + step * static_cast<float>(k + 1);
      if (!(floors[0] > low && floors[kScoreFloors - 1] < high)) break;  // nearly all of these are equal
    }
    return border_within(low, high, from_high, target);
  }

  Border border_within(float low, float high, double reached, double target) {
    const std::int64_t num_found = ops_.scores_between(scores_, count_, low, high, found_.data());
    const auto begin = found_.begin(), end = begin + num_found;
    std::sort(begin, end, [&](std::int32_t a, std::int32_t b) {
      return scores_[a] != scores_[b] ? scores_[a] > scores_[b] : a < b;
    });
    auto last = begin;
    for (;; ++last) {
      reached += static_cast<double>(weights_[static_cast<std::size_t>(*last)]);
      if (reached >= target || last + 1 == end) break;
    }
    return {scores_[*last], *last + 1};
  }

  double sum_between(std::int64_t begin, std::int64_t end, float floor) const {
    double sum;
    ops_.sum_from(scores_ + begin, weights_.data() + begin, end - begin, &floor, 1, &sum);
    return sum;
  }

  std::int64_t fallen_on(double uniform, const Border& border) {
    double total = 0;
    std::vector<double>& ends = ends_;
    ends.clear();
    for (std::int64_t begin = 0; begin < count_; begin += kRow) {
      const std::int64_t end = std::min(begin + kRow, count_), cut = std::clamp(border.equal_end, begin, end);
      if (begin < cut) total += sum_between(begin, cut, border.score);
      if (cut < end) total += sum_between(cut, end, above(border.score));
      ends.push_back(total);
    }
    const auto row = std::min(std::upper_bound(ends.begin(), ends.end(), uniform * total),
                              std::lower_bound(ends.begin(), ends.end(), total));
    const std::int64_t begin = (row - ends.begin()) * kRow, end = std::min(begin + kRow, count_);
    double left = uniform * total - (row == ends.begin() ? 0 : *(row - 1));
    std::int64_t drawn = begin;
    for (std::int64_t i = begin; i < end; ++i) {
      const float weight = weights_[static_cast<std::size_t>(i)];
      const bool passes = scores_[i] > border.score || (scores_[i] == border.score && i < border.equal_end);
      if (!passes || weight == 0) continue;
      drawn = i;
      left -= static_cast<double>(weight);
      if (left < 0) break;
    }
    return drawn;
  }

  const Ops& ops_;
  const float* scores_;
  std::int64_t count_;
  std::vector<float>& weights_;
  std::vector<std::int32_t>& found_;
  std::vector<double> ends_;
  float largest_;
};

}  // namespace

std::int64_t draw_token(const Ops& ops, const float* scores, std::int64_t count, const Draw& draw) {
  thread_local std::vector<float> weights;
  thread_local std::vector<std::int32_t> found;
  return Choice(ops, scores, count, weights, found).run(draw);
}

}  // namespace moeinf
