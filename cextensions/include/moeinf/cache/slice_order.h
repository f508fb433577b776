// In which order the slices of a layer's experts are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/cache/slot_table.h"

namespace moeinf {

// Each expert's slices one after the other, and what is all there first. All memory is taken at first.
class SliceOrder {
 public:
  static constexpr std::int64_t kNoKey = -1;

  // keys: of the slices of num_experts experts, the same number of each, an expert's in their order.
  SliceOrder(const Keys& keys, std::size_t num_experts, const Keys& absent);

  void sort(Keys& keys) const;
  // A slice is resident now.
  void land(std::int64_t key) { here_[place_of(key)] = true; }
  // Moves to the end of `ready` those that may be computed now, in their order.
  void hand_out(Keys& ready);
  // The last of the slices that are here and wait for others, which counts as absent from now on; or kNoKey.
  std::int64_t give_up();

 private:
  std::size_t place_of(std::int64_t key) const { return places_[static_cast<std::size_t>(key - least_)]; }

  Keys order_;
  std::int64_t least_;               // of the keys
  std::vector<std::size_t> places_;  // in order_, by key - least_
  std::vector<bool> here_;           // by place: resident, and not handed out
  std::size_t next_ = 0;             // place of the first slice that was not handed out
};

}  // namespace moeinf
