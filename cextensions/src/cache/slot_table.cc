#include "moeinf/cache/slot_table.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeinf {

SlotTable::SlotTable(std::int64_t first_offset, SlotClasses classes, Span<std::uint8_t> states,
                     Span<std::int64_t> offsets)
    : classes_(std::move(classes)),
      begins_(1, first_offset),
      slots_of_(classes_.bytes.size(), 0),
      num_slots_(static_cast<std::int64_t>(classes_.of_slots.size())),
      state_(states.data()),
      offset_of_(offsets.data()),
      num_keys_(states.size()),
      free_(classes_.bytes.size()) {
  const auto& [bytes, of_slots, of_keys] = classes_;
  if (states.size() != offsets.size()) throw std::invalid_argument("states and offsets differ in length");
  const auto is_none = [this](std::uint8_t size_class) { return size_class >= classes_.bytes.size(); };
  if (bytes.empty() || *std::min_element(bytes.begin(), bytes.end()) < 1)
    throw std::invalid_argument("slots have no such size");
  if (std::any_of(of_slots.begin(), of_slots.end(), is_none) ||
      std::any_of(of_keys.begin(), of_keys.end(), is_none) ||
      (of_keys.size() != num_keys_ && !(of_keys.empty() && bytes.size() == 1)))
    throw std::invalid_argument("slots or experts have no such class");
  if (std::any_of(states.begin(), states.end(),
                  [](std::uint8_t state) { return state != kAbsent && state != kNoExpert; }))
    throw std::invalid_argument("an expert has a state that none has at first");
  if (first_offset < 0) throw std::invalid_argument("slots do not begin in front of the memory");
  begins_.reserve(of_slots.size() + 1);
  for (const std::uint8_t size_class : of_slots) {
    if (bytes[size_class] > std::numeric_limits<std::int64_t>::max() - begins_.back())
      throw std::invalid_argument("there is no memory of so many slots");
    begins_.push_back(begins_.back() + bytes[size_class]);
    ++slots_of_[size_class];
  }
  for (std::size_t each = 0; each < free_.size(); ++each)  // for good: to free a slot takes no memory
    free_[each].reserve(static_cast<std::size_t>(slots_of_[each]));
  std::fill(offsets.begin(), offsets.end(), kNoSlot);
  count();
  free_all_but(std::vector<bool>(of_slots.size(), false));
}

void SlotTable::free_all_but(const std::vector<bool>& taken) {
  for (std::vector<std::int64_t>& offsets : free_) offsets.clear();
  // The lowest is taken first: slots that are filled once lie in order.
  num_free_ = 0;
  for (auto slot = static_cast<std::size_t>(num_slots_); slot-- > 0;) {
    if (taken[slot]) continue;
    free_[classes_.of_slots[slot]].push_back(begins_[slot]);
    ++num_free_;
  }
}

std::vector<std::int64_t> SlotTable::free_offsets() const {
  std::vector<std::int64_t> all;
  for (const std::vector<std::int64_t>& offsets : free_)
    all.insert(all.end(), offsets.begin(), offsets.end());
  return all;
}

void SlotTable::count() {
  for (std::size_t key = 0; key < num_keys_; ++key)
    if (offset_of_[key] != kNoSlot && state_[key] != kLoading && state_[key] != kResident)
      throw std::invalid_argument("expert " + std::to_string(key) + " has a slot and another state");
  total_ = std::count_if(state_, state_ + num_keys_, [](std::uint8_t state) { return state != kNoExpert; });
}

std::size_t SlotTable::at(std::int64_t key) const {
  if (key < 0 || static_cast<std::size_t>(key) >= num_keys_)
    throw std::out_of_range("there is no such expert");
  return static_cast<std::size_t>(key);
}

std::vector<std::int64_t> SlotTable::assign(const Keys& keys) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(keys.size());
  try {
    for (const std::int64_t key : keys) {
      if (state_[at(key)] != kAbsent)
        throw std::invalid_argument("expert " + std::to_string(key) + " is not absent");
      std::vector<std::int64_t>& free = free_[class_of(key)];
      if (free.empty()) throw std::invalid_argument("too few slots are free");
      offsets.push_back(free.back());
      free.pop_back();
      --num_free_;
      state_[at(key)] = kLoading;
      offset_of_[at(key)] = offsets.back();
    }
  } catch (...) {  // the last one first, so that the slots lie in their order again
    while (!offsets.empty()) {
      free(keys[offsets.size() - 1]);
      offsets.pop_back();
    }
    throw;
  }
  return offsets;
}

void SlotTable::land(const Keys& keys) {
  for (const std::int64_t key : keys) {
    if (state_[at(key)] != kLoading)
      throw std::invalid_argument("expert " + std::to_string(key) + " is not loading");
    state_[at(key)] = kResident;
    ++num_resident_;
  }
}

void SlotTable::free(std::int64_t key) {
  const std::size_t place = at(key);
  if (offset_of_[place] == kNoSlot)
    throw std::invalid_argument("expert " + std::to_string(key) + " has no slot");
  num_resident_ -= state_[place] == kResident;
  free_[class_of(key)].push_back(offset_of_[place]);
  ++num_free_;
  state_[place] = kAbsent;
  offset_of_[place] = kNoSlot;
}

void SlotTable::limit(std::int64_t num_slots) {
  if (num_slots < 0 || static_cast<std::size_t>(num_slots) > classes_.of_slots.size())
    throw std::invalid_argument("there are not so many slots");
  const std::int64_t end = begins_[static_cast<std::size_t>(num_slots)];
  if (std::any_of(offset_of_, offset_of_ + num_keys_, [end](std::int64_t offset) { return offset >= end; }))
    throw std::invalid_argument("an expert lies in a slot that is to go");
  std::vector<std::vector<std::int64_t>> more(num_classes());
  for (std::int64_t slot = num_slots; slot-- > num_slots_;)
    more[classes_.of_slots[static_cast<std::size_t>(slot)]].push_back(
        begins_[static_cast<std::size_t>(slot)]);
  num_slots_ = num_slots;
  const auto is_beyond = [end](std::int64_t offset) { return offset >= end; };
  num_free_ = 0;
  for (std::size_t each = 0; each < num_classes(); ++each) {
    std::vector<std::int64_t>& free = free_[each];
    free.erase(std::remove_if(free.begin(), free.end(), is_beyond), free.end());
    free.insert(free.begin(), more[each].begin(), more[each].end());
    num_free_ += free_of(each);
    slots_of_[each] = std::count(classes_.of_slots.begin(), classes_.of_slots.begin() + num_slots,
                                 static_cast<std::uint8_t>(each));
  }
}

void SlotTable::renumber(Span<const std::int64_t> numbers) {
  if (numbers.size() != num_keys_) throw std::invalid_argument("numbers are one a key");
  std::vector<bool> taken(static_cast<std::size_t>(num_slots_), false);
  for (std::size_t key = 0; key < num_keys_; ++key) {
    if (numbers[key] == kNoSlot) continue;
    const auto number = static_cast<std::size_t>(numbers[key]);
    if (numbers[key] < 0 || number >= taken.size() || taken[number] ||
        classes_.of_slots[number] != class_of(static_cast<std::int64_t>(key)))
      throw std::invalid_argument("two experts lie in one slot, or one where there is none for it");
    taken[number] = true;
  }
  num_resident_ = 0;
  for (std::size_t key = 0; key < num_keys_; ++key) {
    const bool here = numbers[key] != kNoSlot;
    if (here || state_[key] != kNoExpert) state_[key] = here ? kResident : kAbsent;
    offset_of_[key] = here ? begins_[static_cast<std::size_t>(numbers[key])] : kNoSlot;
    num_resident_ += here;
  }
  free_all_but(taken);
}

Keys SlotTable::loading() const {
  Keys keys;
  if (num_loading() == 0) return keys;
  for (std::size_t key = 0; key < num_keys_; ++key)
    if (state_[key] == kLoading) keys.push_back(static_cast<std::int64_t>(key));
  return keys;
}

}  // namespace moeinf
