// Which absent experts of the layers ahead are likeliest to be used, in one pass: a prefetch's choice, at
// every layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moeinf {

struct RankedPrefetches {
  std::vector<std::int64_t> keys;  // highest priority first; of equals the lowest key
  std::vector<double> priorities;
};

// likelihood [layers_ahead, num_experts] is that of the layers behind one, the keys of which begin at
// first_key. A priority is (likelihood + eps) * (1 - i / num_layers) for the i-th of them, i from 1 on
// (arXiv 2401.14361 v1, Algorithm 1; the factor is that of v3, 4.5). states: by key; only experts whose state
// is `absent` and whose priority is above at_least are ranked, `count` of them at most.
inline RankedPrefetches rank_prefetches(const double* likelihood, std::int64_t layers_ahead,
                                        std::int64_t num_experts, std::int64_t num_layers, double eps,
                                        const std::uint8_t* states, std::uint8_t absent,
                                        std::int64_t first_key, double at_least, std::size_t count) {
  std::vector<std::pair<double, std::int64_t>> found;  // minus the priority, and the key
  for (std::int64_t i = 0; i < layers_ahead; ++i) {
    const double proximity = 1 - static_cast<double>(i + 1) / static_cast<double>(num_layers);
    for (std::int64_t j = 0; j < num_experts; ++j) {
      const std::int64_t place = i * num_experts + j;
      const double priority = (likelihood[place] + eps) * proximity;
      if (priority > at_least && states[first_key + place] == absent)
        found.emplace_back(-priority, first_key + place);
    }
  }
  const auto kept = found.begin() + static_cast<std::ptrdiff_t>(std::min(count, found.size()));
  std::partial_sort(found.begin(), kept, found.end());
  RankedPrefetches ranked;
  for (auto each = found.begin(); each != kept; ++each) {
    ranked.keys.push_back(each->second);
    ranked.priorities.push_back(-each->first);
  }
  return ranked;
}

}  // namespace moeinf
