// What fake_cuda consists of: streams as threads with queues, pinned ranges, holds and failures. For
// fake_cuda.cc alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidDevice = 101, kInvalidContext = 201,
              kInvalidHandle = 400, kNotReady = 600, kAlreadyRegistered = 712, kNotRegistered = 713;
constexpr int kNumDevices = 2;
constexpr std::size_t kTotalBytes = std::size_t{8} << 30;
constexpr std::size_t kFreeBytes = std::size_t{7} << 30;
constexpr int kAliasBits = 50;  // above any address of user space
constexpr std::uintptr_t kPage = 4096;

struct Mark {  // one recording of an event
  bool done = false;
  double time_ms = 0;
};

struct FakeEvent {
  unsigned flags = 0;
  std::shared_ptr<Mark> mark;
};

struct Work {
  std::function<bool()> ready;  // with the lock
  std::function<void()> run;    // without it
  std::function<void()> ended;  // with it
};

struct FakeStream {
  std::deque<Work> queue;
  bool closing = false;
  bool running = false;  // what is first in the queue
  std::thread worker;
};

struct Pinned {
  std::size_t num_bytes;
  std::uintptr_t number;  // of the alias; 0: none
  bool allocated;
};

struct FakeContext {
  int device = 0;
  int num_shares = 0;
};

struct Failure {
  int code;
  int after;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  int version = 13000;
  long pin_limit = INT64_MAX;
  bool alias = false, hold_compute = false;
  int hold_copies = 0;
  std::map<std::string, Failure> failures;
  std::map<std::uintptr_t, Pinned> pinned;
  std::uintptr_t num_registrations = 0;
  long pinned_bytes = 0;
  FakeContext contexts[kNumDevices];
  FakeStream default_stream;
  std::vector<FakeStream*> compute_streams;
  std::set<FakeStream*> working;  // that have a thread
  int num_streams = 0, num_events = 0, num_batches = 0, num_copies = 0, num_waiting = 0;
  double clock_ms = 0;
};

State& state() {
  static State* const kept = new State;  // never destroyed: its threads outlive main
  return *kept;
}

using Lock = std::unique_lock<std::mutex>;
thread_local std::vector<FakeContext*> current;

// What a function says before it does anything: 0, or why it will not.
int enter(const Lock&, const char* function, bool needs_context = true) {
  const auto found = state().failures.find(function);
  if (found != state().failures.end() && found->second.after-- <= 0) return found->second.code;
  if (needs_context && (current.empty() || current.back()->num_shares == 0)) return kInvalidContext;
  return 0;
}

void work_off(FakeStream* stream) {
  State& s = state();
  Lock lock(s.mutex);
  for (;;) {
    s.changed.wait(lock,
                   [&] { return stream->queue.empty() ? stream->closing : stream->queue.front().ready(); });
    if (stream->queue.empty()) return;
    const std::function<void()> run = stream->queue.front().run;
    stream->running = true;
    lock.unlock();
    run();
    lock.lock();
    stream->running = false;
    stream->queue.front().ended();
    stream->queue.pop_front();
    s.changed.notify_all();
  }
}

void add(const Lock&, FakeStream* stream, Work work) {
  if (state().working.insert(stream).second) stream->worker = std::thread(work_off, stream);
  stream->queue.push_back(std::move(work));
  state().changed.notify_all();
}

void finish(Lock& lock, FakeStream* stream) {  // what is queued still runs
  stream->closing = true;
  state().changed.notify_all();
  std::thread worker = std::move(stream->worker);
  lock.unlock();
  if (worker.joinable()) worker.join();
  lock.lock();
  stream->closing = false;
  state().working.erase(stream);
}

bool has_settled() {  // no stream can go on by itself
  for (const FakeStream* stream : state().working) {
    if (stream->running || (!stream->queue.empty() && stream->queue.front().ready())) return false;
  }
  return true;
}

FakeStream* stream_of(void* handle) {
  return handle == nullptr ? &state().default_stream : static_cast<FakeStream*>(handle);
}

bool may_copy() { return state().hold_copies == 0 || (state().hold_copies == 2 && state().num_waiting > 0); }

// Waits in the caller's place; that may be what copies are held back for.
void await(Lock& lock, const std::function<bool()>& condition) {
  ++state().num_waiting;
  state().changed.notify_all();
  state().changed.wait(lock, condition);
  --state().num_waiting;
}

void add_copy(const Lock& lock, FakeStream* stream, std::uintptr_t to, const void* from,
              std::size_t num_bytes) {
  ++state().num_copies;
  add(lock, stream,
      {[] { return may_copy(); }, [=] { std::memcpy(reinterpret_cast<void*>(to), from, num_bytes); },
       [=] { state().clock_ms += static_cast<double>(num_bytes) / 1024; }});
}

bool is_pinned(std::uintptr_t address, std::size_t num_bytes) {  // by one registration
  auto range = state().pinned.upper_bound(address);
  if (range == state().pinned.begin()) return false;
  --range;
  return address + num_bytes <= range->first + range->second.num_bytes;
}

int pin(std::uintptr_t start, std::size_t num_bytes, bool allocated) {
  State& s = state();
  if (num_bytes == 0) return kInvalidValue;
  for (const auto& [other, range] : s.pinned) {
    const std::uintptr_t last = (other + range.num_bytes - 1) / kPage;
    if (start / kPage <= last && other / kPage <= (start + num_bytes - 1) / kPage) return kAlreadyRegistered;
  }
  if (s.pinned_bytes + static_cast<long>(num_bytes) > s.pin_limit) return kOutOfMemory;
  s.pinned_bytes += static_cast<long>(num_bytes);
  s.pinned[start] = {num_bytes, s.alias && !allocated ? ++s.num_registrations : 0, allocated};
  return 0;
}

int unpin(std::uintptr_t start, bool allocated) {
  State& s = state();
  const auto found = s.pinned.find(start);
  if (found == s.pinned.end() || found->second.allocated != allocated) return kNotRegistered;
  s.pinned_bytes -= static_cast<long>(found->second.num_bytes);
  s.pinned.erase(found);
  return 0;
}

}  // namespace
