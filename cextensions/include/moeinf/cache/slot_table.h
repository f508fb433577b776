// The table of slots: which expert lies in which, and whether its block has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moeinf {

using Keys = std::vector<std::int64_t>;  // of experts: layer * num_experts + expert

enum ExpertState : std::uint8_t {
  kAbsent = 0,
  kLoading = 1,
  kResident = 2,
  kNoExpert = 3,  // of a key that no expert has, or an expert of another machine
};

// Equal slots in an arena, each known by its offset in bytes. An expert that is loading or resident has one.
class SlotTable {
 public:
  static constexpr std::int64_t kNoSlot = -1;

  // states and offsets: by key; the table writes into them, others read them, and they outlive it. At first
  // states are kAbsent or kNoExpert.
  SlotTable(std::int64_t first_offset, std::int64_t stride_bytes, std::int64_t num_slots,
            std::uint8_t* states, std::int64_t* offsets, std::size_t num_keys);

  std::size_t num_keys() const { return num_keys_; }
  const std::uint8_t* states() const { return state_; }
  std::uint8_t state(std::int64_t key) const { return state_[at(key)]; }
  std::int64_t offset(std::int64_t key) const { return offset_of_[at(key)]; }

  std::int64_t num_slots() const { return num_slots_; }
  std::int64_t num_free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t num_resident() const { return num_resident_; }
  std::int64_t num_loading() const { return num_slots_ - num_free() - num_resident_; }
  std::int64_t total_experts() const { return total_; }
  bool all_resident() const { return num_resident_ == total_; }  // then nothing can be missing
  std::int64_t first_offset() const { return first_offset_; }
  std::int64_t stride_bytes() const { return stride_bytes_; }
  std::int64_t end_offset() const { return first_offset_ + num_slots_ * stride_bytes_; }
  const std::vector<std::int64_t>& free_offsets() const { return free_; }  // the last is taken first

  // Gives free slots to absent experts, which are loading from now on; returns the offsets. Throws
  // std::invalid_argument where there are not enough, or an expert is not absent; nothing has changed then.
  std::vector<std::int64_t> assign(const Keys& keys);
  // Notes that the blocks of these experts have come, so that they may be computed.
  void land(const Keys& keys);
  // Takes their slots from experts that are resident or whose reads have ended without them.
  void free(const Keys& keys);
  // Counts the experts anew, as the states of others than kLoading and kResident have been changed.
  void count();
  // Drops all slots but the lowest num_slots, which must be free, or adds slots behind the last, to be
  // assigned last.
  void limit(std::int64_t num_slots);
  // Records what somebody else has done with the slots: by key the number of an expert's slot, or kNoSlot.
  // All of them are resident.
  void renumber(const std::int64_t* numbers);

  Keys loading() const;  // ascending

 private:
  // The place of a key. Throws std::out_of_range.
  std::size_t at(std::int64_t key) const;

  std::int64_t first_offset_, stride_bytes_, num_slots_;
  std::uint8_t* state_;
  std::int64_t* offset_of_;
  std::size_t num_keys_;
  std::vector<std::int64_t> free_;
  std::int64_t total_ = 0, num_resident_ = 0;
};

}  // namespace moeinf
