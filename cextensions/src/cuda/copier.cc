#include "moeinf/cuda/copier.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeinf::cuda {
namespace {

constexpr std::int64_t kPageBytes = 4096;
// Long enough for the link's full rate, short enough that copying begins early and the ring holds several.
constexpr std::int64_t kMaxPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kMinPieces = 4;

}  // namespace

void Copier::Parts::clear() {
  destinations.clear();
  sources.clear();
  hosts.clear();
  sizes.clear();
}

Copier::Copier(std::shared_ptr<const Driver> driver, int device, std::int64_t ring_bytes)
    : driver_(std::move(driver)), api_(driver_->api()), pinned_(driver_) {
  if (ring_bytes < kMinPieces * kPageBytes) {
    throw std::invalid_argument("ring_bytes is " + std::to_string(ring_bytes) + "; it is at least " +
                                std::to_string(kMinPieces * kPageBytes));
  }
  try {
    open(device, ring_bytes);
  } catch (...) {
    try {
      close();
    } catch (const CudaError&) {  // the first failure is the one to tell
    }
    throw;
  }
}

Copier::~Copier() {
  try {
    close();
  } catch (const std::exception&) {  // at the end of a process the driver may be gone already
  }
}

void Copier::open(int device, std::int64_t ring_bytes) {
  device_ = driver_->device(device);
  driver_->check(api_.device_primary_ctx_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  const CurrentContext current(*driver_, context_);
  driver_->check(api_.stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate");
  order_ = make_event(kEventDisableTiming);
  piece_bytes_ = std::min(kMaxPieceBytes, ring_bytes / kMinPieces / kPageBytes * kPageBytes);
  const std::int64_t num_pieces = ring_bytes / piece_bytes_;
  driver_->check(api_.mem_host_alloc(&ring_memory_, static_cast<std::size_t>(num_pieces * piece_bytes_),
                                     kHostPortable | kHostDeviceMap),
                 "cuMemHostAlloc");
  for (std::int64_t i = 0; i < num_pieces; ++i) {
    RingPiece piece;
    piece.data = static_cast<unsigned char*>(ring_memory_) + i * piece_bytes_;
    piece.copied = make_event(kEventDisableTiming | kEventBlockingSync);
    ring_.push_back(piece);
  }
  batched_ = api_.memcpy_batch_async != nullptr;
}

void Copier::close() {
  if (closed_ || !home_.is_here()) return;
  closed_ = true;
  if (context_ == nullptr) return;
  std::exception_ptr failure;
  const auto attempt = [&](const auto& action) {
    try {
      action();
    } catch (const CudaError&) {
      if (!failure) failure = std::current_exception();
    }
  };
  const auto answer = [&](Result result, const char* function) {
    attempt([&] { driver_->check(result, function); });
  };
  attempt([&] {
    const CurrentContext current(*driver_, context_);
    if (stream_ != nullptr) {
      answer(api_.stream_synchronize(stream_), "cuStreamSynchronize");
      attempt([&] { reap(); });
    }
    for (const Event event : all_events_) answer(api_.event_destroy(event), "cuEventDestroy");
    if (stream_ != nullptr) answer(api_.stream_destroy(stream_), "cuStreamDestroy");
    pinned_.clear(answer);
    if (ring_memory_ != nullptr) answer(api_.mem_free_host(ring_memory_), "cuMemFreeHost");
  });
  answer(api_.device_primary_ctx_release(device_), "cuDevicePrimaryCtxRelease");
  if (failure) std::rethrow_exception(failure);
}

void Copier::require_open() const {
  home_.require();
  if (closed_) throw std::invalid_argument("the copier is closed");
}

void Copier::require_ticket(std::int64_t ticket) const {
  const std::int64_t last = last_done_ + static_cast<std::int64_t>(flights_.size());
  if (ticket < 0 || ticket > last) {
    throw std::invalid_argument("there is no ticket " + std::to_string(ticket) + "; the last is " +
                                std::to_string(last));
  }
}

Event Copier::make_event(unsigned flags) {
  all_events_.reserve(all_events_.size() + 1);
  Event event = nullptr;
  driver_->check(api_.event_create(&event, flags), "cuEventCreate");
  all_events_.push_back(event);
  return event;
}

std::int64_t Copier::register_memory(unsigned char* data, const std::vector<std::int64_t>& ends,
                                     const std::function<void(std::int64_t)>& between) {
  require_open();
  const CurrentContext current(*driver_, context_);
  return pinned_.add(reinterpret_cast<std::uintptr_t>(data), ends, between);
}

DeviceAddress Copier::device_address(std::uintptr_t address, std::int64_t num_bytes) const {
  require_open();
  return pinned_.device_address(address, num_bytes);
}

// What does not lie in one registered piece goes through the ring, whatever of it is registered.
void Copier::take(std::uintptr_t source, DeviceAddress destination, std::int64_t num_bytes) {
  const DeviceAddress seen = pinned_.find(source, num_bytes);
  if (seen == 0) {
    staged_.push_back({reinterpret_cast<const unsigned char*>(source), destination, num_bytes});
    return;
  }
  direct_.destinations.push_back(destination);
  direct_.sources.push_back(seen);
  direct_.hosts.push_back(reinterpret_cast<const void*>(source));
  direct_.sizes.push_back(static_cast<std::size_t>(num_bytes));
}

void Copier::submit_direct() {
  const std::size_t count = direct_.sizes.size();
  if (batched_ && count > 1) {
    CopyAttributes attributes;
    attributes.source_order = kSourceInStreamOrder;
    std::size_t first = 0, failed = 0;
    const Result result =
        api_.memcpy_batch_async(direct_.destinations.data(), direct_.sources.data(), direct_.sizes.data(),
                                count, &attributes, &first, 1, &failed, stream_);
    // Some virtual machines answer the one, a driver that wants more said of the memory the other. Then one
    // by one from now on, over whatever of the batch was submitted: that says which copy is wrong, if one is.
    if (result != kNotSupported && result != kInvalidValue) {
      driver_->check(result, "cuMemcpyBatchAsync");
      return;
    }
    batched_ = false;
  }
  for (std::size_t i = 0; i < count; ++i) {
    driver_->check(
        api_.memcpy_htod_async(direct_.destinations[i], direct_.hosts[i], direct_.sizes[i], stream_),
        "cuMemcpyHtoDAsync");
  }
}

void Copier::submit_staged(const Staged& part) {
  for (std::int64_t offset = 0; offset < part.num_bytes; offset += piece_bytes_) {
    const auto size = static_cast<std::size_t>(std::min(piece_bytes_, part.num_bytes - offset));
    RingPiece& piece = ring_[next_piece_];
    if (piece.used) driver_->check(api_.event_synchronize(piece.copied), "cuEventSynchronize");
    std::memcpy(piece.data, part.source + offset, size);
    driver_->check(api_.memcpy_htod_async(part.destination + static_cast<DeviceAddress>(offset), piece.data,
                                          size, stream_),
                   "cuMemcpyHtoDAsync");
    driver_->check(api_.event_record(piece.copied, stream_), "cuEventRecord");
    piece.used = true;
    next_piece_ = (next_piece_ + 1) % ring_.size();
  }
}

Copier::Flight Copier::take_flight() {
  if (spare_.empty()) {
    spare_.reserve(flights_.size() + 1);  // all that there are, so that none is lost where one ends
    Flight flight;
    flight.start = make_event(0);
    flight.end = make_event(kEventBlockingSync);
    spare_.push_back(flight);
  }
  const Flight flight = spare_.back();
  spare_.pop_back();
  return flight;
}

std::int64_t Copier::copy(const std::int64_t* sources, const std::int64_t* destinations,
                          const std::int64_t* num_bytes, std::size_t count, Stream compute) {
  require_open();
  std::int64_t all_bytes = 0;
  for (std::size_t i = 0; i < count; all_bytes += num_bytes[i++])
    if (num_bytes[i] <= 0) throw std::invalid_argument("num_bytes is " + std::to_string(num_bytes[i]));
  const CurrentContext current(*driver_, context_);
  reap();
  if (count == 0) return last_done_ + static_cast<std::int64_t>(flights_.size());
  direct_.clear();
  staged_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    take(static_cast<std::uintptr_t>(sources[i]), static_cast<DeviceAddress>(destinations[i]), num_bytes[i]);
  }
  Flight flight = take_flight();
  flight.num_bytes = all_bytes;
  try {
    driver_->check(api_.event_record(order_, compute), "cuEventRecord");
    driver_->check(api_.stream_wait_event(stream_, order_, 0), "cuStreamWaitEvent");
    driver_->check(api_.event_record(flight.start, stream_), "cuEventRecord");
    submit_direct();
    for (const Staged& part : staged_) submit_staged(part);
    driver_->check(api_.event_record(flight.end, stream_), "cuEventRecord");
    flights_.push_back(flight);
  } catch (...) {
    // What was submitted must not write when the caller believes that it failed.
    (void)api_.stream_synchronize(stream_);
    spare_.push_back(flight);
    throw;
  }
  return last_done_ + static_cast<std::int64_t>(flights_.size());
}

void Copier::make_wait(Stream compute, std::int64_t ticket) {
  require_open();
  require_ticket(ticket);
  if (ticket <= last_done_) return;
  const CurrentContext current(*driver_, context_);
  const Flight& flight = flights_[static_cast<std::size_t>(ticket - last_done_ - 1)];
  driver_->check(api_.stream_wait_event(compute, flight.end, 0), "cuStreamWaitEvent");
}

bool Copier::done(std::int64_t ticket) {
  require_open();
  require_ticket(ticket);
  if (ticket > last_done_) look();
  return ticket <= last_done_;
}

void Copier::wait(std::int64_t ticket) {
  require_open();
  require_ticket(ticket);
  if (ticket <= last_done_) return;
  const CurrentContext current(*driver_, context_);
  const Flight& flight = flights_[static_cast<std::size_t>(ticket - last_done_ - 1)];
  driver_->check(api_.event_synchronize(flight.end), "cuEventSynchronize");
  reap();
}

// Forgets the flights that have ended. They follow one another on the stream, so their times add up.
void Copier::reap() {
  while (!flights_.empty()) {
    const Flight& flight = flights_.front();
    const Result result = api_.event_query(flight.end);
    if (result == kNotReady) return;
    driver_->check(result, "cuEventQuery");
    float milliseconds = 0;
    driver_->check(api_.event_elapsed_time(&milliseconds, flight.start, flight.end), "cuEventElapsedTime");
    busy_seconds_ += static_cast<double>(milliseconds) / 1000;
    bytes_copied_ += flight.num_bytes;
    spare_.push_back(flight);
    flights_.pop_front();
    ++last_done_;
  }
}

void Copier::look() {
  home_.require();
  if (closed_ || flights_.empty()) return;
  const CurrentContext current(*driver_, context_);
  reap();
}

std::int64_t Copier::bytes_copied() {
  look();
  return bytes_copied_;
}

double Copier::busy_seconds() {
  look();
  return busy_seconds_;
}

}  // namespace moeinf::cuda
