// Copies blocks of host memory to a device in the background: one stream, one ticket for each call.
//
// Registered (pinned) memory is read by the device itself while the caller goes on; other memory is first
// copied, by the caller, into a ring of pinned pieces. The stream is one queue, so copies end in the order of
// their tickets: all bookkeeping is a first and a last ticket.
//
// For one thread at a time, and not while one of the caller's streams is being captured into a graph. After
// close() every member but bytes_copied and busy_seconds throws std::invalid_argument; a refusal by the
// driver is CudaError. In a forked child, which has no share in the device, every member but close() throws
// std::runtime_error, and close() does nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "moeinf/cuda/driver.h"
#include "moeinf/cuda/pinned.h"
#include "moeinf/home_process.h"

namespace moeinf::cuda {

class Copier {
 public:
  // Takes ring_bytes of pinned memory, and a share in the device's primary context: the one that torch uses
  // too.
  Copier(std::shared_ptr<const Driver> driver, int device, std::int64_t ring_bytes);
  ~Copier();  // closes

  bool batched() const { return batched_; }  // whether one submission holds all copies of a call

  // As PinnedMemory::add and device_address. What is pinned must stay mapped until close().
  std::int64_t register_memory(unsigned char* data, const std::vector<std::int64_t>& ends,
                               const std::function<void(std::int64_t)>& between);
  DeviceAddress device_address(std::uintptr_t address, std::int64_t num_bytes) const;

  // Submits `count` copies, each of its num_bytes, which begin when everything submitted to `compute` so far
  // has ended, and returns their ticket. Registered sources must not change before it is done. May wait for
  // earlier copies when the ring is full. When it throws, nothing of the call is under way any more.
  std::int64_t copy(const std::int64_t* sources, const std::int64_t* destinations,
                    const std::int64_t* num_bytes, std::size_t count, Stream compute);

  // What is submitted to the stream later comes after the copies.
  void make_wait(Stream compute, std::int64_t ticket);
  bool done(std::int64_t ticket);
  void wait(std::int64_t ticket);

  std::int64_t bytes_copied();  // by copies that have ended
  double busy_seconds();        // in which these were under way, by the device's clock

  // Waits for the copies and gives everything back, whatever fails on the way; throws the first failure then.
  void close();

 private:
  struct RingPiece {
    unsigned char* data = nullptr;
    Event copied = nullptr;
    bool used = false;
  };
  struct Flight {  // what a ticket stands for
    Event start = nullptr;
    Event end = nullptr;
    std::int64_t num_bytes = 0;
  };
  struct Parts {  // of the copies of one call: those that the device reads by itself
    std::vector<DeviceAddress> destinations;
    std::vector<DeviceAddress> sources;  // as the device sees them
    std::vector<const void*> hosts;      // as the caller does
    std::vector<std::size_t> sizes;
    void clear();
  };
  struct Staged {  // and one that goes through the ring
    const unsigned char* source;
    DeviceAddress destination;
    std::int64_t num_bytes;
  };

  void open(int device, std::int64_t ring_bytes);
  void require_open() const;
  void require_ticket(std::int64_t ticket) const;
  Event make_event(unsigned flags);
  void take(std::uintptr_t source, DeviceAddress destination, std::int64_t num_bytes);
  void submit_direct();
  void submit_staged(const Staged& part);
  Flight take_flight();
  void look();  // which flights have ended
  void reap();  // the same, in the context of the device

  HomeProcess home_;
  std::shared_ptr<const Driver> driver_;
  const Api& api_;
  Device device_ = 0;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
  Event order_ = nullptr;          // recorded in the compute stream, waited for in ours
  std::vector<Event> all_events_;  // as they have to be destroyed
  bool batched_ = false;
  bool closed_ = false;

  PinnedMemory pinned_;
  void* ring_memory_ = nullptr;
  std::int64_t piece_bytes_ = 0;
  std::vector<RingPiece> ring_;
  std::size_t next_piece_ = 0;  // also the oldest

  Parts direct_;  // of the call under way; members, since they keep their room
  std::vector<Staged> staged_;
  std::deque<Flight> flights_;  // of the tickets last_done_ + 1, + 2, ..
  std::vector<Flight> spare_;
  std::int64_t last_done_ = 0;
  std::int64_t bytes_copied_ = 0;
  double busy_seconds_ = 0;
};

}  // namespace moeinf::cuda
