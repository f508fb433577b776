#include "moeinf/io/scheduler.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iterator>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeinf {
namespace {

constexpr double kDemand = std::numeric_limits<double>::infinity();

void require_priority(double priority) {
  if (std::isnan(priority) || priority == -kDemand) {
    throw std::invalid_argument("a priority is finite (prefetch) or +inf (demand)");
  }
}

}  // namespace

Scheduler::Scheduler(int queue_depth, int prefetch_depth, std::int64_t segment_bytes, Copies copies, Now now)
    : queue_depth_(queue_depth * copies.num_disks),
      prefetch_depth_(prefetch_depth * copies.num_disks),
      segment_bytes_(segment_bytes),
      copies_(std::move(copies)),
      now_(now),
      rates_(copies_.num_disks) {}

void Scheduler::Entry::begin_again() {
  piece = failed_piece = 0;
  issued_bytes = landed_bytes = 0;
  failure = {};
  for (std::size_t index = 0; index < num_pieces(); ++index) {
    found_at(index).sum = 0;
    found_at(index).disks = 0;
  }
}

bool Scheduler::Sooner::operator()(const Entry* a, const Entry* b) const {
  if (a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
  return a->order < b->order;
}

bool Scheduler::is_demand(const Entry& entry) { return entry.request.priority == kDemand; }

bool Scheduler::has_failed(const Entry& entry) {
  return entry.failure.ended || entry.failure.damaged || entry.failure.error != 0;
}

bool Scheduler::submit(const std::vector<Request>& requests) {
  for (const Request& request : requests) require_priority(request.priority);
  const std::lock_guard<std::mutex> lock(mutex_);
  require_open();
  const std::size_t most = entries_.size() + requests.size();
  if (complete_.capacity() < most) complete_.reserve(std::max(most, 2 * complete_.capacity()));
  std::size_t num_added = 0;
  try {
    for (; num_added < requests.size(); ++num_added) add(requests[num_added]);
  } catch (...) {
    while (num_added-- > 0) remove(requests[num_added].key);
    throw;
  }
  return can_issue();
}

void Scheduler::add(const Request& request) {
  if (entries_.count(request.key) > 0)
    throw std::invalid_argument("key " + std::to_string(request.key) + " is submitted already");
  Entry made;
  made.request = request;
  made.order = next_order_++;
  made.more_found.resize(request.more.size());
  for (std::size_t piece = 0; piece < made.num_pieces(); ++piece) {
    const Piece& each = made.piece_at(piece);
    made.num_bytes += each.num_bytes;
    made.found_at(piece).checked = each.sum != nullptr && each.sum->sound != all_disks();
  }
  const auto place = entries_.try_emplace(request.key, std::move(made)).first;
  try {
    waiting_.insert(&place->second);
  } catch (...) {
    entries_.erase(place);
    throw;
  }
}

void Scheduler::remove(std::int64_t key) {
  const auto place = entries_.find(key);
  waiting_.erase(&place->second);
  entries_.erase(place);
}

bool Scheduler::reprioritise(Span<const std::int64_t> keys, Span<const double> priorities) {
  require_as_many(keys, priorities, "priorities");
  for (const double priority : priorities) require_priority(priority);
  const std::lock_guard<std::mutex> lock(mutex_);
  require_open();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto place = entries_.find(keys[i]);
    if (place == entries_.end() || place->second.complete) continue;
    Entry& entry = place->second;
    if (entry.request.priority == priorities[i]) continue;
    auto node = waiting_.extract(&entry);  // before its sort key changes; empty when it is issued to the end
    const bool was_demand = is_demand(entry);
    entry.request.priority = priorities[i];
    if (is_demand(entry))
      entry.order = next_order_++;  // demand is served in the order in which it became demand
    if (was_demand) prefetch_in_flight_ += entry.in_flight;
    if (is_demand(entry)) prefetch_in_flight_ -= entry.in_flight;
    if (!node.empty()) waiting_.insert(std::move(node));
  }
  return can_issue();
}

std::vector<std::int64_t> Scheduler::cancel(Span<const std::int64_t> keys) {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_open();
  std::vector<std::int64_t> cancelled;
  cancelled.reserve(keys.size());
  for (const std::int64_t key : keys) {
    const auto place = entries_.find(key);
    if (place == entries_.end() || place->second.begun()) continue;
    remove(key);
    cancelled.push_back(key);
  }
  if (!cancelled.empty() && num_waiters_ > 0)
    landed_.notify_all();  // a waiter for such a key has to hear of it
  return cancelled;
}

std::vector<std::int64_t> Scheduler::known(Span<const std::int64_t> keys) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_open();
  std::vector<std::int64_t> known;
  std::copy_if(keys.begin(), keys.end(), std::back_inserter(known),
               [this](std::int64_t key) { return entries_.count(key) > 0; });
  return known;
}

Scheduler::Waited Scheduler::wait_any(Span<const std::int64_t> keys, std::chrono::milliseconds timeout) {
  if (keys.empty()) throw std::invalid_argument("wait_any needs at least one key");
  const auto deadline = Clock::now() + timeout;
  std::unique_lock<std::mutex> lock(mutex_);
  for (bool in_time = true;;) {
    require_open();
    require_known(keys);
    Waited waited;
    std::vector<const Entry*> landed;
    for (const Entry* entry : complete_) {
      if (std::find(keys.begin(), keys.end(), entry->request.key) == keys.end()) continue;
      if (has_failed(*entry)) {
        waited.failed = failed_request(*entry);
        forget_landed(entry);
        return waited;
      }
      landed.push_back(entry);
    }
    waited.done.reserve(landed.size());
    for (const Entry* entry : landed) {
      waited.done.push_back(entry->request.key);
      forget_landed(entry);
    }
    if (!landed.empty() || !in_time) return waited;
    ++num_waiters_;
    in_time = landed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    --num_waiters_;
  }
}

Scheduler::Polled Scheduler::poll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  require_open();
  Polled polled;
  polled.done.reserve(complete_.size());
  polled.failed.reserve(complete_.size());
  for (const Entry* entry : complete_) {
    const std::int64_t key = entry->request.key;
    (has_failed(*entry) ? polled.failed : polled.done).push_back(key);
    entries_.erase(key);
  }
  complete_.clear();
  return polled;
}

int Scheduler::file_of(std::int64_t key) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = entries_.find(key);
  if (place == entries_.end()) return -1;
  return copies_.file_on(place->second.request.piece.file, place->second.disk);
}

std::optional<Replaced> Scheduler::first_replaced() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return first_replaced_;
}

bool Scheduler::try_next(Segment* segment) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!can_issue()) return false;
  take(segment);
  return true;
}

bool Scheduler::wait_next(Segment* segment) {
  std::unique_lock<std::mutex> lock(mutex_);
  work_.wait(lock, [this] { return closed_ || can_issue(); });
  if (closed_) return false;
  take(segment);
  // Threads are woken one by one, each by the one before it, instead of all for what may be a single segment.
  if (can_issue()) work_.notify_one();
  return true;
}

void Scheduler::finished(const Segment& segment, const Outcome& outcome) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_.at(segment.key);
  bytes_read_ += outcome.num_bytes_read;
  entry.landed_bytes += outcome.num_bytes_read;
  entry.found_at(segment.piece).sum ^= outcome.sum;
  entry.in_flight -= 1;
  if (!is_demand(entry)) prefetch_in_flight_ -= 1;
  const auto now = now_();
  rates_.finished(segment.disk, segment.num_bytes, outcome.num_bytes_read, now);
  if (--in_flight_ == 0) busy_ += now - busy_since_;
  if (outcome.ended || outcome.error != 0) {
    entry.refused |= Disks{1} << segment.disk;
    if (copies_.num_disks > 1) rates_.give_up(segment.disk);
    if (!has_failed(entry)) {
      entry.failure = outcome;
      entry.failed_piece = segment.piece;
      entry.failed_disk = segment.disk;
      waiting_.erase(&entry);  // the rest is not worth reading
    }
  }
  const bool landed = entry.landed_bytes == entry.num_bytes || has_failed(entry);
  if (!landed || entry.in_flight > 0) return;
  try {
    if (!has_failed(entry)) compare_sums(entry);
    if (has_failed(entry) && read_from_others(entry)) return;
    if (entry.replaced && !has_failed(entry)) note_replaced(entry);
  } catch (const std::bad_alloc&) {
    entry.failure.error = ENOMEM;
  }
  entry.failure.num_bytes_read = entry.landed_bytes;
  entry.complete = true;
  complete_.push_back(&entry);
  if (num_waiters_ > 0) landed_.notify_all();
}

// Only a request that is not damaged counts as compared: the others are to be read again.
void Scheduler::compare_sums(Entry& entry) {
  for (std::size_t piece = 0; piece < entry.num_pieces(); ++piece) {
    const Found& found = entry.found_at(piece);
    if (!found.checked || !is_damaged(entry.piece_at(piece), found) || entry.failure.damaged) continue;
    entry.failure.damaged = true;
    entry.failed_piece = piece;
    distrust(*entry.piece_at(piece).sum);
  }
}

// What has landed of a damaged block, and was not collected, may be what is wrong: nothing of it is known any
// more.
void Scheduler::distrust(const BlockSum& sum) {
  for (const Entry* landed : complete_) {
    Entry& entry = entries_.at(landed->request.key);
    for (std::size_t piece = 0; piece < entry.num_pieces() && !has_failed(entry); ++piece) {
      if (entry.piece_at(piece).sum != &sum) continue;
      entry.failure.damaged = true;
      entry.failed_piece = piece;
    }
  }
}

FailedRequest Scheduler::failed_request(const Entry& entry) const {
  FailedRequest failed{entry.request.key, entry.piece_at(entry.failed_piece), entry.failure};
  failed.piece.file = copies_.file_on(failed.piece.file, entry.failed_disk);
  return failed;
}

// Queues a request that has failed once more, from disks that may still bring it: false where none is left.
bool Scheduler::read_from_others(Entry& entry) {
  if (copies_.num_disks == 1 || !copies_.cuts.empty() || closed_) return false;
  const Piece& piece = entry.piece_at(entry.failed_piece);
  const bool damaged = entry.failure.damaged;
  if (damaged && piece.summed_bytes < piece.sum->num_bytes) {
    // Other slices of the expert may be the wrong ones, and have been used: all are read again when they are
    // asked for again, and then from the first disk.
    piece.sum->disk = 0;
    return false;
  }
  if (entry.alone >= 0) {
    entry.refused |= Disks{1} << entry.alone;
    entry.failed_disk = entry.alone;
  }
  // Of bytes that came from several disks, nobody knows whose are wrong until each alone was asked for all of
  // them.
  const bool one_by_one = damaged || entry.alone >= 0;
  const int next = one_by_one ? first_but(entry.refused) : rates_.choose(1, entry.refused, now_());
  if (next < 0) return false;
  if (entry.alone < 0 && damaged) entry.failed_disk = next == 0 ? 1 : 0;  // if `next` has them right
  waiting_.insert(&entry);
  entry.replaced = failed_request(entry);
  if (one_by_one) entry.alone = next;
  entry.begin_again();
  return true;
}

int Scheduler::first_but(Disks refused) const {
  for (int disk = 0; disk < copies_.num_disks; ++disk) {
    if ((refused >> disk & 1) == 0) return disk;
  }
  return -1;
}

// The failed request was read from another disk, which has its blocks right.
void Scheduler::note_replaced(Entry& entry) {
  if (entry.alone >= 0) {
    for (std::size_t piece = 0; piece < entry.num_pieces(); ++piece) {
      if (entry.piece_at(piece).sum != nullptr) entry.piece_at(piece).sum->disk = entry.alone;
    }
  }
  if (first_replaced_) return;
  const int disk = entry.alone >= 0 ? entry.alone : entry.disk;
  first_replaced_ = Replaced{*entry.replaced, copies_.file_on(entry.request.piece.file, disk)};
}

// Of a piece whose sum is of more than that: whether all of it is known by now, and damaged. Which of its
// ranges is, nobody can tell, so that all of them are to be read again.
bool Scheduler::is_damaged(const Piece& piece, const Found& found) {
  BlockSum& sum = *piece.sum;
  std::uint32_t total = found.sum;
  Disks from = found.disks;
  if (piece.summed_bytes < sum.num_bytes) {
    sum.shares[piece.place_in_sum] = {piece.summed_bytes, found.sum, found.disks};
    std::int64_t end = 0;
    total = 0;
    for (const auto& [place, share] : sum.shares) {
      if (place != end) return false;
      end += share.num_bytes;
      total ^= share.sum;
      from |= share.disks;
    }
    if (end != sum.num_bytes) return false;
  }
  const bool damaged = total != sum.expected;
  if (damaged)
    sum.sound = 0;
  else if (sum.compared == Compared::kOnce)
    sum.sound |= shown_sound(from);
  if (damaged || sum.sound == all_disks()) sum.shares.clear();
  return damaged;
}

// Which disks need not be compared any more, as these together have brought a block as it was written: one
// that had a part in it alone may have the rest wrong. Where each disk has other bytes, there is but one
// source.
Disks Scheduler::shown_sound(Disks from) const {
  if (!copies_.cuts.empty()) return all_disks();
  return (from & (from - 1)) == 0 ? from : 0;
}

void Scheduler::wake_one() { work_.notify_one(); }

void Scheduler::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  waiting_.clear();
  work_.notify_all();
  landed_.notify_all();
}

bool Scheduler::is_closed() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return closed_;
}

std::int64_t Scheduler::bytes_read() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_read_;
}

std::int64_t Scheduler::bytes_read_of(int disk) const {
  if (disk < 0 || disk >= copies_.num_disks)
    throw std::out_of_range("there is no disk " + std::to_string(disk));
  const std::lock_guard<std::mutex> lock(mutex_);
  return rates_.bytes_read(disk);
}

double Scheduler::busy_seconds() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto busy = in_flight_ > 0 ? busy_ + (now_() - busy_since_) : busy_;
  return std::chrono::duration<double>(busy).count();
}

void Scheduler::check_integrity() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  int in_flight = 0;
  int prefetch_in_flight = 0;
  std::size_t num_complete = 0;
  for (const auto& [key, entry] : entries_) {
    in_flight += entry.in_flight;
    if (!is_demand(entry)) prefetch_in_flight += entry.in_flight;
    if (entry.complete) ++num_complete;
    const bool issued = entry.piece == entry.num_pieces() || has_failed(entry) || closed_;
    const bool waiting = waiting_.count(const_cast<Entry*>(&entry)) > 0;
    if (key != entry.request.key || waiting == issued || entry.landed_bytes > entry.num_bytes ||
        (entry.complete && entry.in_flight > 0)) {
      throw std::logic_error("scheduler: the state of key " + std::to_string(key) + " contradicts itself");
    }
  }
  if (in_flight != in_flight_ || prefetch_in_flight != prefetch_in_flight_ || in_flight_ > queue_depth_ ||
      num_complete != complete_.size()) {
    throw std::logic_error("scheduler: counts differ from the entries");
  }
}

bool Scheduler::can_issue() const {
  if (closed_ || waiting_.empty() || in_flight_ >= queue_depth_) return false;
  return is_demand(**waiting_.begin()) || prefetch_in_flight_ < prefetch_depth_;
}

void Scheduler::take(Segment* segment) {
  Entry& entry = **waiting_.begin();
  const Piece& piece = entry.piece_at(entry.piece);
  const std::int64_t start = entry.issued_bytes;
  std::int64_t end = std::min(start + segment_bytes_, piece.num_bytes);
  const auto now = now_();
  entry.disk = disk_of(entry, piece, start, &end, now);
  *segment = {entry.request.key,    copies_.file_on(piece.file, entry.disk),
              piece.offset + start, piece.destination + start,
              end - start,          entry.piece};
  segment->disk = entry.disk;
  if (entry.found_at(entry.piece).checked) {
    entry.found_at(entry.piece).disks |= Disks{1} << entry.disk;
    const std::int64_t last = piece.summed_from + piece.summed_bytes;
    const std::int64_t from = std::max(start, piece.summed_from), to = std::max(from, std::min(end, last));
    segment->summed_from = from - start;
    segment->summed_bytes = to - from;
    segment->bytes_after = last - to + piece.bytes_behind();
  }
  entry.issued_bytes = end;
  if (end == piece.num_bytes) {
    entry.piece += 1;
    entry.issued_bytes = 0;
  }
  entry.in_flight += 1;
  if (!is_demand(entry)) prefetch_in_flight_ += 1;
  rates_.issued(entry.disk, segment->num_bytes, now);
  if (in_flight_++ == 0) busy_since_ = now;
  if (entry.piece == entry.num_pieces()) waiting_.erase(waiting_.begin());
}

// Which disk is asked for the bytes of a piece from `start` on; their end is drawn in to where its part ends.
int Scheduler::disk_of(const Entry& entry, const Piece& piece, std::int64_t start, std::int64_t* end,
                       Clock::time_point now) const {
  if (copies_.num_disks == 1) return 0;
  if (!copies_.cuts.empty()) {
    const Cut& cut = copies_.cuts[static_cast<std::size_t>(piece.file)];
    const std::int64_t place = (piece.offset + start) % cut.period;
    const std::int64_t part = place < cut.first ? cut.first - place : cut.period - place;
    *end = std::min(*end, start + part);
    return place < cut.first ? 0 : 1;
  }
  if (entry.alone >= 0) return entry.alone;
  if (piece.sum != nullptr && piece.sum->disk >= 0) return piece.sum->disk;
  return rates_.choose(*end - start, entry.refused, now);
}

void Scheduler::require_open() const {
  if (closed_) throw std::invalid_argument("the reader is closed");
}

void Scheduler::require_known(Span<const std::int64_t> keys) const {
  for (const std::int64_t key : keys) {
    if (entries_.count(key) == 0) {
      throw std::invalid_argument("key " + std::to_string(key) + " is not being read");
    }
  }
}

void Scheduler::forget_landed(const Entry* entry) {
  complete_.erase(std::find(complete_.begin(), complete_.end(), entry));
  entries_.erase(entry->request.key);
}

}  // namespace moeinf
