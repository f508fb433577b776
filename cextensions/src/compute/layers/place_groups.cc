#include "moeinf/compute/layers/place_groups.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace moeinf {

// A counting sort.
void PlaceGroups::sort(const std::int64_t* ids, std::int64_t num_places) {
  experts.clear();
  counts.clear();
  starts.clear();
  count_ids(ids, num_places);
  make_groups();
  sorted.resize(static_cast<std::size_t>(num_places));
  position_of.resize(static_cast<std::size_t>(num_places));
  for (std::int64_t place = 0; place < num_places; ++place) {
    const std::int64_t group = by_id_[static_cast<std::size_t>(ids[place])];
    const std::int64_t position = starts[static_cast<std::size_t>(group)]++;
    sorted[static_cast<std::size_t>(position)] = place;
    position_of[static_cast<std::size_t>(place)] = position;
  }
  for (std::size_t group = 0; group < size(); ++group) starts[group] -= counts[group];
}

std::int64_t PlaceGroups::find(std::int64_t expert) const {
  const bool is_inside = expert >= 0 && static_cast<std::size_t>(expert) < by_id_.size();
  return is_inside ? by_id_[static_cast<std::size_t>(expert)] : -1;
}

void PlaceGroups::count_ids(const std::int64_t* ids, std::int64_t num_places) {
  std::fill(by_id_.begin(), by_id_.end(), 0);
  for (std::int64_t place = 0; place < num_places; ++place) {
    if (ids[place] < 0 || ids[place] >= kMaxExperts) {
      by_id_.clear();
      throw std::invalid_argument("a routing names expert " + std::to_string(ids[place]));
    }
    const auto id = static_cast<std::size_t>(ids[place]);
    if (id >= by_id_.size()) by_id_.resize(id + 1);
    ++by_id_[id];
  }
}

void PlaceGroups::make_groups() {
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
