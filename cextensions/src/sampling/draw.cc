#include "moeinf/sampling/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

namespace moeinf {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr std::int64_t kFew = 1024;  // scores that are sorted
constexpr std::int64_t kRow = 1024;  // scores that are looked at one by one for the draw
constexpr float kLeastTemperature = 1e-30f;

float above(float score) { return std::nextafter(score, kInfinity); }

// What passes: scores above `score`, and those equal to it with an index below `equal_end`.
struct Border {
  float score;
  std::int64_t equal_end;
};

template <class T>
void grow(std::vector<T>& memory, std::int64_t count) {
  if (static_cast<std::int64_t>(memory.size()) < count) memory.resize(static_cast<std::size_t>(count));
}

class Choice {
 public:
  Choice(const Ops& ops, const float* scores, std::int64_t count, float largest, float temperature,
         std::vector<float>& weights, std::vector<std::int32_t>& found)
      : ops_(ops),
        scores_(scores),
        count_(count),
        largest_(largest),
        temperature_(std::max(temperature, kLeastTemperature)),
        weights_(weights),
        found_(found) {
    grow(weights_, count);
    grow(found_, count);  // by itself: the memory for it may have been missing when the weights had grown
  }

  std::int64_t run(const Draw& draw) {
    ops_.weigh_scores(scores_, count_, largest_, 1 / temperature_, weights_.data());
    Border border = {-kInfinity, count_};
    if (draw.top_p < 1) border = leading(draw.top_p);
    const float floor = draw.min_p > 0 ? below_largest(-std::log(draw.min_p)) : -kInfinity;
    if (floor > border.score) border = {floor, count_};
    return fallen_on(draw.uniform, border);
  }

 private:
  // The score whose weight is e^-powers.
  float below_largest(float powers) const { return largest_ - powers * temperature_; }

  // The border of top_p. The sum of weights from a score on is bracketed, by four scores a pass, until few
  // lie in the bracket: none of them weighs less than its lower end.
  Border leading(double share) {
    float low = -kInfinity, high = kInfinity;
    float floors[kScoreFloors] = {-kInfinity, below_largest(12), below_largest(6), below_largest(2)};
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
      const float bottom = std::max({low, below_largest(81), kLowest}), top = std::min(high, above(largest_));
      if (from_low - from_high <= kFew * std::exp(static_cast<double>((bottom - largest_) / temperature_)))
        break;
      const float step =
          top / (kScoreFloors + 1) - bottom / (kScoreFloors + 1);  // as top - bottom may be infinite
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
  float largest_, temperature_;
  std::vector<float>& weights_;
  std::vector<std::int32_t>& found_;
  std::vector<double> ends_;
};

void refuse_unless(bool right, const char* wrong) {
  if (!right) throw std::invalid_argument(wrong);
}

}  // namespace

std::int64_t draw_token(const Ops& ops, Span<const float> all, const Draw& draw) {
  const float* const scores = all.data();
  const auto count = static_cast<std::int64_t>(all.size());
  refuse_unless(count > 0, "there are no scores");
  refuse_unless(draw.temperature >= 0 && draw.temperature < kInfinity,
                "the temperature is no number from 0 on");
  refuse_unless(draw.top_p >= 0, "top_p is no number from 0 on");
  refuse_unless(draw.min_p <= 1, "min_p is no number up to 1");
  refuse_unless(draw.uniform >= 0 && draw.uniform <= 1, "the drawn number is not between 0 and 1");
  const float largest = ops.largest_score(scores, count);
  refuse_unless(std::isfinite(largest), "a score is NaN or infinite, or all are minus infinity");
  thread_local std::vector<float> weights;
  thread_local std::vector<std::int32_t> found;
  return Choice(ops, scores, count, largest, draw.temperature, weights, found).run(draw);
}

}  // namespace moeinf
