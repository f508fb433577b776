// What other caches would have hit of a routing that has run: the one that evicts what was used least
// recently, and the one that knows what comes, than which none hits more (Belady, IBM Systems Journal 5(2),
// 1966).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace moeinf {

struct ReplayedHits {
  std::int64_t lru = 0, belady = 0;  // activations whose expert was there when its visit began
};

// A cache of so many slots; out goes the key with the lowest score, of equals the lowest key.
class ReplayedCache {
 public:
  explicit ReplayedCache(std::size_t num_slots) : num_slots_(num_slots) {}

  // Returns whether it is there, and takes it out of reach of `add` and `evict` until it is added again.
  bool take(std::int64_t key) {
    const auto found = scores_.find(key);
    if (found == scores_.end()) return false;
    order_.erase({found->second, key});
    scores_.erase(found);
    return true;
  }

  // Makes room for so many more.
  void make_room(std::size_t count) {
    while (!order_.empty() && order_.size() + count > num_slots_) {
      scores_.erase(order_.begin()->second);
      order_.erase(order_.begin());
    }
  }

  void add(std::int64_t key, std::int64_t score) {
    scores_[key] = score;
    order_.emplace(score, key);
  }

 private:
  std::size_t num_slots_;
  std::unordered_map<std::int64_t, std::int64_t> scores_;  // by key
  std::set<std::pair<std::int64_t, std::int64_t>> order_;  // (score, key)
};

// keys: of the activations, one visit behind the other; visit v has those from ends[v] on, up to ends[v + 1].
// resident: what both caches begin with; the first ones, if they are more than num_slots.
inline ReplayedHits replayed_hits(const std::int64_t* keys, const std::vector<std::size_t>& ends,
                                  const std::int64_t* resident, std::size_t num_resident,
                                  std::size_t num_slots) {
  constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  const std::size_t num_visits = ends.size() - 1;
  std::vector<std::int64_t> next(ends.back());  // of each activation: the visit that uses its expert next
  std::unordered_map<std::int64_t, std::int64_t> upcoming;
  for (std::size_t visit = num_visits; visit-- > 0;) {
    for (std::size_t at = ends[visit]; at < ends[visit + 1]; ++at) {
      const auto found = upcoming.find(keys[at]);
      next[at] = found == upcoming.end() ? kNever : found->second;
    }
    for (std::size_t at = ends[visit]; at < ends[visit + 1]; ++at)
      upcoming[keys[at]] = static_cast<std::int64_t>(visit);
  }
  ReplayedCache lru(num_slots), belady(num_slots);
  for (std::size_t i = 0; i < num_resident && i < num_slots; ++i) {
    const auto found = upcoming.find(resident[i]);
    lru.add(resident[i], -1);
    belady.add(resident[i], found == upcoming.end() ? -kNever : -found->second);
  }
  ReplayedHits hits;
  std::unordered_map<std::int64_t, std::pair<std::int64_t, std::int64_t>> needed;  // activations, next use
  for (std::size_t visit = 0; visit < num_visits; ++visit) {
    needed.clear();
    for (std::size_t at = ends[visit]; at < ends[visit + 1]; ++at) {
      auto& each = needed.try_emplace(keys[at], 0, next[at]).first->second;
      ++each.first;
    }
    // What a visit needs stays until it has ended, as in ExpertCache. One that needs more than half of the
    // slots, of many rows, may go through in several waves: then only what is used next is kept of
    // everything.
    const bool waves = needed.size() > num_slots / 2;
    for (const bool knows : {false, true}) {
      ReplayedCache& cache = knows ? belady : lru;
      for (const auto& [key, each] : needed)
        if (cache.take(key)) (knows ? hits.belady : hits.lru) += each.first;
      if (!waves) cache.make_room(needed.size());
      for (const auto& [key, each] : needed)
        cache.add(key, knows ? -each.second : static_cast<std::int64_t>(visit));
      cache.make_room(0);
    }
  }
  return hits;
}

}  // namespace moeinf
