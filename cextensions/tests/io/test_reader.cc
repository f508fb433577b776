// Both backends over real files, and the pool over reads that are short, interrupted or refused.
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "moeinf/io/crc32c.h"
#include "moeinf/io/reader.h"

using moeinf::Access;
using moeinf::Arena;
using moeinf::BackendKind;
using moeinf::Compared;
using moeinf::Reader;
using moeinf::ReaderOptions;
using moeinf::ReadFailure;

namespace {

constexpr double kDemand = std::numeric_limits<double>::infinity();
constexpr auto kLong = std::chrono::milliseconds(60000);
constexpr std::int64_t kBlock = 4096;

class TemporaryFile {
 public:
  explicit TemporaryFile(std::int64_t num_bytes) : bytes_(static_cast<std::size_t>(num_bytes)) {
    std::mt19937 random(static_cast<unsigned>(num_bytes));
    for (unsigned char& byte : bytes_) byte = static_cast<unsigned char>(random());
    const int fd = ::mkstemp(path_);
    if (fd < 0 || ::write(fd, bytes_.data(), bytes_.size()) != static_cast<ssize_t>(bytes_.size()) ||
        ::close(fd) != 0) {
      throw std::runtime_error("cannot make a temporary file");
    }
  }
  ~TemporaryFile() { ::unlink(path_); }

  std::string path() const { return path_; }
  std::int64_t num_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  const unsigned char* data() const { return bytes_.data(); }
  void overwrite(std::int64_t offset, char byte) const {
    const int fd = ::open(path_, O_WRONLY);
    if (fd < 0 || ::pwrite(fd, &byte, 1, offset) != 1 || ::close(fd) != 0)
      throw std::runtime_error("cannot overwrite");
  }
  void truncate(std::int64_t num_bytes) const {
    if (::truncate(path_, num_bytes) != 0) throw std::runtime_error("cannot truncate");
  }

 private:
  char path_[32] = "./native-test-XXXXXX";
  std::vector<unsigned char> bytes_;
};

// The backends that run here; io_uring may be forbidden.
std::vector<BackendKind> backends() {
  std::vector<BackendKind> kinds{BackendKind::kThreads};
  try {
    Reader({}, {}, std::make_shared<Arena>(kBlock), {BackendKind::kRing});
    kinds.push_back(BackendKind::kRing);
  } catch (const moeinf::SystemFailure& refused) {
    std::printf("skipped for io_uring: %s\n", refused.what());
  }
  return kinds;
}

ReaderOptions options(BackendKind kind, std::int64_t segment_bytes = 4 * kBlock) {
  ReaderOptions result;
  result.backend = kind;
  result.segment_bytes = segment_bytes;
  return result;
}

void submit(Reader& reader, std::int64_t key, std::int64_t offset, std::int64_t destination,
            std::int64_t num_bytes, double priority = kDemand) {
  const std::int64_t file = 0;
  reader.submit({&key, 1}, {&file, 1}, {&offset, 1}, {&destination, 1}, num_bytes, {&priority, 1});
}

// Tells the reader the sums of all blocks, but for one that is told a wrong one.
void expect_all(Reader& reader, const TemporaryFile& file, std::int64_t block_bytes,
                Compared compared = Compared::kOnce, std::int64_t wrong = -1) {
  for (std::int64_t block = 0; block < file.num_bytes() / block_bytes; ++block) {
    const std::int64_t number = 0, offset = block * block_bytes;
    const std::uint32_t sum = moeinf::crc32c(file.data() + offset, static_cast<std::size_t>(block_bytes)) ^
                              static_cast<std::uint32_t>(block == wrong);
    reader.expect({&number, 1}, {&offset, 1}, block_bytes, {&sum, 1}, compared);
  }
}

void wait_for(Reader& reader, std::int64_t key) { CHECK(reader.wait_any({&key, 1}, kLong).size() == 1); }

// Faults in place of pread: every call is short, every other one interrupted.
ssize_t grudging_pread(int fd, void* buffer, std::size_t num_bytes, off_t offset) {
  static std::atomic<unsigned> num_calls{0};
  const unsigned call = num_calls++;
  if (call % 2 == 0) {
    errno = call % 4 == 0 ? EINTR : EAGAIN;
    return -1;
  }
  return ::pread(fd, buffer, std::min<std::size_t>(num_bytes, kBlock + call % 3 * kBlock), offset);
}

// Answers as a FUSE server may: of any length, on no border.
ssize_t pread_of_odd_lengths(int fd, void* buffer, std::size_t num_bytes, off_t offset) {
  static std::atomic<unsigned> num_calls{0};
  const std::size_t length = kBlock + 1 + num_calls++ % 7 * 1237;
  std::vector<unsigned char> room(num_bytes +
                                  kBlock);  // O_DIRECT wants whole blocks: the answer is cut afterwards
  const int buffered = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY);
  const ssize_t got = ::pread(buffered, room.data(), std::min(num_bytes, length), offset);
  ::close(buffered);
  if (got > 0) std::copy_n(room.data(), got, static_cast<unsigned char*>(buffer));
  return got;
}

constexpr off_t kBadOffset = 8 * kBlock;
ssize_t pread_with_a_bad_block(int fd, void* buffer, std::size_t num_bytes, off_t offset) {
  if (offset <= kBadOffset && kBadOffset < offset + static_cast<off_t>(num_bytes)) {
    errno = EIO;
    return -1;
  }
  return ::pread(fd, buffer, num_bytes, offset);
}

// Direct reads from some place of the file on fail, or bring nothing where the errno is 0.
struct Refusal {
  off_t from;
  int error;
} refusal;
#ifdef O_DIRECT
ssize_t pread_that_refuses_direct(int fd, void* buffer, std::size_t num_bytes, off_t offset) {
  if ((::fcntl(fd, F_GETFL) & O_DIRECT) == 0 || offset + static_cast<off_t>(num_bytes) <= refusal.from)
    return ::pread(fd, buffer, num_bytes, offset);
  errno = refusal.error;
  return refusal.error == 0 ? 0 : -1;
}
#endif

}  // namespace

TEST(populated_memory_is_there_and_keeps_what_was_in_it) {
  Arena arena(4 << 20);
  arena.data()[1 << 20] = 7;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (!moeinf::populate(arena.data() + 1, (3 << 20) - 1)) return;  // an old kernel
  std::vector<unsigned char> present((3 << 20) / page);
  CHECK(::mincore(arena.data(), 3 << 20, present.data()) == 0);
  CHECK(std::all_of(present.begin() + 1, present.end(), [](unsigned char byte) { return (byte & 1) != 0; }));
  CHECK(arena.data()[1 << 20] == 7);
  CHECK(moeinf::populate(arena.data() + 1, page - 1));  // no whole page: nothing to do
}

TEST(bytes_arrive_where_they_were_asked_for_on_any_backend) {
  const TemporaryFile file(64 * kBlock);
  for (const BackendKind kind : backends()) {
    for (const Access access : {Access::kCached, Access::kDirect}) {
      auto arena = std::make_shared<Arena>(64 * kBlock);
      ReaderOptions given = options(kind, 3 * kBlock);
      given.access = access;
      Reader reader({file.path()}, {file.num_bytes()}, arena, given);
      for (std::int64_t key = 0; key < 8; ++key) {
        submit(reader, key, key * 8 * kBlock, (7 - key) * 8 * kBlock, 8 * kBlock,
               key % 2 == 0 ? kDemand : 1.0 * key);
      }
      for (std::int64_t key = 0; key < 8; ++key) wait_for(reader, key);
      for (std::int64_t key = 0; key < 8; ++key) {
        const unsigned char* got = arena->data() + (7 - key) * 8 * kBlock;
        CHECK(std::equal(got, got + 8 * kBlock, file.data() + key * 8 * kBlock));
      }
      CHECK(reader.bytes_read() == file.num_bytes());
    }
  }
}

TEST(short_and_interrupted_reads_go_on_until_all_is_there) {
  const TemporaryFile file(64 * kBlock);
  auto arena = std::make_shared<Arena>(file.num_bytes());
  ReaderOptions given = options(BackendKind::kThreads, 16 * kBlock);
  given.pread = grudging_pread;
  Reader reader({file.path()}, {file.num_bytes()}, arena, given);
  submit(reader, 1, 0, 0, file.num_bytes());
  wait_for(reader, 1);
  CHECK(std::equal(file.data(), file.data() + file.num_bytes(), arena->data()));
  CHECK(reader.bytes_read() == file.num_bytes());
}

TEST(short_reads_bring_the_right_bytes_direct_and_buffered) {
  const TemporaryFile file(64 * kBlock);
  for (const Access access : {Access::kCached, Access::kDirect}) {
    auto arena = std::make_shared<Arena>(file.num_bytes());
    ReaderOptions given = options(BackendKind::kThreads, 16 * kBlock);
    given.access = access;
    given.pread = pread_of_odd_lengths;
    Reader reader({file.path()}, {file.num_bytes()}, arena, given);
    expect_all(reader, file, 8 * kBlock);
    for (std::int64_t key = 0; key < 8; ++key)
      submit(reader, key, key * 8 * kBlock, key * 8 * kBlock, 8 * kBlock);
    for (std::int64_t key = 0; key < 8; ++key) wait_for(reader, key);
    CHECK(std::equal(file.data(), file.data() + file.num_bytes(), arena->data()));
  }
}

TEST(files_of_a_remote_file_system_are_read_by_threads_and_a_line_says_so) {
  const TemporaryFile file(8 * kBlock);
  for (const std::uint32_t number : {0x65735546u, 0x6969u, 0xFF534D42u, 0x01021997u, 0x0BD00BD0u}) {
    static std::uint32_t pretended;
    pretended = number;
    ReaderOptions given = options(BackendKind::kAuto);
    given.file_system = [](int) { return pretended; };
    auto arena = std::make_shared<Arena>(file.num_bytes());
    Reader reader({file.path()}, {file.num_bytes()}, arena, given);
    CHECK(std::string(reader.backend()) == "threads");
    CHECK(reader.notice().find("io_uring not used (" + file.path() + " lies on ") != std::string::npos);
    CHECK(reader.notice().find("): reading with 16 threads") != std::string::npos);
    submit(reader, 1, 0, 0, file.num_bytes());
    wait_for(reader, 1);
    CHECK(std::equal(file.data(), file.data() + file.num_bytes(), arena->data()));
    given.backend = BackendKind::kRing;
    CHECK(throws<moeinf::SystemFailure>([&] { Reader({file.path()}, {file.num_bytes()}, arena, given); }));
  }
}

TEST(a_local_file_system_is_not_taken_for_a_remote_one) {
  const TemporaryFile file(8 * kBlock);
  ReaderOptions given = options(BackendKind::kAuto);
  given.file_system = [](int) { return std::uint32_t{0xEF53}; };  // ext4
  const Reader reader({file.path()}, {file.num_bytes()}, std::make_shared<Arena>(kBlock), given);
  CHECK(reader.notice().find("lies on") == std::string::npos);
}

TEST(a_block_that_differs_from_its_sum_fails_and_harms_no_other) {
  const TemporaryFile file(64 * kBlock);
  for (const BackendKind kind : backends()) {
    for (const std::int64_t segment : {kBlock, 3 * kBlock, 64 * kBlock}) {
      auto arena = std::make_shared<Arena>(file.num_bytes());
      Reader reader({file.path()}, {file.num_bytes()}, arena, options(kind, segment));
      expect_all(reader, file, 8 * kBlock, Compared::kOnce, 2);
      for (std::int64_t key = 0; key < 8; ++key)
        submit(reader, key, key * 8 * kBlock, key * 8 * kBlock, 8 * kBlock);
      std::string message;
      for (std::int64_t key = 0; key < 8; ++key) {
        try {
          wait_for(reader, key);
          CHECK(key != 2);
        } catch (const ReadFailure& failure) {
          CHECK(failure.key == 2 && failure.error == EBADMSG && failure.path == file.path());
          message = failure.what();
        }
      }
      CHECK(message == "32768 bytes at 65536 in " + file.path() + " do not match their checksum");
      submit(reader, 2, 2 * 8 * kBlock, 0, 8 * kBlock);  // it was not sound: it is looked at again
      CHECK(throws<ReadFailure>([&] { wait_for(reader, 2); }));
    }
  }
}

TEST(a_block_is_checked_once_or_always_as_was_asked) {
  for (const BackendKind kind : backends()) {
    for (const Compared compared : {Compared::kOnce, Compared::kAlways}) {
      const TemporaryFile file(16 * kBlock);
      auto arena = std::make_shared<Arena>(file.num_bytes());
      Reader reader({file.path()}, {file.num_bytes()}, arena, options(kind));
      expect_all(reader, file, 8 * kBlock, compared);
      submit(reader, 1, 8 * kBlock, 0, 8 * kBlock);
      wait_for(reader, 1);
      file.overwrite(9 * kBlock, 'x');
      submit(reader, 1, 8 * kBlock, 0, 8 * kBlock);
      CHECK(throws<ReadFailure>([&] { wait_for(reader, 1); }) == (compared == Compared::kAlways));
      submit(reader, 2, 8 * kBlock, 0, 4 * kBlock);  // not a whole block: nothing is known of it
      wait_for(reader, 2);
    }
  }
}

TEST(a_disk_error_names_file_and_place_and_harms_no_other_read) {
  const TemporaryFile file(64 * kBlock);
  auto arena = std::make_shared<Arena>(file.num_bytes());
  ReaderOptions given = options(BackendKind::kThreads);
  given.pread = pread_with_a_bad_block;
  Reader reader({file.path()}, {file.num_bytes()}, arena, given);
  submit(reader, 1, 4 * kBlock, 0, 8 * kBlock);
  submit(reader, 2, 16 * kBlock, 16 * kBlock, 8 * kBlock);
  std::string message;
  try {
    wait_for(reader, 1);
  } catch (const ReadFailure& failure) {
    message = failure.what();
    CHECK(failure.key == 1 && failure.error == EIO && failure.path == file.path());
    CHECK(failure.offset == 4 * kBlock && failure.num_bytes_read == 4 * kBlock);
  }
  CHECK(message == "read of 32768 bytes at 16384 in " + file.path() + " failed: Input/output error");
  wait_for(reader, 2);
  submit(reader, 1, 0, 0, kBlock);
  wait_for(reader, 1);
}

#ifdef O_DIRECT
TEST(a_direct_read_that_is_refused_anywhere_is_asked_for_without_and_a_line_says_so_once) {
  const TemporaryFile file(64 * kBlock);
  for (const int error : {0, EINVAL, EOPNOTSUPP, ENOSYS, EIO, EFAULT, EPERM, EACCES, ENOMEM, EROFS}) {
    for (const std::int64_t from : {std::int64_t{0}, kBlock, 40 * kBlock}) {
      const TemporaryFile removed(64 * kBlock);
      refusal = {static_cast<off_t>(from), error};
      auto arena = std::make_shared<Arena>(2 * file.num_bytes());
      ReaderOptions given = options(BackendKind::kThreads);
      given.pread = pread_that_refuses_direct;
      Reader reader({file.path(), removed.path()}, {file.num_bytes(), removed.num_bytes()}, arena, given);
      if (!reader.notice().empty()) return;  // there are no such reads here
      expect_all(reader, file, 8 * kBlock);
      ::unlink(removed.path().c_str());
      for (std::int64_t key = 0; key < 16; ++key) {
        const std::int64_t number = key / 8, offset = key % 8 * 8 * kBlock, destination = key * 8 * kBlock;
        reader.submit({&key, 1}, {&number, 1}, {&offset, 1}, {&destination, 1}, 8 * kBlock, {&kDemand, 1});
        wait_for(reader, key);
      }
      CHECK(std::equal(file.data(), file.data() + file.num_bytes(), arena->data()));
      CHECK(std::equal(removed.data(), removed.data() + file.num_bytes(), arena->data() + file.num_bytes()));
      CHECK(reader.notice() == "O_DIRECT refused for " + file.path() + " (" +
                                   (error == 0 ? "it brings nothing" : std::strerror(error)) +
                                   "): reading through the page cache");
    }
  }
}

TEST(what_fails_without_o_direct_too_is_an_error_and_no_refusal) {
  const TemporaryFile file(64 * kBlock);
  ReaderOptions given = options(BackendKind::kThreads);
  given.pread = pread_with_a_bad_block;
  Reader reader({file.path()}, {file.num_bytes()}, std::make_shared<Arena>(file.num_bytes()), given);
  submit(reader, 1, 0, 0, file.num_bytes());
  CHECK(throws<ReadFailure>([&] { wait_for(reader, 1); }));
  CHECK(reader.notice().empty());
}
#endif

TEST(a_file_that_was_truncated_is_an_error_on_any_backend) {
  for (const BackendKind kind : backends()) {
    for (const Access access : {Access::kCached, Access::kDirect}) {
      const TemporaryFile file(64 * kBlock);
      auto arena = std::make_shared<Arena>(file.num_bytes());
      ReaderOptions given = options(kind);
      given.access = access;
      Reader reader({file.path()}, {file.num_bytes()}, arena, given);
      file.truncate(10 * kBlock + 7);
      submit(reader, 1, 8 * kBlock, 0, 32 * kBlock);
      std::string message;
      try {
        wait_for(reader, 1);
      } catch (const ReadFailure& failure) {
        message = failure.what();
        CHECK(failure.error == 0);
      }
      CHECK(message == file.path() + " ends at 40967, expected 131072 bytes at 32768: the file is truncated");
    }
  }
}

TEST(a_size_that_is_not_the_expected_one_is_found_at_opening) {
  const TemporaryFile file(4 * kBlock);
  auto arena = std::make_shared<Arena>(kBlock);
  CHECK(throws<ReadFailure>([&] { Reader({file.path()}, {5 * kBlock}, arena, ReaderOptions()); }));
  CHECK(
      throws<moeinf::SystemFailure>([&] { Reader({file.path() + "x"}, {kBlock}, arena, ReaderOptions()); }));
}

TEST(ranges_off_the_borders_or_outside_are_refused) {
  const TemporaryFile file(16 * kBlock);
  Reader reader({file.path()}, {file.num_bytes()}, std::make_shared<Arena>(8 * kBlock), ReaderOptions());
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max() / kBlock * kBlock;
  const std::vector<std::vector<std::int64_t>> bad = {{1, 0, kBlock},          {0, 1, kBlock},
                                                      {0, 0, kBlock + 1},      {0, 0, 0},
                                                      {-kBlock, 0, kBlock},    {16 * kBlock, 0, kBlock},
                                                      {0, 8 * kBlock, kBlock}, {kHuge, 0, kBlock},
                                                      {0, kHuge, kBlock},      {0, 0, kHuge},
                                                      {0, 0, -kBlock}};
  for (const auto& range : bad) {
    CHECK(throws<std::invalid_argument>([&] { submit(reader, 1, range[0], range[1], range[2]); }));
  }
  submit(reader, 1, 8 * kBlock, 0, 8 * kBlock);
  wait_for(reader, 1);
}

TEST(closing_lets_reads_in_flight_land_and_drops_the_queue) {
  const TemporaryFile file(512 * kBlock);
  constexpr std::size_t kNumKeys = 32;
  constexpr std::int64_t kNumBytes = 16 * kBlock;
  std::vector<std::int64_t> keys, files(kNumKeys, 0), offsets;
  std::vector<double> priorities;
  for (std::size_t i = 0; i < kNumKeys; ++i) {
    keys.push_back(static_cast<std::int64_t>(i));
    offsets.push_back(keys.back() * kNumBytes);
    priorities.push_back(i < 20 ? kDemand : 1.0);
  }
  for (const BackendKind kind : backends()) {
    for (int round = 0; round < 40; ++round) {
      Reader reader({file.path()}, {file.num_bytes()}, std::make_shared<Arena>(file.num_bytes()),
                    options(kind));
      reader.submit(keys, files, offsets, offsets, kNumBytes, priorities);
      // Early and late in the reading.
      if (round % 2 == 0) CHECK(reader.wait_any({keys.data() + round / 2, 1}, kLong).size() == 1);
      if (round % 4 == 3) continue;  // the destructor closes
      reader.close();
      reader.close();
      const double busy_s = reader.busy_seconds();  // runs on for as long as a read is in flight
      CHECK(reader.busy_seconds() == busy_s);
    }
  }
}

TEST(a_waiter_in_another_thread_ends_when_the_reader_closes) {
  const TemporaryFile file(256 * kBlock);
  for (const BackendKind kind : backends()) {
    Reader reader({file.path()}, {file.num_bytes()}, std::make_shared<Arena>(file.num_bytes()),
                  options(kind, kBlock));
    for (std::int64_t key = 0; key < 16; ++key)
      submit(reader, key, key * 16 * kBlock, key * 16 * kBlock, 16 * kBlock, 1.0);
    std::thread waiter([&] {
      try {
        for (std::int64_t key = 0; key < 16; ++key) wait_for(reader, key);
      } catch (const std::invalid_argument&) {
      }
    });
    reader.close();
    waiter.join();
  }
}

TEST(random_schedules_of_every_call_end_with_the_right_bytes) {
  const TemporaryFile file(512 * kBlock);
  for (const BackendKind kind : backends()) {
    std::mt19937 random(11);
    auto arena = std::make_shared<Arena>(file.num_bytes());
    ReaderOptions given = options(kind, 2 * kBlock);
    given.queue_depth = 6;
    given.prefetch_depth = 3;
    Reader reader({file.path()}, {file.num_bytes()}, arena, given);
    std::vector<std::int64_t> live;
    std::int64_t expected_bytes = 0;
    const auto check_landed = [&](const std::vector<std::int64_t>& keys) {
      for (const std::int64_t key : keys) {
        CHECK(std::equal(file.data() + key * 8 * kBlock, file.data() + (key + 1) * 8 * kBlock,
                         arena->data() + key * 8 * kBlock));
        std::fill_n(arena->data() + key * 8 * kBlock, 8 * kBlock, static_cast<unsigned char>(0xA5));
        live.erase(std::find(live.begin(), live.end(), key));
        expected_bytes += 8 * kBlock;
      }
    };
    for (int step = 0; step < 2000; ++step) {
      const std::int64_t key = static_cast<std::int64_t>(random() % 64);
      const bool known = std::find(live.begin(), live.end(), key) != live.end();
      const double priority = random() % 3 == 0 ? kDemand : random() % 100;
      switch (random() % 6) {
        case 0:
        case 1:
          if (known) break;
          submit(reader, key, key * 8 * kBlock, key * 8 * kBlock, 8 * kBlock, priority);
          live.push_back(key);
          break;
        case 2:
          reader.reprioritise({&key, 1}, {&priority, 1});
          break;
        case 3:
          for (const std::int64_t gone : reader.cancel({&key, 1}))
            live.erase(std::find(live.begin(), live.end(), gone));
          break;
        case 4:
          if (!live.empty()) check_landed(reader.wait_any(live, kLong));
          break;
        default:
          check_landed(reader.poll().done);
      }
    }
    while (!live.empty()) check_landed(reader.wait_any(live, kLong));
    CHECK(reader.bytes_read() == expected_bytes);
    CHECK(reader.busy_seconds() > 0);
  }
}
