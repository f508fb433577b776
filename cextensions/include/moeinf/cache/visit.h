// A visit: one run of a layer, from the experts that it needs to the end of their computing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/loader.h"
#include "moeinf/cache/slice_order.h"

namespace moeinf {

// What a layer needs: its experts, and for how many activations of num_tokens tokens it needs each of them.
struct Needed {
  std::int64_t layer, num_tokens;
  std::vector<std::int64_t> experts, counts;
};

// Pins the experts of a layer that are there, reads the others, and hands out each while it cannot leave.
//
// A visit may need more experts than there are slots: it then goes through in waves. Slices of experts are
// handed out in their order, those of one expert before those of the next, so that each is computed as soon
// as it lands, and its memory serves those that follow. Batches are taken until has_ended, then comes close;
// after an error or an interrupt close alone, and nothing is held any more for this visit or for layers to
// come.
class Visit {
 public:
  static constexpr std::size_t kBatch =
      16;  // experts of one batch while others wait for the slots that it frees
  static constexpr std::size_t kBatchSlices = 4;  // the same where experts are cut
  // Of a single token's slices on their way: the disk is busy, and few slots are taken from others.
  static constexpr std::size_t kSlicesAhead = 5;

  // Counts the demand, pins what is there, and queues reads of the rest. Throws std::invalid_argument for a
  // layer or an expert that there is not, and unless there is a count for each expert.
  Visit(ExpertCache& cache, Loader& loader, Needed needed);
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  std::int64_t layer() const { return needed_.layer; }
  std::int64_t num_tokens() const { return needed_.num_tokens; }
  const Keys& keys() const { return keys_; }
  // Neither resident nor on their way at the beginning.
  std::int64_t num_absent() const { return num_absent_; }
  // Whether nothing waits for a slot that another expert of the visit has to leave first.
  bool all_have_slots() const { return pending_.empty(); }
  bool any_ready() const { return !ready_.empty(); }
  bool is_open() const { return open_; }
  bool waits() const { return !waiting_.empty(); }  // for experts of its own

  // The next layer will need `keys`, of which the surest come first. What is there stays for it, up to half
  // of the slots; what is absent is read into every slot that this visit's demand leaves, now and after each
  // batch.
  void read_ahead(const Keys& keys);
  // Ends the last batch, and begins the next of what is there: it lies still until the next call. Empty: the
  // visit has to wait, or has ended.
  const Keys& next_batch();
  bool has_ended() const { return !open_ || (ready_.empty() && waiting_.empty() && pending_.empty()); }
  // Blocks until an expert of the visit lands, or, with no slot to be had, until a prefetch gives one up.
  // Returns the failure of a read that the visit waits for.
  std::exception_ptr wait();
  // Lets go of what is held; a second call does nothing. Reads of a visit that is given up land as usual.
  void close();

 private:
  void find_keys();
  void begin();
  void refill();
  void queue_demand();
  Keys make_room();

  ExpertCache& cache_;
  Loader& loader_;
  Needed needed_;
  Keys keys_;  // of what the visit needs
  // Resident and not computed; on their way; without a slot so far. Where one of the
  // latter two is there at first, each has room for all keys.
  Keys ready_, waiting_, pending_;
  Keys ahead_;  // of the next layer, to be read into the slots that demand leaves
  Keys batch_;
  std::optional<SliceOrder> order_;  // of experts that are cut
  std::int64_t num_absent_ = 0;
  bool open_ = true;
};

}  // namespace moeinf
