// The few smallest of many scores, in one pass and without scratch memory: an eviction's choice, at every
// layer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace moeinf {

// Indices of the `wanted` smallest scores where `states` is `state`, but for those that are held, smallest
// first; of equals the lowest. Fewer where there are fewer. Scores that are NaN are below all others.
// is_held(index).
template <typename Held>
std::vector<std::int64_t> lowest(const double* scores, const std::uint8_t* states, std::size_t count,
                                 std::uint8_t state, const Held& is_held, std::size_t wanted) {
  std::vector<std::pair<double, std::int64_t>> found;  // a heap, the largest first
  if (wanted == 0) return {};
  // The largest of the heap once that is full. Until then no score is at least as large as it.
  double border = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t i = 0; i < count; ++i) {
    const auto there = static_cast<unsigned>(states[i] == state);
    if (!(there & static_cast<unsigned>(!(scores[i] >= border))))
      continue;  // one branch, which is rarely not taken
    const std::pair<double, std::int64_t> each(
        std::isnan(scores[i]) ? -std::numeric_limits<double>::infinity() : scores[i],
        static_cast<std::int64_t>(i));
    if (found.size() == wanted && !(each < found.front())) continue;
    if (is_held(each.second)) continue;
    if (found.size() == wanted) {
      std::pop_heap(found.begin(), found.end());
      found.pop_back();
    }
    found.push_back(each);
    std::push_heap(found.begin(), found.end());
    if (found.size() == wanted) border = found.front().first;
  }
  std::sort_heap(found.begin(), found.end());
  std::vector<std::int64_t> indices;
  indices.reserve(found.size());
  for (const auto& [score, index] : found) indices.push_back(index);
  return indices;
}

}  // namespace moeinf
