#include "moeinf/cache/slot_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace moeinf {

SlotTable::SlotTable(std::int64_t first_offset, std::int64_t stride_bytes, std::int64_t num_slots,
                     std::uint8_t* states, std::int64_t* offsets, std::size_t num_keys)
    : first_offset_(first_offset),
      stride_bytes_(stride_bytes),
      num_slots_(num_slots),
      state_(states),
      offset_of_(offsets),
      num_keys_(num_keys) {
  if (stride_bytes < 1 || num_slots < 0) throw std::invalid_argument("slots have no such size or number");
  std::fill_n(offsets, num_keys, kNoSlot);
  count();
  // The lowest is taken first: slots that are filled once lie in order.
  for (std::int64_t slot = num_slots; slot-- > 0;) free_.push_back(first_offset + slot * stride_bytes);
}

void SlotTable::count() {
  total_ = std::count_if(state_, state_ + num_keys_, [](std::uint8_t state) { return state != kNoExpert; });
}

std::size_t SlotTable::at(std::int64_t key) const {
  if (key < 0 || static_cast<std::size_t>(key) >= num_keys_)
    throw std::out_of_range("there is no such expert");
  return static_cast<std::size_t>(key);
}

std::vector<std::int64_t> SlotTable::assign(const Keys& keys) {
  if (static_cast<std::int64_t>(keys.size()) > num_free())
    throw std::invalid_argument("too few slots are free");
  std::vector<std::int64_t> offsets;
  offsets.reserve(keys.size());
  for (const std::int64_t key : keys) {
    if (state_[at(key)] != kAbsent)
      throw std::invalid_argument("expert " + std::to_string(key) + " is not absent");
  }
  for (const std::int64_t key : keys) {
    offsets.push_back(free_.back());
    free_.pop_back();
    state_[at(key)] = kLoading;
    offset_of_[at(key)] = offsets.back();
  }
  return offsets;
}

void SlotTable::land(const Keys& keys) {
  for (const std::int64_t key : keys) state_[at(key)] = kResident;
  num_resident_ += static_cast<std::int64_t>(keys.size());
}

void SlotTable::free(const Keys& keys) {
  for (const std::int64_t key : keys) {
    const std::size_t place = at(key);
    if (offset_of_[place] == kNoSlot)
      throw std::invalid_argument("expert " + std::to_string(key) + " has no slot");
    num_resident_ -= state_[place] == kResident;
    free_.push_back(offset_of_[place]);
    state_[place] = kAbsent;
    offset_of_[place] = kNoSlot;
  }
}

void SlotTable::limit(std::int64_t num_slots) {
  const std::int64_t old_slots = num_slots_;
  num_slots_ = num_slots;
  const std::int64_t end = end_offset();
  free_.erase(
      std::remove_if(free_.begin(), free_.end(), [end](std::int64_t offset) { return offset >= end; }),
      free_.end());
  std::vector<std::int64_t> more;
  for (std::int64_t slot = num_slots; slot-- > old_slots;)
    more.push_back(first_offset_ + slot * stride_bytes_);
  free_.insert(free_.begin(), more.begin(), more.end());
}

void SlotTable::renumber(const std::int64_t* numbers) {
  std::vector<bool> taken(static_cast<std::size_t>(num_slots_), false);
  for (std::size_t key = 0; key < num_keys_; ++key) {
    if (numbers[key] == kNoSlot) continue;
    if (numbers[key] < 0 || numbers[key] >= num_slots_ || taken[static_cast<std::size_t>(numbers[key])])
      throw std::invalid_argument("two experts lie in one slot, or one where there is none");
    taken[static_cast<std::size_t>(numbers[key])] = true;
  }
  num_resident_ = 0;
  for (std::size_t key = 0; key < num_keys_; ++key) {
    const bool here = numbers[key] != kNoSlot;
    if (here || state_[key] != kNoExpert) state_[key] = here ? kResident : kAbsent;
    offset_of_[key] = here ? first_offset_ + numbers[key] * stride_bytes_ : kNoSlot;
    num_resident_ += here;
  }
  free_.clear();
  for (std::int64_t slot = num_slots_; slot-- > 0;) {
    if (!taken[static_cast<std::size_t>(slot)]) free_.push_back(first_offset_ + slot * stride_bytes_);
  }
}

Keys SlotTable::loading() const {
  Keys keys;
  if (num_loading() == 0) return keys;
  for (std::size_t key = 0; key < num_keys_; ++key)
    if (state_[key] == kLoading) keys.push_back(static_cast<std::int64_t>(key));
  return keys;
}

}  // namespace moeinf
