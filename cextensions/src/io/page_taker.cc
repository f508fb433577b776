#include "moeinf/io/page_taker.h"

#include <algorithm>
#include <exception>
#include <stdexcept>

#include "moeinf/signal_block.h"

namespace moeinf {
namespace {

// A huge page. The kernel locks the address space for as long as it takes a piece, and who maps memory
// meanwhile waits.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

}  // namespace

PageTaker::PageTaker(unsigned char* data, std::size_t num_bytes, Populate populate)
    : data_(data), num_bytes_(num_bytes), populate_(populate) {}

PageTaker::~PageTaker() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PageTaker::take(std::size_t start, std::size_t end) {
  if (start > end || end > num_bytes_) throw std::invalid_argument("the range is not inside the memory");
  const std::lock_guard<std::mutex> lock(mutex_);
  if (start == end || refused_) return;
  if (threads_.empty()) start_threads();
  if (refused_) return;
  queued_.push_back({start, end});
  work_.notify_all();
}

void PageTaker::drop(std::size_t from) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (Range& range : queued_) range.end = std::min(range.end, from);
  const auto is_empty = [](const Range& range) { return range.start >= range.end; };
  queued_.erase(std::remove_if(queued_.begin(), queued_.end(), is_empty), queued_.end());
  taken_.wait(lock, [&] {
    return std::all_of(taking_.begin(), taking_.end(), [&](std::size_t end) { return end <= from; });
  });
}

void PageTaker::start_threads() {
  const SignalBlock block;
  try {
    while (threads_.size() < kThreads)
      threads_.emplace_back([this, thread = threads_.size()] { run(thread); });
  } catch (const std::exception&) {  // no thread, or no memory for one
    refused_ = threads_.empty();
  }
}

void PageTaker::run(std::size_t thread) {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return closed_ || !queued_.empty(); });
    if (closed_) return;
    const Range piece = next_piece();
    taking_[thread] = piece.end;
    lock.unlock();
    const bool done = populate_(data_ + piece.start, piece.end - piece.start);
    lock.lock();
    taking_[thread] = 0;
    taken_.notify_all();
    if (done) continue;
    refused_ = true;
    queued_.clear();
  }
}

// What is queued first, up to the border of a piece.
PageTaker::Range PageTaker::next_piece() {
  Range& first = queued_.front();
  const std::size_t border = (first.start / kPieceBytes + 1) * kPieceBytes;
  const Range piece = {first.start, std::min(first.end, border)};
  first.start = piece.end;
  if (first.start == first.end) queued_.pop_front();
  return piece;
}

}  // namespace moeinf
