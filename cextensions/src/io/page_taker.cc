#include "moeinf/io/page_taker.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "moeinf/signal_block.h"

namespace moeinf {
namespace {

// A huge page. The kernel locks the address space for as long as it takes a piece, and who maps memory
// meanwhile waits.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
constexpr std::size_t kThreads = 2;  // one would not zero faster than some disks read

struct Range {
  std::size_t start, end;
};

}  // namespace

struct PageTaker::State {
  State(unsigned char* memory, std::size_t num_memory_bytes, Populate take_pages)
      : data(memory), num_bytes(num_memory_bytes), populate(take_pages) {}
  ~State();

  void start_threads();
  void run(std::size_t thread);
  Range next_piece();

  unsigned char* const data;
  const std::size_t num_bytes;
  const Populate populate;
  std::mutex mutex;  // guards all that follows
  std::condition_variable work, taken;
  std::deque<Range> queued;
  std::array<std::size_t, kThreads> taking{};  // up to where each thread is taking pages; 0: it is not
  bool refused = false;
  bool closed = false;
  std::vector<std::thread> threads;
};

PageTaker::PageTaker(unsigned char* data, std::size_t num_bytes, Populate populate)
    : state_(new State(data, num_bytes, populate)) {}

PageTaker::~PageTaker() = default;

PageTaker::State::~State() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    closed = true;
  }
  work.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void PageTaker::take(std::size_t start, std::size_t end) {
  home_.require();
  State& state = *state_;
  if (start > end || end > state.num_bytes) throw std::invalid_argument("the range is not inside the memory");
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (start == end || state.refused) return;
  if (state.threads.empty()) state.start_threads();
  if (state.refused) return;
  state.queued.push_back({start, end});
  state.work.notify_all();
}

void PageTaker::drop(std::size_t from) {
  home_.require();
  State& state = *state_;
  std::unique_lock<std::mutex> lock(state.mutex);
  for (Range& range : state.queued) range.end = std::min(range.end, from);
  const auto is_empty = [](const Range& range) { return range.start >= range.end; };
  state.queued.erase(std::remove_if(state.queued.begin(), state.queued.end(), is_empty), state.queued.end());
  state.taken.wait(lock, [&] {
    return std::all_of(state.taking.begin(), state.taking.end(),
                       [&](std::size_t end) { return end <= from; });
  });
}

void PageTaker::State::start_threads() {
  const SignalBlock block;
  try {
    while (threads.size() < kThreads) threads.emplace_back([this, thread = threads.size()] { run(thread); });
  } catch (const std::exception&) {  // no thread, or no memory for one
    refused = threads.empty();
  }
}

void PageTaker::State::run(std::size_t thread) {
  std::unique_lock<std::mutex> lock(mutex);
  for (;;) {
    work.wait(lock, [this] { return closed || !queued.empty(); });
    if (closed) return;
    const Range piece = next_piece();
    taking[thread] = piece.end;
    lock.unlock();
    const bool done = populate(data + piece.start, piece.end - piece.start);
    lock.lock();
    taking[thread] = 0;
    taken.notify_all();
    if (done) continue;
    refused = true;
    queued.clear();
  }
}

// What is queued first, up to the border of a piece.
Range PageTaker::State::next_piece() {
  Range& first = queued.front();
  const std::size_t border = (first.start / kPieceBytes + 1) * kPieceBytes;
  const Range piece = {first.start, std::min(first.end, border)};
  first.start = piece.end;
  if (first.start == first.end) queued.pop_front();
  return piece;
}

}  // namespace moeinf
