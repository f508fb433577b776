// The table of slots: which expert lies in which, and whether its block has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/span.h"

namespace moeinf {

using Keys = std::vector<std::int64_t>;  // of experts: layer * num_experts + expert

enum ExpertState : std::uint8_t {
  kAbsent = 0,
  kLoading = 1,
  kResident = 2,
  kNoExpert = 3,  // of a key that no expert has, or an expert of another machine
};

// Of which sizes slots are, in classes from 0 on, and whose they are.
struct SlotClasses {
  std::vector<std::int64_t> bytes;     // of a slot of each class
  std::vector<std::uint8_t> of_slots;  // by number: the class of each slot that there may be, in their order
  std::vector<std::uint8_t> of_keys;   // of the slots that an expert may have; empty: there is one class
};

// Slots in an arena, one behind the other, each known by its offset in bytes. An expert that is loading or
// resident has one, which is of its class.
class SlotTable {
 public:
  static constexpr std::int64_t kNoSlot = -1;

  // states and offsets: by key; the table writes into them, others read them, and they outlive it. Throws
  // std::invalid_argument, and has written nothing, for sizes and classes that cannot be, for states that are
  // neither kAbsent nor kNoExpert, and for other offsets than one for each state.
  SlotTable(std::int64_t first_offset, SlotClasses classes, Span<std::uint8_t> states,
            Span<std::int64_t> offsets);

  std::size_t num_keys() const { return num_keys_; }
  const std::uint8_t* states() const { return state_; }
  std::uint8_t state(std::int64_t key) const { return state_[at(key)]; }
  std::int64_t offset(std::int64_t key) const { return offset_of_[at(key)]; }

  std::int64_t num_slots() const { return num_slots_; }
  std::int64_t num_free() const { return num_free_; }
  std::int64_t num_resident() const { return num_resident_; }
  std::int64_t num_loading() const { return num_slots_ - num_free() - num_resident_; }
  std::int64_t total_experts() const { return total_; }
  bool all_resident() const { return num_resident_ == total_; }  // then nothing can be missing
  std::int64_t end_offset() const { return begins_[static_cast<std::size_t>(num_slots_)]; }
  std::vector<std::int64_t> free_offsets() const;  // class by class

  std::size_t num_classes() const { return classes_.bytes.size(); }
  std::size_t class_of(std::int64_t key) const {
    const std::size_t place = at(key);
    return classes_.of_keys.empty() ? 0 : classes_.of_keys[place];
  }
  std::int64_t slot_bytes(std::int64_t key) const { return classes_.bytes[class_of(key)]; }
  std::int64_t slots_of(std::size_t size_class) const { return slots_of_[size_class]; }
  std::int64_t free_of(std::size_t size_class) const {
    return static_cast<std::int64_t>(free_[size_class].size());
  }

  // Gives free slots to absent experts, which are loading from now on; returns the offsets. Throws
  // std::invalid_argument where there are not enough, or an expert is not absent; nothing has changed then.
  std::vector<std::int64_t> assign(const Keys& keys);
  // Notes that the blocks of these experts have come, so that they may be computed. Throws
  // std::invalid_argument for one that is not loading; those in front of it have landed then.
  void land(const Keys& keys);
  // Takes its slot from an expert that is resident or whose reads have ended without it. Throws
  // std::invalid_argument, and changes nothing, where it has none.
  void free(std::int64_t key);
  // Counts the experts anew, as the states of others than kLoading and kResident have been changed. Throws
  // std::invalid_argument, and has counted nothing, where that of an expert with a slot has.
  void count();
  // Drops all slots but the lowest num_slots, which must be free, or adds slots behind the last, to be
  // assigned last. Throws std::invalid_argument, and changes nothing, for one that is not free, and for more
  // than there were at first.
  void limit(std::int64_t num_slots);
  // Records what somebody else has done with the slots: by key the number of an expert's slot, or kNoSlot.
  // All of them are resident. Throws std::invalid_argument where that cannot be.
  void renumber(Span<const std::int64_t> numbers);

  Keys loading() const;  // ascending

 private:
  // The place of a key. Throws std::out_of_range.
  std::size_t at(std::int64_t key) const;

  // The free slots are all of these but those that are taken; the lowest is assigned first.
  void free_all_but(const std::vector<bool>& taken);

  SlotClasses classes_;
  std::vector<std::int64_t> begins_;    // of each slot that there may be, and where the last ends
  std::vector<std::int64_t> slots_of_;  // how many each class has
  std::int64_t num_slots_;
  std::uint8_t* state_;
  std::int64_t* offset_of_;
  std::size_t num_keys_;
  std::vector<std::vector<std::int64_t>> free_;  // offsets, by class; the last is assigned first
  std::int64_t num_free_ = 0, total_ = 0, num_resident_ = 0;
};

}  // namespace moeinf
