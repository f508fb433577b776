#include "moeinf/compute/layers/expert_groups.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace moeinf {

// A counting sort.
void ExpertGroups::sort(const std::int64_t* ids, std::int64_t num_pairs) {
  reserve(ids, num_pairs);
  make_groups(ids, num_pairs);
  for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
    const std::int64_t group = by_id_[static_cast<std::size_t>(ids[pair])];
    const std::int64_t position = starts[static_cast<std::size_t>(group)]++;
    sorted[static_cast<std::size_t>(position)] = pair;
    position_of[static_cast<std::size_t>(pair)] = position;
  }
  for (std::size_t group = 0; group < size(); ++group) starts[group] -= counts[group];
}

std::int64_t ExpertGroups::find(std::int64_t expert) const {
  const bool is_inside = expert >= 0 && static_cast<std::size_t>(expert) < by_id_.size();
  return is_inside ? by_id_[static_cast<std::size_t>(expert)] : -1;
}

// Forgets all groups, and takes what memory those of these pairs may need.
void ExpertGroups::reserve(const std::int64_t* ids, std::int64_t num_pairs) {
  for (std::vector<std::int64_t>* of_groups : {&experts, &counts, &starts}) of_groups->clear();
  std::fill(by_id_.begin(), by_id_.end(), -1);
  std::int64_t end = 0;
  for (std::int64_t pair = 0; pair < num_pairs; ++pair) {
    if (ids[pair] < 0 || ids[pair] >= kMaxExperts)
      throw std::invalid_argument("a routing names expert " + std::to_string(ids[pair]));
    end = std::max(end, ids[pair] + 1);
  }
  const auto num_ids = static_cast<std::size_t>(end);
  const std::size_t most = std::min(num_ids, static_cast<std::size_t>(num_pairs));
  for (std::vector<std::int64_t>* of_groups : {&experts, &counts, &starts}) of_groups->reserve(most);
  for (std::vector<std::int64_t>* of_pairs : {&sorted, &position_of})
    of_pairs->resize(static_cast<std::size_t>(num_pairs));
  if (by_id_.size() < num_ids) by_id_.resize(num_ids, -1);
}

void ExpertGroups::make_groups(const std::int64_t* ids, std::int64_t num_pairs) {
  std::fill(by_id_.begin(), by_id_.end(), 0);
  for (std::int64_t pair = 0; pair < num_pairs; ++pair) ++by_id_[static_cast<std::size_t>(ids[pair])];
  std::int64_t start = 0;
  for (std::size_t id = 0; id < by_id_.size(); ++id) {
    const std::int64_t count = by_id_[id];
    by_id_[id] = count == 0 ? -1 : static_cast<std::int64_t>(experts.size());
    if (count == 0) continue;
    experts.push_back(static_cast<std::int64_t>(id));
    counts.push_back(count);
    starts.push_back(start);
    start += count;
  }
}

}  // namespace moeinf
