// The token-expert pairs of a routing (a token and its j-th choice), sorted by expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeinf {

class ExpertGroups {
 public:
  static constexpr std::int64_t kMaxExperts = 1 << 20;

  // Throws std::invalid_argument for an id that is negative or not below kMaxExperts. Whatever it throws,
  // there are no groups then.
  void sort(const std::int64_t* ids, std::int64_t num_pairs);

  std::int64_t find(std::int64_t expert) const;  // its group, or -1

  std::size_t size() const { return experts.size(); }

  // One element for each group: experts ascend, and their pairs lie in `sorted` from starts on.
  std::vector<std::int64_t> experts, counts, starts;
  std::vector<std::int64_t> sorted;       // pairs, by expert and then ascending
  std::vector<std::int64_t> position_of;  // of each pair in `sorted`

 private:
  void reserve(const std::int64_t* ids, std::int64_t num_pairs);
  void make_groups(const std::int64_t* ids, std::int64_t num_pairs);

  // The group of each expert id, -1 where it has none.
  std::vector<std::int64_t> by_id_;
};

}  // namespace moeinf
