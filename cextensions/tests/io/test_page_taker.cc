#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "moeinf/io/page_taker.h"

using moeinf::PageTaker;

namespace {

constexpr std::size_t kPiece = std::size_t{2} << 20;
constexpr std::size_t kMemory = 9 * kPiece;

struct Taken {
  std::size_t start, end;
};

unsigned char* const kBase = reinterpret_cast<unsigned char*>(std::uintptr_t{1} << 30);  // never touched
std::mutex mutex;
std::vector<Taken> taken;
std::atomic<bool> held{false};
std::atomic<int> entered{0};

bool note(unsigned char* data, std::size_t num_bytes) {
  ++entered;
  while (held) std::this_thread::yield();
  const std::lock_guard<std::mutex> lock(mutex);
  const auto start = static_cast<std::size_t>(data - kBase);
  taken.push_back({start, start + num_bytes});
  return true;
}

bool refuse(unsigned char* data, std::size_t num_bytes) {
  note(data, num_bytes);
  return false;
}

std::vector<Taken> seen() {
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<Taken> sorted = taken;
  std::sort(sorted.begin(), sorted.end(), [](const Taken& a, const Taken& b) { return a.start < b.start; });
  return sorted;
}

void forget() {
  const std::lock_guard<std::mutex> lock(mutex);
  taken.clear();
  entered = 0;
}

void wait_for(std::size_t count) {
  while (seen().size() < count) std::this_thread::yield();
}

}  // namespace

TEST(every_page_that_is_queued_is_taken_once_by_pieces) {
  forget();
  PageTaker taker(kBase, kMemory, note);
  taker.take(100, kPiece + 50);
  wait_for(2);
  taker.take(kPiece + 50, kMemory);
  wait_for(10);
  const std::vector<Taken> all = seen();
  CHECK(all.size() == 10 && all.front().start == 100 && all.back().end == kMemory);
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i].start == all[i - 1].end);
  CHECK(throws<std::invalid_argument>([&] { taker.take(0, kMemory + 1); }));
  CHECK(throws<std::invalid_argument>([&] { taker.take(2, 1); }));
}

TEST(nothing_is_taken_any_more_behind_what_was_dropped) {
  forget();
  held = true;
  PageTaker taker(kBase, kMemory, note);
  taker.take(0, kMemory);
  while (entered < 2) std::this_thread::yield();  // both threads have a piece, of which the second is to go
  std::atomic<bool> dropped{false};
  std::thread dropping([&] {
    taker.drop(kPiece);
    dropped = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!dropped);
  held = false;
  dropping.join();
  const std::size_t before = seen().size();
  CHECK(before >= 1 && before <= 2);
  taker.take(3 * kPiece, 4 * kPiece);
  wait_for(3);
  const std::vector<Taken> all = seen();
  CHECK(all.size() == 3 && all[0].start == 0 && all[1].start == kPiece && all[2].start == 3 * kPiece);
}

TEST(a_kernel_that_cannot_take_pages_is_not_asked_again) {
  forget();
  {
    PageTaker taker(kBase, kMemory, refuse);
    taker.take(0, kMemory);
    wait_for(1);
    taker.drop(0);
    const std::size_t before = seen().size();
    taker.take(0, kMemory);
    taker.drop(0);
    CHECK(before <= 2 && seen().size() == before);
  }
}

TEST(what_is_queued_is_dropped_at_the_end) {
  forget();
  held = true;
  std::thread releasing;
  {
    PageTaker taker(kBase, kMemory, note);
    taker.take(0, kMemory);
    while (entered < 2) std::this_thread::yield();
    releasing = std::thread([] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      held = false;
    });
  }
  releasing.join();
  CHECK(seen().size() < kMemory / kPiece);
}
