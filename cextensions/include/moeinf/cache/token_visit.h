// A visit of a layer by a single token: from the experts that it needs to the end of their computing.
#pragma once

#include <cstdint>

#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/loader.h"

namespace moeinf {

// What moeinf.runtime.cache.visit.Visit does for any number of tokens and for slices, for one token and whole
// experts: it runs once a layer and token, where the weights of experts have driven all else from the caches
// of the processor.
class TokenVisit {
 public:
  static constexpr std::size_t kBatch =
      16;  // experts of one batch while others wait for the slots that it frees

  // The token needs the layer's `experts`. Counts the demand, pins what is there, and queues reads of the
  // rest.
  TokenVisit(ExpertCache& cache, Loader& loader, std::int64_t layer, const std::int64_t* experts,
             std::size_t num_experts);
  TokenVisit(const TokenVisit&) = delete;
  TokenVisit& operator=(const TokenVisit&) = delete;

  std::int64_t layer() const { return layer_; }
  const Keys& keys() const { return keys_; }
  std::int64_t num_absent() const {
    return num_absent_;
  }  // neither resident nor on their way at the beginning
  // Whether nothing waits for a slot that another expert of the visit has to leave first.
  bool all_have_slots() const { return pending_.empty(); }
  bool any_ready() const { return !ready_.empty(); }
  bool is_open() const { return open_; }
  bool waits() const { return !waiting_.empty(); }  // for experts of its own

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
  void queue_demand();

  ExpertCache& cache_;
  Loader& loader_;
  std::int64_t layer_;
  Keys keys_;
  Keys ready_, waiting_, pending_;  // resident and not computed; on their way; without a slot so far
  Keys batch_;
  std::int64_t num_absent_ = 0;
  bool open_ = true;
};

}  // namespace moeinf
