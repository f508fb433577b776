// A set of small integers that costs as much to ask as an array, and no more to go through than it has
// members. All its memory is taken at first: what follows throws for keys that are out of range alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace moeinf {

class KeySet {
 public:
  explicit KeySet(std::size_t num_keys) : place_(num_keys, -1) { members_.reserve(num_keys); }

  bool has(std::int64_t key) const { return place_.at(static_cast<std::size_t>(key)) >= 0; }
  std::size_t size() const { return members_.size(); }
  bool empty() const { return members_.empty(); }
  const std::vector<std::int64_t>& members() const { return members_; }  // in no order
  std::vector<std::int64_t> ascending() const {
    std::vector<std::int64_t> keys = members_;
    std::sort(keys.begin(), keys.end());
    return keys;
  }

  void insert(std::int64_t key) {
    std::int32_t& place = place_.at(static_cast<std::size_t>(key));
    if (place >= 0) return;
    place = static_cast<std::int32_t>(members_.size());
    members_.push_back(key);
  }

  // Whether it was a member.
  bool erase(std::int64_t key) {
    std::int32_t& place = place_.at(static_cast<std::size_t>(key));
    if (place < 0) return false;
    const std::int64_t last = members_.back();
    members_[static_cast<std::size_t>(place)] = last;
    members_.pop_back();
    place_[static_cast<std::size_t>(last)] = place;
    place = -1;
    return true;
  }

  void clear() {
    for (const std::int64_t key : members_) place_[static_cast<std::size_t>(key)] = -1;
    members_.clear();
  }

 private:
  std::vector<std::int32_t> place_;  // by key; -1: no member
  std::vector<std::int64_t> members_;
};

}  // namespace moeinf
