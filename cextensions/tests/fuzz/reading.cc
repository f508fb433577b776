// Checksums, and reads that the kernel answers as it likes.
#include <cerrno>

#include "check.h"
#include "fuzz/targets.h"
#include "moeinf/io/crc32c.h"
#include "moeinf/io/file_set.h"
#include "moeinf/io/segment_read.h"

namespace moeinf::fuzz {

// Two bytes for where the rest is cut; the sums of its parts, in any order, are that of the whole.
void sums(Input input) {
  const std::size_t cut = input.number<std::uint16_t>();
  const auto data = input.numbers<unsigned char>(4096);
  const std::size_t first = data.empty() ? 0 : cut % (data.size() + 1), rest = data.size() - first;
  const std::vector<unsigned char> head(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(first)),
      tail(data.begin() + static_cast<std::ptrdiff_t>(first), data.end());
  const std::uint32_t whole = crc32c(data.data(), data.size()), of_head = crc32c(head.data(), first);
  CHECK(whole == crc32c_by_tables(data.data(), data.size()));
  CHECK(whole == (crc32c_shift(of_head, rest) ^ crc32c(tail.data(), rest)));
  const std::uint64_t far = input.number<std::uint8_t>() + (std::uint64_t{1} << (cut % 62));
  CHECK(crc32c_shift(of_head, rest + far) == crc32c_shift(crc32c_shift(of_head, rest), far));
}

// A segment of a file that may end within it: each answer of the kernel is two bytes, an errno or so many
// bytes.
void segments(Input input) {
  constexpr int kErrors[] = {EINTR, EAGAIN, EIO, EINVAL, ENOMEM, ESTALE};
  Segment segment;
  segment.offset = static_cast<std::int64_t>(input.below(4)) * kBlockBytes;
  segment.num_bytes = 1 + input.number<std::uint16_t>() % (3 * kBlockBytes);
  const auto how = input.number<std::uint8_t>();
  const bool at_end = segment.num_bytes % kBlockBytes != 0;
  std::int64_t there = segment.num_bytes;  // bytes of the file from the segment's beginning on
  if (how & 4) there = input.number<std::uint16_t>() % (segment.num_bytes + 1);
  if (!(how & 4) && !at_end) there += (how >> 3) * 100;
  const Asking asking = how & 1 ? Asking::kOrdinary : Asking::kOther;
  const std::int64_t blocks = (segment.num_bytes + kBlockBytes - 1) / kBlockBytes;
  std::vector<unsigned char> memory(static_cast<std::size_t>(blocks * kBlockBytes));
  segment.destination = memory.data();
  segment.summed_from = segment.num_bytes / 3;
  segment.summed_bytes = segment.num_bytes - segment.summed_from;
  const auto content = [](std::int64_t at) { return static_cast<unsigned char>(at * 7 + at / 251); };

  SegmentRead read(segment, asking);
  bool more = true;
  for (int turn = 0; more; ++turn) {
    CHECK(turn < 20000);
    const std::int64_t from = read.offset() - segment.offset, most = read.num_bytes();
    CHECK(from >= 0 && most > 0 && from + most <= static_cast<std::int64_t>(memory.size()));
    CHECK(read.destination() == memory.data() + from);
    CHECK(read.is_ordinary() || (from % kBlockBytes == 0 && most % kBlockBytes == 0));
    const auto said = input.number<std::uint16_t>();
    std::int64_t answer = std::max<std::int64_t>(0, std::min(most, there - from));
    if (input.left() > 0 && said % 4 == 1) answer = -kErrors[said / 4 % std::size(kErrors)];
    if (input.left() > 0 && said % 4 == 2) answer = std::min<std::int64_t>(answer, said / 4);
    for (std::int64_t i = 0; i < answer; ++i) memory[static_cast<std::size_t>(from + i)] = content(from + i);
    more = read.advance(answer);
  }
  const Outcome outcome = read.take_outcome();
  CHECK(outcome.num_bytes_read >= 0 && outcome.num_bytes_read <= segment.num_bytes);
  for (std::int64_t i = 0; i < outcome.num_bytes_read; ++i)
    CHECK(memory[static_cast<std::size_t>(i)] == content(i));
  const bool whole = outcome.num_bytes_read == segment.num_bytes;
  CHECK(whole == (outcome.error == 0 && !outcome.ended));
  if (whole)
    CHECK(outcome.sum ==
          crc32c(memory.data() + segment.summed_from, static_cast<std::size_t>(segment.summed_bytes)));
  if (outcome.ended) CHECK(there < segment.num_bytes || outcome.num_bytes_read < segment.num_bytes);
}

}  // namespace moeinf::fuzz
