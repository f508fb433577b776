// One io_uring instance by raw system calls: queue a read, enter the kernel, take completions. Used by one
// thread.
#pragma once

#if defined(__linux__) && !defined(MOEINF_NO_IO_URING) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif

#ifdef IORING_FEAT_FAST_POLL  // headers of Linux 5.7 and later have all that is used here
#define MOEINF_HAS_IO_URING 1

#include <cstdint>

#include "moeinf/io/descriptor.h"
#include "moeinf/io/mapping.h"

namespace moeinf {

class Ring {
 public:
  explicit Ring(unsigned num_entries);  // throws SystemFailure where the kernel refuses

  // Room for it is the caller's affair: at most num_entries reads are queued or in flight.
  void queue_read(int fd, void* destination, std::uint32_t num_bytes, std::uint64_t offset, std::uint64_t id);

  // Hands the queued reads to the kernel and sleeps until a completion is there; 0, or the errno of a
  // refusal. After a refusal the reads are still queued.
  int enter();
  // Drops the last of the queued reads that the kernel has not taken; false: there is none.
  bool take_back(std::uint64_t* id);

  struct Completion {
    std::uint64_t id;
    std::int32_t result;
  };
  bool take(Completion* completion);  // false: none there now

 private:
  Descriptor descriptor_;
  Mapping rings_;
  Mapping completion_ring_;  // kernels before 5.4 map it apart
  Mapping entries_;
  unsigned* submission_tail_ = nullptr;
  unsigned* submission_array_ = nullptr;
  unsigned submission_mask_ = 0;
  unsigned* completion_head_ = nullptr;
  unsigned* completion_tail_ = nullptr;
  unsigned completion_mask_ = 0;
  io_uring_cqe* completions_ = nullptr;
  unsigned num_queued_ = 0;
};

}  // namespace moeinf
#endif
