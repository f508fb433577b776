// How experts come into a cache: reads that fill its slots, from absent to resident.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <vector>

#include "moeinf/cache/expert_cache.h"

namespace moeinf {

constexpr double kDemand = std::numeric_limits<double>::infinity();  // the priority of what a layer waits for

// What reads the blocks of experts into slots, in the background: of files, or from another memory.
class ExpertReads {
 public:
  struct Polled {
    Keys done, failed;
  };
  struct Waited {
    Keys landed;
    std::int64_t failed = -1;  // the key of a read that failed; nothing has landed then
    std::exception_ptr error;  // of that read
  };

  virtual ~ExpertReads() = default;
  virtual void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
                      const std::vector<double>& priorities) = 0;
  virtual void reprioritise(const Keys& keys, const std::vector<double>& priorities) = 0;
  virtual Keys cancel(const Keys& keys) = 0;  // returns those of which nothing was read
  virtual Keys known(const Keys& keys) = 0;   // those whose reads were submitted, and not collected since
  virtual Polled poll() = 0;                  // does not block
  virtual Waited wait_any(const Keys& keys) = 0;
};

// Used from one thread. Where an expert is cut into slices, a key is a slice's.
//
// Whatever the reads throw passes through, and may come before or after they have done what they were asked
// for: an interrupt comes at any line of a reader in Python. They are then asked which experts they still
// read; the slots of all others that were loading are free again, at the latest in the next call.
class Loader {
 public:
  // Throws std::invalid_argument for slices that do not make up the experts of a layer.
  Loader(ExpertCache& cache, ExpertReads& reads, std::int64_t slices);

  std::int64_t slices() const { return slices_; }  // of an expert

  // Queues reads of absent experts. Throws std::invalid_argument where there are fewer free slots, or not as
  // many priorities.
  void submit(const Keys& keys, const std::vector<double>& priorities);
  // Queues reads of what a layer waits for, and pins it.
  void demand(const Keys& keys);
  // Queues reads of absent experts behind all demand, and keeps their slots until their layer has run.
  // Returns how many of them, the first ones of each class of slots, have found a slot.
  std::int64_t prefetch(const Keys& keys, const std::vector<double>& priorities);
  void reprioritise(const Keys& keys, const std::vector<double>& priorities);
  // Drops reads of which nothing was issued, whose slots are free again; returns how many of them were
  // prefetches.
  std::int64_t cancel(const Keys& keys);
  // Cancels prefetches that nobody needs, as far as they have not begun.
  void drop(const Keys& keys);
  // Collects what has ended; returns the keys that failed, whose slots are free again.
  Keys poll();
  // Blocks until one of the keys or more has landed, or a read has failed, whose slot is free again then.
  ExpertReads::Waited wait(const Keys& keys);

 private:
  template <typename Call>
  void ask(const Call& call);
  void settle();
  // Frees the slots of reads that have failed; with them those of the same experts' other slices. Of an
  // expert that is damaged nobody knows which slice it is, so that all are to be read again.
  void release_failed(const Keys& keys);
  std::int64_t slot_bytes(const Keys& keys) const;  // of the slots of these experts together

  ExpertCache& cache_;
  ExpertReads& reads_;
  std::int64_t slices_;
  bool in_doubt_ = false;  // whether all that is loading is being read
};

}  // namespace moeinf
