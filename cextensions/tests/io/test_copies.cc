// Several disks that have the same files: which one is asked, and what happens where one of them fails.
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "moeinf/io/copies.h"
#include "moeinf/io/crc32c.h"
#include "moeinf/io/reader.h"
#include "moeinf/io/scheduler.h"

using moeinf::Arena;
using moeinf::BackendKind;
using moeinf::Copies;
using moeinf::DiskRates;
using moeinf::Reader;
using moeinf::ReaderOptions;
using moeinf::ReadFailure;
using moeinf::Request;
using moeinf::Scheduler;
using moeinf::Segment;

namespace {

constexpr double kDemand = std::numeric_limits<double>::infinity();
constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kLong = std::chrono::milliseconds(60000);
constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kMiB = 1 << 20;
unsigned char memory[1 << 20];

Copies two_disks(int num_files = 1) { return {2, num_files, {}}; }

Request request(std::int64_t key, int num_segments) {
  return {key, kDemand, {0, key * 65536, memory, num_segments * kBlock}, {}};
}

// Has each disk read at a rate of its own for a time, always 8 MiB at once: how many MiB each was asked for.
std::array<std::int64_t, 2> shares(DiskRates& rates, std::array<double, 2> mib_per_s, double start,
                                   double end) {
  struct Flight {
    int disk;
    double lands;
  };
  std::vector<Flight> flights;
  std::array<double, 2> free_at{};
  std::array<std::int64_t, 2> given{};
  const DiskRates::Clock::time_point zero{};
  const auto at = [&](double s) {
    return zero + std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * s));
  };
  double now = start;
  while (now < end) {
    while (flights.size() < 8) {
      const int disk = rates.choose(kMiB, 0, at(now));
      const auto which = static_cast<std::size_t>(disk);
      rates.issued(disk, kMiB, at(now));
      free_at[which] = std::max(free_at[which], now) + 1 / mib_per_s[which];
      flights.push_back({disk, free_at[which]});
      ++given[which];
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < flights.size(); ++i) {
      if (flights[i].lands < flights[next].lands) next = i;
    }
    now = flights[next].lands;
    rates.finished(flights[next].disk, kMiB, kMiB, at(now));
    flights.erase(flights.begin() + static_cast<std::ptrdiff_t>(next));
  }
  for (const Flight& each : flights) rates.finished(each.disk, kMiB, kMiB, at(std::max(now, each.lands)));
  return given;
}

class TwoFiles {
 public:
  explicit TwoFiles(std::int64_t num_bytes) : bytes_(static_cast<std::size_t>(num_bytes)) {
    std::mt19937 random(7);
    for (unsigned char& byte : bytes_) byte = static_cast<unsigned char>(random());
    for (char* path : {first_, second_}) {
      const int fd = ::mkstemp(path);
      if (fd < 0 || ::write(fd, bytes_.data(), bytes_.size()) != static_cast<ssize_t>(bytes_.size()) ||
          ::close(fd) != 0)
        throw std::runtime_error("cannot make a temporary file");
    }
  }
  ~TwoFiles() {
    ::unlink(first_);
    ::unlink(second_);
  }

  std::vector<std::string> paths() const { return {first_, second_}; }
  const unsigned char* data() const { return bytes_.data(); }
  std::int64_t num_bytes() const { return static_cast<std::int64_t>(bytes_.size()); }
  void spoil(int disk, std::int64_t offset) const {
    std::fstream file(paths()[static_cast<std::size_t>(disk)],
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(static_cast<char>(bytes_[static_cast<std::size_t>(offset)] ^ 1));
    if (!file.flush()) throw std::runtime_error("cannot overwrite");
  }

 private:
  char first_[32] = "./native-first-XXXXXX";
  char second_[32] = "./native-second-XXXXXX";
  std::vector<unsigned char> bytes_;
};

constexpr std::int64_t kExpert = 16 * kBlock;

ReaderOptions options_of(BackendKind kind, moeinf::PreadFunction pread = ::pread) {
  ReaderOptions options;
  options.backend = kind;
  options.segment_bytes = kBlock;
  options.copies = two_disks();
  options.pread = pread;
  return options;
}

void expect_all(Reader& reader, const TwoFiles& files) {
  const std::int64_t file = 0;
  for (std::int64_t at = 0; at < files.num_bytes(); at += kExpert) {
    const std::uint32_t sum = moeinf::crc32c(files.data() + at, kExpert);
    reader.expect({&file, 1}, {&at, 1}, kExpert, {&sum, 1}, moeinf::Compared::kAlways);
  }
}

void read_expert(Reader& reader, std::int64_t key) {
  const std::int64_t file = 0, offset = key * kExpert;
  reader.submit({&key, 1}, {&file, 1}, {&offset, 1}, {&offset, 1}, kExpert, {&kDemand, 1});
  CHECK(reader.wait_any({&key, 1}, kLong).size() == 1);
}

bool is_read(const Arena& arena, const TwoFiles& files, std::int64_t key) {
  return std::memcmp(arena.data() + key * kExpert, files.data() + key * kExpert, kExpert) == 0;
}

// Every read of the second disk fails.
ssize_t pread_without_second(int fd, void* buffer, std::size_t num_bytes, off_t offset) {
  char link[64], name[256] = {};
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  if (::readlink(link, name, sizeof(name) - 1) > 0 && std::strstr(name, "native-second") != nullptr) {
    errno = EIO;
    return -1;
  }
  return ::pread(fd, buffer, num_bytes, offset);
}

}  // namespace

TEST(disks_are_asked_in_proportion_to_their_rates) {
  for (const double slower : {1.0, 0.5, 0.3}) {
    DiskRates rates(2);
    const auto given = shares(rates, {200, 200 * slower}, 0, 20);
    const double share = static_cast<double>(given[1]) / static_cast<double>(given[0]);
    CHECK(share > 0.8 * slower && share < 1.2 * slower);
    CHECK(rates.bytes_per_s(0) > 0.9 * 200 * kMiB && rates.bytes_per_s(0) < 1.1 * 200 * kMiB);
  }
}

TEST(a_disk_that_is_too_slow_to_help_takes_little_time) {
  DiskRates rates(2);
  shares(rates, {200, 5}, 0, 20);
  const auto given = shares(rates, {200, 5}, 20, 40);
  CHECK(given[0] > 0.9 * 20 * 200);
  CHECK(given[1] > 0);
}

TEST(disks_that_become_slow_or_fast_are_asked_less_or_more) {
  DiskRates rates(2);
  shares(rates, {200, 200}, 0, 10);
  shares(rates, {200, 5}, 10, 30);
  const auto slow = shares(rates, {200, 5}, 30, 40);
  CHECK(slow[1] * 10 < slow[0]);
  shares(rates, {200, 200}, 40, 100);
  const auto fast = shares(rates, {200, 200}, 100, 110);
  CHECK(fast[1] > 0.8 * fast[0] && fast[1] < 1.2 * fast[0]);
}

TEST(of_idle_disks_of_one_rate_the_one_that_read_less_is_asked) {
  DiskRates rates(2);
  for (int i = 0; i < 4; ++i) {
    const int disk = rates.choose(kBlock, 0, {});
    CHECK(disk == i % 2);
    rates.issued(disk, kBlock, {});
    rates.finished(disk, kBlock, kBlock, {});
  }
}

TEST(a_disk_that_was_given_up_is_asked_only_where_no_other_is_left) {
  DiskRates rates(2);
  rates.give_up(0);
  CHECK(rates.choose(kBlock, 0, {}) == 1);
  CHECK(rates.choose(kBlock, 2, {}) == 0);
  CHECK(rates.choose(kBlock, 3, {}) == -1);
  rates.give_up(1);
  CHECK(rates.choose(kBlock, 0, {}) >= 0);
}

TEST(segments_of_one_request_go_to_both_disks) {
  Scheduler scheduler(16, 16, kBlock, two_disks(3));
  scheduler.submit({request(1, 4)});
  std::array<int, 2> asked{};
  Segment segment;
  while (scheduler.try_next(&segment)) {
    CHECK(segment.file == 3 * segment.disk);
    ++asked[static_cast<std::size_t>(segment.disk)];
  }
  CHECK(asked[0] == 2 && asked[1] == 2);
  scheduler.check_integrity();
}

TEST(each_disk_has_a_queue_of_its_own_depth) {
  Scheduler scheduler(2, 1, kBlock, two_disks());
  scheduler.submit({request(1, 9)});
  Segment segment;
  int count = 0;
  while (scheduler.try_next(&segment)) ++count;
  CHECK(count == 4);
}

TEST(a_divided_file_is_read_from_the_disk_that_has_each_byte) {
  Copies copies = two_disks();
  copies.cuts = {{4 * kBlock, kBlock}};
  Scheduler scheduler(16, 16, 3 * kBlock, copies);
  scheduler.submit({{1, kDemand, {0, 4 * kBlock, memory, 8 * kBlock}, {}}});
  const std::array<int, 4> disks{0, 1, 0, 1};
  const std::array<std::int64_t, 4> offsets{4, 5, 8, 9}, blocks{1, 3, 1, 3};
  Segment segment;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(scheduler.try_next(&segment));
    CHECK(segment.disk == disks[i] && segment.file == disks[i]);
    CHECK(segment.offset == offsets[i] * kBlock && segment.num_bytes == blocks[i] * kBlock);
    scheduler.finished(segment, {segment.num_bytes, 0, false});
    scheduler.check_integrity();
  }
  CHECK(scheduler.poll().done.size() == 1);
}

TEST(a_part_of_a_divided_file_that_cannot_be_read_is_a_failure) {
  Copies copies = two_disks();
  copies.cuts = {{4 * kBlock, kBlock}};
  Scheduler scheduler(16, 16, 3 * kBlock, copies);
  scheduler.submit({{1, kDemand, {0, 0, memory, 4 * kBlock}, {}}});
  Segment first, second;
  CHECK(scheduler.try_next(&first) && scheduler.try_next(&second));
  scheduler.finished(second, {0, EIO, false});
  scheduler.finished(first, {first.num_bytes, 0, false});
  scheduler.check_integrity();
  const std::int64_t key = 1;
  const Scheduler::Waited waited = scheduler.wait_any({&key, 1}, kNow);
  CHECK(waited.failed && waited.failed->outcome.error == EIO && waited.failed->piece.file == 1);
}

TEST(what_one_disk_cannot_read_the_other_reads) {
  Scheduler scheduler(16, 16, kBlock, two_disks());
  scheduler.submit({request(1, 2), request(2, 2)});
  std::vector<Segment> segments(4);
  for (Segment& each : segments) CHECK(scheduler.try_next(&each));
  for (const Segment& each : segments) {
    const bool fails = each.disk == 1;
    scheduler.finished(each, {fails ? 0 : each.num_bytes, fails ? EIO : 0, false});
    scheduler.check_integrity();
  }
  Segment again;
  int count = 0;
  while (scheduler.try_next(&again)) {
    CHECK(again.disk == 0);  // the other was given up
    scheduler.finished(again, {again.num_bytes, 0, false});
    scheduler.check_integrity();
    ++count;
  }
  CHECK(count == 4);
  CHECK(scheduler.poll().done.size() == 2);
  const auto replaced = scheduler.first_replaced();
  CHECK(replaced && replaced->failed.piece.file == 1 && replaced->file == 0);
}

TEST(what_no_disk_can_read_has_failed) {
  Scheduler scheduler(16, 16, kBlock, two_disks());
  scheduler.submit({request(1, 1)});
  Segment segment;
  for (int i = 0; i < 2; ++i) {
    CHECK(scheduler.try_next(&segment));
    scheduler.finished(segment, {0, EIO, false});
    scheduler.check_integrity();
  }
  CHECK(!scheduler.try_next(&segment));
  const std::int64_t key = 1;
  const Scheduler::Waited waited = scheduler.wait_any({&key, 1}, kNow);
  CHECK(waited.failed && waited.failed->outcome.error == EIO);
  CHECK(!scheduler.first_replaced());
}

TEST(a_slice_that_is_damaged_fails_and_is_read_from_the_first_disk_from_then_on) {
  moeinf::BlockSum whole{7, moeinf::Compared::kOnce, false, 2 * kBlock, {}};
  Scheduler scheduler(16, 16, kBlock, two_disks());
  for (std::int64_t place = 0; place < 2; ++place) {
    Request slice = request(place, 1);
    slice.piece.sum = &whole;
    slice.piece.summed_bytes = kBlock;
    slice.piece.place_in_sum = place * kBlock;
    scheduler.submit({slice});
    Segment segment;
    CHECK(scheduler.try_next(&segment));
    scheduler.finished(segment, {segment.num_bytes, 0, false, 1});
  }
  const std::int64_t key = 1;
  CHECK(scheduler.wait_any({&key, 1}, kNow).failed.has_value());
  CHECK(whole.disk == 0);
}

TEST(a_damaged_copy_is_replaced_whichever_disk_has_it) {
  for (const BackendKind kind : {BackendKind::kThreads, BackendKind::kAuto}) {
    for (const int damaged : {0, 1}) {
      const TwoFiles files(4 * kExpert);
      for (std::int64_t at = kExpert; at < 2 * kExpert; at += kBlock) files.spoil(damaged, at + 5);
      const auto arena = std::make_shared<Arena>(4 * kExpert);
      Reader reader(files.paths(), {files.num_bytes()}, arena, options_of(kind));
      expect_all(reader, files);
      for (int round = 0; round < 3; ++round) {
        std::memset(arena->data(), 0, arena->num_bytes());
        for (std::int64_t key = 0; key < 4; ++key) {
          read_expert(reader, key);
          CHECK(is_read(*arena, files, key));
        }
      }
      const std::string wrong = files.paths()[static_cast<std::size_t>(damaged)];
      const std::string right = files.paths()[static_cast<std::size_t>(1 - damaged)];
      const std::string said = wrong + " do not match their checksum: read from " + right + " instead";
      CHECK(reader.notice().find(said) != std::string::npos);
    }
  }
}

TEST(an_expert_that_is_damaged_on_both_disks_has_failed) {
  const TwoFiles files(2 * kExpert);
  files.spoil(0, 5);
  files.spoil(1, 6);
  const auto arena = std::make_shared<Arena>(2 * kExpert);
  Reader reader(files.paths(), {files.num_bytes()}, arena, options_of(BackendKind::kThreads));
  expect_all(reader, files);
  bool failed = false;
  try {
    read_expert(reader, 0);
  } catch (const ReadFailure& failure) {
    failed = failure.error == EBADMSG;
  }
  CHECK(failed);
  read_expert(reader, 1);
  CHECK(is_read(*arena, files, 1));
}

TEST(a_disk_that_fails_is_given_up_and_the_notice_names_it) {
  const TwoFiles files(8 * kExpert);
  const auto arena = std::make_shared<Arena>(8 * kExpert);
  Reader reader(files.paths(), {files.num_bytes()}, arena,
                options_of(BackendKind::kThreads, pread_without_second));
  for (std::int64_t key = 0; key < 8; ++key) {
    read_expert(reader, key);
    CHECK(is_read(*arena, files, key));
  }
  CHECK(reader.bytes_read_of(1) == 0);
  const std::string notice = reader.notice();
  CHECK(notice.find(files.paths()[1]) != std::string::npos && notice.find("instead") != std::string::npos);
}

TEST(what_cannot_be_meant_of_disks_is_refused) {
  const TwoFiles files(kExpert);
  const auto arena = std::make_shared<Arena>(kExpert);
  const auto refused = [&](const Copies& copies) {
    ReaderOptions options = options_of(BackendKind::kThreads);
    options.copies = copies;
    return throws<std::invalid_argument>([&] { Reader(files.paths(), {files.num_bytes()}, arena, options); });
  };
  CHECK(refused({0, 0, {}}));
  CHECK(refused({17, 0, {}}));
  CHECK(refused({3, 0, {}}));  // as many paths as files and disks are needed
  CHECK(refused({2, 0, {{kExpert, 0}}}));
  CHECK(refused({2, 0, {{kExpert, kExpert}}}));
  CHECK(refused({2, 0, {{kExpert, 100}}}));
  CHECK(refused({2, 0, {{kExpert, kBlock}, {kExpert, kBlock}}}));
}
