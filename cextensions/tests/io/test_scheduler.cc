// The order in which segments are handed out, driven by hand: no threads but where a wake-up is the subject.
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "check.h"
#include "moeinf/io/scheduler.h"

using moeinf::Outcome;
using moeinf::Request;
using moeinf::Scheduler;
using moeinf::Segment;

namespace {

constexpr double kDemand = std::numeric_limits<double>::infinity();
constexpr std::int64_t kSegmentBytes = 4096;
constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kLong = std::chrono::milliseconds(60000);
unsigned char memory[1 << 20];

Request request(std::int64_t key, double priority, int num_segments = 1) {
  return {key, priority, {0, key * 65536, memory, num_segments * kSegmentBytes}, {}};
}

std::int64_t next_key(Scheduler& scheduler) {
  Segment segment;
  return scheduler.try_next(&segment) ? segment.key : -1;
}

// Hands out and lands one segment; its key, or -1.
std::int64_t read_one(Scheduler& scheduler) {
  Segment segment;
  if (!scheduler.try_next(&segment)) return -1;
  scheduler.finished(segment, {segment.num_bytes, 0, false});
  scheduler.check_integrity();
  return segment.key;
}

bool raise(Scheduler& scheduler, std::int64_t key, double priority) {
  return scheduler.reprioritise({&key, 1}, {&priority, 1});
}

}  // namespace

TEST(demand_is_served_first_come_first_served_and_prefetches_by_priority) {
  Scheduler scheduler(16, 16, kSegmentBytes);
  scheduler.submit(
      {request(1, 0.1), request(2, 0.9), request(3, kDemand), request(4, kDemand), request(5, 0.9)});
  for (const std::int64_t expected : {3, 4, 2, 5, 1, -1}) CHECK(read_one(scheduler) == expected);
}

TEST(a_half_issued_prefetch_yields_to_a_demand) {
  Scheduler scheduler(16, 16, kSegmentBytes);
  scheduler.submit({request(1, 0.5, 3)});
  CHECK(read_one(scheduler) == 1);
  scheduler.submit({request(2, kDemand, 2)});
  for (const std::int64_t expected : {2, 2, 1, 1, -1}) CHECK(read_one(scheduler) == expected);
}

TEST(prefetches_leave_most_of_the_queue_to_demand) {
  Scheduler scheduler(8, 2, kSegmentBytes);
  scheduler.submit({request(1, 0.5, 8)});
  CHECK(next_key(scheduler) == 1);
  CHECK(next_key(scheduler) == 1);
  CHECK(next_key(scheduler) == -1);
  scheduler.submit({request(2, kDemand, 10)});
  for (int i = 0; i < 6; ++i) CHECK(next_key(scheduler) == 2);
  CHECK(next_key(scheduler) == -1);
  scheduler.check_integrity();
}

TEST(a_raised_prefetch_becomes_demand_and_frees_its_prefetch_places) {
  Scheduler scheduler(8, 2, kSegmentBytes);
  scheduler.submit({request(1, 0.5, 4), request(2, 0.4, 4)});
  CHECK(next_key(scheduler) == 1);
  CHECK(next_key(scheduler) == 1);
  CHECK(raise(scheduler, 1, kDemand));
  scheduler.check_integrity();
  for (const std::int64_t expected : {1, 1, 2, 2, -1}) CHECK(next_key(scheduler) == expected);
  scheduler.check_integrity();
}

TEST(a_demand_can_be_lowered_to_a_prefetch) {
  Scheduler scheduler(8, 1, kSegmentBytes);
  scheduler.submit({request(1, kDemand, 4)});
  CHECK(next_key(scheduler) == 1);
  CHECK(next_key(scheduler) == 1);
  CHECK(!raise(scheduler, 1, 0.5));
  CHECK(next_key(scheduler) == -1);
  scheduler.check_integrity();
}

TEST(raised_requests_queue_behind_the_demand_before_them) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, 0.5), request(2, kDemand)});
  raise(scheduler, 1, kDemand);
  CHECK(read_one(scheduler) == 2);
  CHECK(read_one(scheduler) == 1);
}

TEST(each_byte_is_handed_out_once_whatever_is_reprioritised) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    Scheduler scheduler(1 + static_cast<int>(random() % 8), 1 + static_cast<int>(random() % 4),
                        2 * kSegmentBytes);
    std::map<std::int64_t, int> num_segments;
    std::set<std::pair<std::int64_t, std::int64_t>> blocks;
    std::vector<Segment> in_flight;
    std::vector<Request> requests;
    for (std::int64_t key = 0; key < 12; ++key) {
      num_segments[key] = 1 + static_cast<int>(random() % 7);
      requests.push_back(request(key, random() % 3 == 0 ? kDemand : random() % 5, num_segments[key]));
    }
    scheduler.submit(requests);
    std::set<std::int64_t> cancelled;
    std::size_t num_done = 0;
    while (num_done + cancelled.size() < requests.size()) {
      const std::int64_t key = static_cast<std::int64_t>(random() % 12);
      const auto choice = random() % 8;
      if (choice == 0) raise(scheduler, key, random() % 2 == 0 ? kDemand : random() % 5);
      if (choice == 1) {
        for (const std::int64_t gone : scheduler.cancel({&key, 1})) cancelled.insert(gone);
      }
      Segment segment;
      if (choice > 1 && choice < 5 && scheduler.try_next(&segment)) {
        CHECK(cancelled.count(segment.key) == 0);
        for (std::int64_t at = 0; at < segment.num_bytes; at += 4096) {
          CHECK(blocks.insert({segment.key, segment.offset + at}).second);
        }
        in_flight.push_back(segment);
      }
      if (choice >= 5 && !in_flight.empty()) {
        std::swap(in_flight[random() % in_flight.size()], in_flight.back());
        scheduler.finished(in_flight.back(), {in_flight.back().num_bytes, 0, false});
        in_flight.pop_back();
      }
      scheduler.check_integrity();
      num_done += scheduler.poll().done.size();
    }
    std::size_t expected = 0;
    for (const auto& [key, count] : num_segments) expected += cancelled.count(key) > 0 ? 0 : count;
    CHECK(blocks.size() == expected);
    CHECK(scheduler.bytes_read() == static_cast<std::int64_t>(expected) * 4096);
  }
}

TEST(a_request_can_be_cancelled_until_its_first_segment_is_issued) {
  Scheduler scheduler(1, 1, kSegmentBytes);
  scheduler.submit({request(1, 0.9, 2), request(2, 0.5)});
  CHECK(next_key(scheduler) == 1);
  const std::vector<std::int64_t> keys = {1, 2, 3};
  CHECK(scheduler.cancel(keys) == std::vector<std::int64_t>{2});
  scheduler.submit({request(2, 0.5)});
  scheduler.check_integrity();
}

TEST(a_known_key_is_refused_and_nothing_of_its_call_is_queued) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand)});
  CHECK(throws<std::invalid_argument>([&] { scheduler.submit({request(2, kDemand), request(1, kDemand)}); }));
  CHECK(throws<std::invalid_argument>([&] { scheduler.submit({request(2, kDemand), request(2, kDemand)}); }));
  CHECK(read_one(scheduler) == 1);
  // Landed, but not collected.
  CHECK(throws<std::invalid_argument>([&] { scheduler.submit({request(1, kDemand)}); }));
  CHECK(read_one(scheduler) == -1);
  CHECK(scheduler.poll().done == std::vector<std::int64_t>{1});
  scheduler.submit({request(1, kDemand)});
}

TEST(priorities_that_cannot_be_ordered_are_refused) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  CHECK(throws<std::invalid_argument>([&] { scheduler.submit({request(1, std::nan(""))}); }));
  CHECK(throws<std::invalid_argument>([&] { scheduler.submit({request(1, -kDemand)}); }));
  scheduler.submit({request(1, 1.0)});
  CHECK(throws<std::invalid_argument>([&] { raise(scheduler, 1, std::nan("")); }));
}

TEST(waiting_collects_what_has_landed_and_nothing_else) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand), request(2, kDemand), request(3, kDemand)});
  read_one(scheduler);
  read_one(scheduler);
  const std::vector<std::int64_t> first = {3, 2};
  CHECK(scheduler.wait_any(first, kNow).done == std::vector<std::int64_t>{2});
  CHECK(throws<std::invalid_argument>([&] { scheduler.wait_any(first, kNow); }));  // 2 is forgotten
  const std::int64_t third = 3;
  CHECK(scheduler.wait_any({&third, 1}, kNow).done.empty());
  CHECK(scheduler.poll().done == std::vector<std::int64_t>{1});
  CHECK(throws<std::invalid_argument>([&] { scheduler.wait_any({&third, 0}, kNow); }));
}

TEST(a_failure_is_told_once_and_its_key_may_come_again) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand, 3), request(2, kDemand)});
  Segment first, second;
  CHECK(scheduler.try_next(&first) && scheduler.try_next(&second));
  scheduler.finished(first, {0, EIO, false});
  CHECK(read_one(scheduler) == 2);  // the third segment of 1 is not worth reading
  const std::vector<std::int64_t> keys = {1, 2};
  scheduler.finished(second, {second.num_bytes, 0, false});
  const Scheduler::Waited failed = scheduler.wait_any(keys, kNow);
  CHECK(failed.failed && failed.failed->key == 1 && failed.failed->outcome.error == EIO);
  CHECK(failed.failed->outcome.num_bytes_read == kSegmentBytes);
  CHECK(failed.done.empty());
  scheduler.submit({request(1, kDemand)});
  CHECK(scheduler.wait_any(keys, kNow).done == std::vector<std::int64_t>{2});
  CHECK(read_one(scheduler) == 1);
}

TEST(a_failed_request_is_not_told_while_a_segment_of_it_is_in_flight) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand, 2)});
  Segment first, second;
  CHECK(scheduler.try_next(&first) && scheduler.try_next(&second));
  scheduler.finished(first, {0, EIO, false});
  CHECK(scheduler.poll().failed.empty());
  scheduler.finished(second, {0, 0, true});
  CHECK(scheduler.poll().failed == std::vector<std::int64_t>{1});
}

TEST(closing_wakes_a_waiter_and_a_reading_thread) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand)});
  Segment segment;
  CHECK(scheduler.try_next(&segment));
  bool refused = false;
  bool more = true;
  std::atomic<int> num_started{0};
  std::thread waiter([&] {
    const std::int64_t key = 1;
    ++num_started;
    refused = throws<std::invalid_argument>([&] { scheduler.wait_any({&key, 1}, kLong); });
  });
  std::thread reader([&] {
    Segment none;
    ++num_started;
    more = scheduler.wait_next(&none);
  });
  while (num_started < 2) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i)
    std::this_thread::yield();  // both are most likely asleep; awake must do as well
  scheduler.close();
  waiter.join();
  reader.join();
  CHECK(refused);
  CHECK(!more);
  scheduler.finished(segment, {segment.num_bytes, 0, false});  // the read that was in flight may still land
  scheduler.check_integrity();
  CHECK(scheduler.is_closed());
}

TEST(cancelling_wakes_a_waiter_for_the_key) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  scheduler.submit({request(1, kDemand)});
  bool refused = false;
  std::thread waiter([&] {
    const std::int64_t key = 1;
    refused = throws<std::invalid_argument>([&] { scheduler.wait_any({&key, 1}, kLong); });
  });
  const std::int64_t key = 1;
  CHECK(scheduler.cancel({&key, 1}).size() == 1);
  waiter.join();
  CHECK(refused);
}

TEST(busy_time_counts_only_while_something_is_in_flight) {
  Scheduler scheduler(8, 8, kSegmentBytes);
  CHECK(scheduler.busy_seconds() == 0);
  scheduler.submit({request(1, kDemand)});
  CHECK(scheduler.busy_seconds() == 0);
  read_one(scheduler);
  const double busy_s = scheduler.busy_seconds();
  CHECK(busy_s > 0);
  CHECK(scheduler.busy_seconds() == busy_s);
}

TEST(pieces_of_a_request_come_one_after_the_other_and_land_together) {
  Scheduler scheduler(16, 16, kSegmentBytes);
  Request three = request(1, 0.5, 2);
  three.more = {{1, 65536, memory, 100}, {0, 8192, memory, kSegmentBytes}};
  scheduler.submit({three});
  std::vector<Segment> segments(4);
  for (Segment& segment : segments) CHECK(scheduler.try_next(&segment));
  Segment none;
  CHECK(!scheduler.try_next(&none));
  CHECK(segments[1].piece == 0 && segments[1].num_bytes == kSegmentBytes);
  CHECK(segments[2].piece == 1 && segments[2].file == 1 && segments[2].num_bytes == 100);
  CHECK(segments[3].piece == 2 && segments[3].offset == 8192);
  for (const std::size_t i : {2, 0, 3, 1}) {
    CHECK(scheduler.poll().done.empty());
    scheduler.finished(segments[i], {segments[i].num_bytes, 0, false});
    scheduler.check_integrity();
  }
  CHECK(scheduler.poll().done.size() == 1);
}

TEST(a_request_fails_with_the_piece_that_did) {
  Scheduler scheduler(2, 2, kSegmentBytes);
  Request two = request(1, kDemand, 1);
  two.more = {{1, 65536, memory, 100}, {2, 0, memory, 100}};
  scheduler.submit({two});
  Segment first, second, none;
  CHECK(scheduler.try_next(&first) && scheduler.try_next(&second));
  scheduler.finished(second, {0, EIO, false});
  scheduler.check_integrity();
  CHECK(!scheduler.try_next(&none));  // the rest is not worth reading
  scheduler.finished(first, {first.num_bytes, 0, false});
  scheduler.check_integrity();
  const std::int64_t key = 1;
  const Scheduler::Waited waited = scheduler.wait_any({&key, 1}, kNow);
  CHECK(waited.failed && waited.failed->key == 1 && waited.failed->piece.file == 1);
  CHECK(waited.failed->outcome.error == EIO);
}

TEST(sums_are_those_of_the_ranges_within_their_blocks) {
  for (const bool damaged : {false, true}) {
    Scheduler scheduler(16, 16, kSegmentBytes);
    moeinf::BlockSum of_first{7, moeinf::Compared::kOnce, false, 100, {}},
        of_second{9, moeinf::Compared::kOnce, false, 2, {}};
    Request two = request(1, kDemand, 3);
    two.piece.sum = &of_first, two.piece.summed_from = 4000, two.piece.summed_bytes = 100;
    two.more = {{0, 0, memory, kSegmentBytes, &of_second, 1, 2}};
    scheduler.submit({two});
    const std::int64_t from[] = {4000, 0, 0, 1}, bytes[] = {96, 4, 0, 2}, after[] = {4, 0, 0, 0};
    const std::uint32_t sums[] = {3, 4, 0, damaged ? 8u : 9u};
    for (std::size_t i = 0; i < 4; ++i) {
      Segment segment;
      CHECK(scheduler.try_next(&segment));
      CHECK(segment.summed_bytes == bytes[i]);
      if (bytes[i] > 0) CHECK(segment.summed_from == from[i] && segment.bytes_after == after[i]);
      scheduler.finished(segment, {segment.num_bytes, 0, false, sums[i]});
    }
    const std::int64_t key = 1;
    const Scheduler::Waited waited = scheduler.wait_any({&key, 1}, kNow);
    CHECK(waited.failed.has_value() == damaged);
    CHECK(!damaged || (waited.failed->outcome.damaged && waited.failed->piece.summed_bytes == 2));
    CHECK(of_first.sound != 0 && (of_second.sound != 0) == !damaged);
  }
}

TEST(what_has_landed_of_a_damaged_block_and_was_not_collected_fails_with_it) {
  moeinf::BlockSum whole{7, moeinf::Compared::kOnce, false, 3 * kSegmentBytes, {}};
  Scheduler scheduler(16, 16, kSegmentBytes);
  for (std::int64_t key = 0; key < 3; ++key) {
    Request slice = request(key, kDemand);
    slice.piece.sum = &whole;
    slice.piece.summed_bytes = kSegmentBytes;
    slice.piece.place_in_sum = key * kSegmentBytes;
    scheduler.submit({slice});
    Segment segment;
    CHECK(scheduler.try_next(&segment));
    scheduler.finished(segment, {segment.num_bytes, 0, false, 1});
  }
  const auto polled = scheduler.poll();
  CHECK(polled.done.empty() && polled.failed.size() == 3);
}
