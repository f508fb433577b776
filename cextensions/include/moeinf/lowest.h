// The few smallest of many scores, in one pass and without scratch memory: an eviction's choice, at every
// layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace moeinf {

// Indices of the `wanted` smallest scores where `states` is `state`, but for those that are held, smallest
// first; of equals the lowest. Fewer where there are fewer. No score is infinite or NaN. is_held(index).
template <typename Held>
std::vector<std::int64_t> lowest(const double* scores, const std::uint8_t* states, std::size_t count,
                                 std::uint8_t state, const Held& is_held, std::size_t wanted) {
  std::vector<std::pair<double, std::int64_t>> found;  // a heap, the largest first
  double border =
      wanted == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < count; ++i) {
    const auto there = static_cast<unsigned>(states[i] == state);
    if (!(there & static_cast<unsigned>(scores[i] < border)))
      continue;  // one branch, which is rarely not taken
    const auto index = static_cast<std::int64_t>(i);
    if (is_held(index)) continue;
    if (found.size() == wanted) {
      std::pop_heap(found.begin(), found.end());
      found.pop_back();
    }
    found.emplace_back(scores[i], index);
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
