#include "moeinf/cache/slice_order.h"

#include <algorithm>
#include <numeric>

namespace moeinf {

SliceOrder::SliceOrder(const Keys& keys, std::size_t num_experts, const Keys& absent)
    : least_(keys.empty() ? 0 : *std::min_element(keys.begin(), keys.end())), here_(keys.size(), false) {
  const std::size_t of_each = num_experts == 0 ? 0 : keys.size() / num_experts;
  Keys lost = absent;
  std::sort(lost.begin(), lost.end());
  std::vector<std::size_t> experts(num_experts), missing(num_experts, 0);
  std::iota(experts.begin(), experts.end(), 0);
  for (std::size_t i = 0; i < keys.size(); ++i)
    missing[i / of_each] += std::binary_search(lost.begin(), lost.end(), keys[i]);
  std::stable_sort(experts.begin(), experts.end(),
                   [&](std::size_t a, std::size_t b) { return missing[a] < missing[b]; });
  order_.reserve(keys.size());
  for (const std::size_t expert : experts) {
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(expert * of_each);
    order_.insert(order_.end(), first, first + static_cast<std::ptrdiff_t>(of_each));
  }
  if (keys.empty()) return;
  places_.resize(static_cast<std::size_t>(*std::max_element(keys.begin(), keys.end()) - least_) + 1);
  for (std::size_t place = 0; place < order_.size(); ++place)
    places_[static_cast<std::size_t>(order_[place] - least_)] = place;
}

void SliceOrder::sort(Keys& keys) const {
  std::sort(keys.begin(), keys.end(),
            [this](std::int64_t a, std::int64_t b) { return place_of(a) < place_of(b); });
}

void SliceOrder::hand_out(Keys& ready) {
  for (; next_ < order_.size() && here_[next_]; ++next_) {
    ready.push_back(order_[next_]);
    here_[next_] = false;
  }
}

std::int64_t SliceOrder::give_up() {
  for (std::size_t place = order_.size(); place-- > next_;) {
    if (!here_[place]) continue;
    here_[place] = false;
    return order_[place];
  }
  return kNoKey;
}

}  // namespace moeinf
