// The full-length loop of one segment: what is still to be asked of the kernel after each of its answers, and
// in which way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeinf {

// A piece of a request: the unit of issuing, so that a demand waits for one segment and not for a whole
// expert.
struct Segment {
  std::int64_t key = 0;
  int file = 0;             // that of its disk
  std::int64_t offset = 0;  // in the file
  unsigned char* destination = nullptr;
  std::int64_t num_bytes = 0;  // no whole number of blocks: the file ends there
  std::size_t piece = 0;       // of the request
  // The part of the segment whose sum is wanted, and how many bytes of the sum's range follow it.
  std::int64_t summed_from = 0, summed_bytes = 0, bytes_after = 0;
  int disk = 0;
};

struct Outcome {
  std::int64_t num_bytes_read = 0;
  int error = 0;          // errno
  bool ended = false;     // the file ended before the segment did
  std::uint32_t sum = 0;  // of a checked segment: its share of the piece's CRC-32C
  bool damaged = false;   // all bytes came, and are not those that were written
};

// An ordinary read, that is, a pread through the page cache, fails with its first error. Any other is then
// asked for once more as an ordinary one.
enum class Asking { kOrdinary, kOther };

class SegmentRead {
 public:
  SegmentRead() = default;
  SegmentRead(const Segment& segment, Asking asking);

  const Segment& segment() const { return segment_; }
  bool is_ordinary() const { return ordinary_; }  // how it is to be asked for now
  unsigned char* destination() const { return segment_.destination + progress_; }
  std::int64_t offset() const { return segment_.offset + progress_; }
  std::int64_t num_bytes() const { return asked_bytes_ - progress_; }

  // Takes the kernel's answer (bytes read, or -errno); true: ask again for what is left, false: see
  // outcome().
  bool advance(std::int64_t result);
  const Outcome& outcome() const { return outcome_; }
  // The same, with the sum of a checked segment that is whole: a pass over its bytes.
  Outcome take_outcome() const;

  // Whether only the ordinary read brought all bytes, and what the other had failed with: an errno, or 0
  // where it brought nothing.
  bool was_refused() const { return refused_ && progress_ == segment_.num_bytes; }
  int refusal() const { return refusal_; }

 private:
  Segment segment_;
  bool ordinary_ = false;
  std::int64_t asked_bytes_ = 0;  // whole blocks, as a direct read has to be
  std::int64_t progress_ = 0;
  int num_interruptions_ = 0;
  bool refused_ = false;
  int refusal_ = 0;
  Outcome outcome_;
};

}  // namespace moeinf
