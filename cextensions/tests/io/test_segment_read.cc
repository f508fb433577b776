// The full-length loop: every answer that a kernel may give to a read.
#include <cerrno>

#include "check.h"
#include "moeinf/io/segment_read.h"

using moeinf::Asking;
using moeinf::Segment;
using moeinf::SegmentRead;

namespace {

unsigned char memory[16384];
const Segment kSegment{1, 0, 4096, memory, 16384};

}  // namespace

TEST(a_whole_answer_ends_the_segment) {
  SegmentRead read(kSegment, Asking::kOther);
  CHECK(!read.advance(16384));
  CHECK(read.outcome().num_bytes_read == 16384);
  CHECK(read.outcome().error == 0 && !read.outcome().ended);
}

TEST(a_short_answer_is_continued_where_it_stopped) {
  SegmentRead read(kSegment, Asking::kOrdinary);
  CHECK(read.advance(5000));
  CHECK(read.offset() == 4096 + 5000);
  CHECK(read.num_bytes() == 16384 - 5000);
  CHECK(read.destination() == memory + 5000);
  CHECK(!read.advance(16384 - 5000));
  CHECK(read.outcome().num_bytes_read == 16384);
}

TEST(a_short_direct_answer_is_continued_on_a_block_border) {
  SegmentRead read(kSegment, Asking::kOther);
  CHECK(read.advance(5000));
  CHECK(read.offset() == 8192);
  CHECK(read.destination() == memory + 4096);
  CHECK(!read.advance(12288));
  CHECK(read.outcome().num_bytes_read == 16384);
}

TEST(an_empty_answer_is_the_end_of_the_file) {
  for (const bool ordinary : {false, true}) {
    SegmentRead read(kSegment, ordinary ? Asking::kOrdinary : Asking::kOther);
    CHECK(read.advance(8192));
    CHECK(read.advance(0) == !ordinary);
    CHECK(ordinary || !read.advance(0));
    CHECK(read.outcome().ended);
    CHECK(read.outcome().num_bytes_read == 8192);
    CHECK(!read.was_refused());
  }
}

TEST(a_direct_answer_below_one_block_is_asked_for_again_in_the_ordinary_way) {
  SegmentRead read(kSegment, Asking::kOther);
  CHECK(read.advance(100));
  CHECK(read.is_ordinary() && read.offset() == 4096 && read.num_bytes() == 16384);
  CHECK(read.advance(100));
  CHECK(!read.advance(0));
  CHECK(read.outcome().ended);
  CHECK(read.outcome().num_bytes_read == 100);
}

TEST(a_read_that_only_the_ordinary_way_can_do_is_whole_and_tells_what_refused_it) {
  for (const int error : {0, EINVAL, EIO, EOPNOTSUPP, ENOSYS}) {
    SegmentRead read(kSegment, Asking::kOther);
    CHECK(read.advance(4096));
    CHECK(read.advance(-error));
    CHECK(read.is_ordinary() && read.offset() == 8192);
    CHECK(!read.was_refused());
    CHECK(read.advance(5000));
    CHECK(!read.advance(12288 - 5000));
    CHECK(read.outcome().error == 0 && !read.outcome().ended && read.outcome().num_bytes_read == 16384);
    CHECK(read.was_refused() && read.refusal() == error);
  }
}

TEST(a_segment_that_ends_with_its_file_is_asked_for_in_whole_blocks) {
  for (const bool ordinary : {false, true}) {
    SegmentRead read({1, 0, 4096, memory, 5000}, ordinary ? Asking::kOrdinary : Asking::kOther);
    CHECK(read.num_bytes() == 8192);
    CHECK(!read.advance(5000));
    CHECK(read.outcome().num_bytes_read == 5000);
    CHECK(!read.outcome().ended && read.outcome().error == 0);
    SegmentRead grown({1, 0, 4096, memory, 5000}, ordinary ? Asking::kOrdinary : Asking::kOther);
    CHECK(!grown.advance(8192));
    CHECK(grown.outcome().num_bytes_read == 5000);
    SegmentRead cut({1, 0, 4096, memory, 5000}, ordinary ? Asking::kOrdinary : Asking::kOther);
    CHECK(cut.advance(4999));
    CHECK(cut.num_bytes() == (ordinary ? 8192 - 4999 : 4096));
    if (!ordinary) {
      CHECK(cut.advance(903));
      CHECK(cut.is_ordinary() && cut.advance(903));
    }
    CHECK(!cut.advance(0));
    CHECK(cut.outcome().ended && cut.outcome().num_bytes_read == 4999);
  }
}

TEST(an_interrupted_read_is_asked_again_unchanged) {
  SegmentRead read(kSegment, Asking::kOther);
  CHECK(read.advance(4096));
  CHECK(read.advance(-EINTR));
  CHECK(read.advance(-EAGAIN));
  CHECK(read.offset() == 8192);
  CHECK(!read.advance(12288));
  CHECK(read.outcome().error == 0);
}

TEST(interruptions_without_end_become_an_error) {
  SegmentRead read(kSegment, Asking::kOther);
  int num_asked = 1;
  while (read.advance(-EAGAIN)) ++num_asked;
  CHECK(read.outcome().error == EAGAIN);
  CHECK(num_asked == 2000);  // in two ways
}

TEST(an_errno_ends_the_segment_with_what_was_read) {
  SegmentRead read(kSegment, Asking::kOther);
  CHECK(read.advance(4096));
  CHECK(read.advance(-EOPNOTSUPP));
  CHECK(!read.advance(-EIO));
  CHECK(read.outcome().error == EIO && !read.was_refused());
  CHECK(!read.outcome().ended);
  CHECK(read.outcome().num_bytes_read == 4096);
}
