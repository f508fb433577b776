#include "moeinf/io/segment_read.h"

#include <algorithm>
#include <cerrno>

#include "moeinf/io/crc32c.h"
#include "moeinf/io/file_set.h"

namespace moeinf {
namespace {

constexpr int kMaxInterruptions = 1000;  // in a row, without one byte: the kernel does not mean to answer

}  // namespace

SegmentRead::SegmentRead(const Segment& segment, Asking asking)
    : segment_(segment),
      ordinary_(asking == Asking::kOrdinary),
      asked_bytes_((segment.num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes) {}

bool SegmentRead::advance(std::int64_t result) {
  const bool interrupted = result == -EINTR || result == -EAGAIN;
  if (interrupted && ++num_interruptions_ < kMaxInterruptions) return true;
  num_interruptions_ = 0;
  const std::int64_t reached = std::min(progress_ + std::max<std::int64_t>(result, 0), segment_.num_bytes);
  // A direct read has to go on from a block border; the part of a block before it is read again.
  const std::int64_t next =
      !ordinary_ && reached < segment_.num_bytes ? reached / kBlockBytes * kBlockBytes : reached;
  if (next == progress_) {
    const int error = result < 0 ? static_cast<int>(-result) : 0;
    if (!ordinary_) {
      ordinary_ = refused_ = true;
      refusal_ = error;
      return true;
    }
    outcome_ = {reached, error, error == 0};
    return false;
  }
  progress_ = next;
  outcome_.num_bytes_read = progress_;
  return progress_ < segment_.num_bytes;
}

Outcome SegmentRead::take_outcome() const {
  Outcome outcome = outcome_;
  if (segment_.summed_bytes > 0 && outcome.num_bytes_read == segment_.num_bytes) {
    const std::uint32_t sum =
        crc32c(segment_.destination + segment_.summed_from, static_cast<std::size_t>(segment_.summed_bytes));
    outcome.sum = crc32c_shift(sum, static_cast<std::uint64_t>(segment_.bytes_after));
  }
  return outcome;
}

}  // namespace moeinf
