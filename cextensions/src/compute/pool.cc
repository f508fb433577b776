#include "moeinf/compute/pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "cores.h"
#include "moeinf/errors.h"
#include "moeinf/signal_block.h"

namespace moeinf {
namespace {

// Decoding calls every 20 to 300 us: a worker that slept in between would miss the first tens of us of each
// call.
constexpr std::chrono::microseconds kSpin(100);
constexpr int kChecksPerClock = 32;  // looking at the clock costs as much as some looks at the word

// The word on which threads meet: generation in the upper half, then flags, then the number of workers
// inside.
constexpr std::uint64_t kInside = 0xffff;
constexpr std::uint64_t kOpen = 1u << 16;  // workers may go in
constexpr std::uint64_t kStop = 1u << 17;
constexpr int kGenerationShift = 32;

std::uint64_t generation_of(std::uint64_t word) { return word >> kGenerationShift; }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // "yield" does nothing on most cores
#endif
}

// Whether `met` came true within kSpin.
template <typename Condition>
bool spin_until(const Condition& met) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kChecksPerClock; ++i) {
      if (met()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

// On a cache line of its own: a thread that takes from its own range disturbs no other.
struct alignas(64) Range {
  std::atomic<std::int64_t> next{0};
  std::int64_t end = 0;
};

}  // namespace

struct Pool::State {
  explicit State(int num_threads) : ranges(static_cast<std::size_t>(num_threads)) {}
  ~State() { join_workers(); }

  void start_workers();
  void join_workers();
  void work_as(int thread);  // the life of a worker
  std::uint64_t await_call(std::uint64_t seen);
  bool enter(std::uint64_t generation);
  void leave();
  void take_tasks(int thread);
  void open_call(std::int64_t num_tasks, Function function, const void* task);
  void close_call();

  const HomeProcess home;
  std::vector<std::thread> workers;

  alignas(64) std::atomic<std::uint64_t> word{0};
  // Written while the call is closed and nobody is inside, read inside.
  alignas(64) Function called = nullptr;
  const void* argument = nullptr;
  std::vector<Range> ranges;  // of indices, one for each thread
  std::atomic<bool> has_failed{false};
  std::exception_ptr failure;  // written by the one who set has_failed, read when all have left

  alignas(64) std::mutex mutex;  // only for sleeping and waking
  std::condition_variable called_or_stopped, all_left;
  std::atomic<int> num_asleep{0};
  std::atomic<bool> caller_is_asleep{false};
};

Pool::Pool(int num_threads) {
  if (num_threads < 1 || num_threads > static_cast<int>(kInside)) {
    throw std::invalid_argument("a pool has 1 to " + std::to_string(kInside) + " threads, not " +
                                std::to_string(num_threads));
  }
  state_.reset(new State(num_threads));
  state_->start_workers();
}

Pool::~Pool() = default;

int Pool::num_threads() const { return static_cast<int>(state_->ranges.size()); }

void Pool::run_erased(std::int64_t num_tasks, Function function, const void* task) {
  if (num_tasks <= 1 || state_->workers.empty()) {
    for (std::int64_t index = 0; index < num_tasks; ++index) function(task, index, 0);
    return;
  }
  state_->open_call(num_tasks, function, task);
  state_->take_tasks(0);
  state_->close_call();
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
}

void Pool::State::start_workers() {
  const std::vector<int> cores = cores_to_bind(ranges.size(), physical_cores());
  const SignalBlock block;
  try {
    for (int thread = 1; thread < static_cast<int>(ranges.size()); ++thread) {
      const auto place = static_cast<std::size_t>(thread - 1);
      const int core = place < cores.size() ? cores[place] : -1;
      workers.emplace_back([this, thread, core] {
        if (core >= 0) bind_thread_to(core);
        work_as(thread);
      });
    }
  } catch (const std::system_error& refused) {
    throw SystemFailure(refused.code().value(),
                        std::string("cannot start a computing thread: ") + refused.what());
  }
}

void Pool::State::join_workers() {
  word.fetch_or(kStop);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    called_or_stopped.notify_all();
  }
  for (std::thread& worker : workers) worker.join();
}

void Pool::State::work_as(int thread) {
  std::uint64_t seen = 0;
  for (;;) {
    const std::uint64_t current = await_call(seen);
    if ((current & kStop) != 0) return;
    seen = generation_of(current);
    if (!enter(seen)) continue;  // the others were done before this one woke
    take_tasks(thread);
    leave();
  }
}

std::uint64_t Pool::State::await_call(std::uint64_t seen) {
  std::uint64_t current = 0;
  const auto is_called = [&] {
    current = word.load();
    return generation_of(current) != seen || (current & kStop) != 0;
  };
  if (spin_until(is_called)) return current;
  std::unique_lock<std::mutex> lock(mutex);
  ++num_asleep;  // before the word is looked at again: open_call looks at the two in the other order
  called_or_stopped.wait(lock, is_called);
  --num_asleep;
  return current;
}

bool Pool::State::enter(std::uint64_t generation) {
  std::uint64_t current = word.load();
  while ((current & kOpen) != 0 && generation_of(current) == generation) {
    if (word.compare_exchange_weak(current, current + 1)) return true;
  }
  return false;
}

void Pool::State::leave() {
  word.fetch_sub(1);
  if (!caller_is_asleep.load()) return;
  const std::lock_guard<std::mutex> lock(mutex);
  all_left.notify_one();
}

void Pool::State::take_tasks(int thread) {
  const std::size_t num_ranges = ranges.size();
  for (std::size_t i = 0; i < num_ranges; ++i) {
    Range& range = ranges[(static_cast<std::size_t>(thread) + i) % num_ranges];
    while (range.next.load(std::memory_order_relaxed) < range.end) {
      const std::int64_t index = range.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= range.end || has_failed.load(std::memory_order_relaxed)) break;
      try {
        called(argument, index, thread);
      } catch (...) {
        if (!has_failed.exchange(true)) failure = std::current_exception();
      }
    }
  }
}

void Pool::State::open_call(std::int64_t num_tasks, Function function, const void* task) {
  home.require();
  if ((word.load(std::memory_order_relaxed) & (kOpen | kInside)) != 0)
    throw std::logic_error("the threads are at work: for another caller, or on the task that calls");
  called = function;
  argument = task;
  has_failed.store(false, std::memory_order_relaxed);
  const auto num_ranges = static_cast<std::int64_t>(ranges.size());
  for (std::int64_t i = 0; i < num_ranges; ++i) {
    Range& range = ranges[static_cast<std::size_t>(i)];
    range.next.store(num_tasks * i / num_ranges, std::memory_order_relaxed);
    range.end = num_tasks * (i + 1) / num_ranges;
  }
  const std::uint64_t generation = generation_of(word.load(std::memory_order_relaxed)) + 1;
  word.store(generation << kGenerationShift | kOpen);
  if (num_asleep.load() == 0) return;
  const std::lock_guard<std::mutex> lock(mutex);
  called_or_stopped.notify_all();
}

// Who has not come by now need not come: only those inside are waited for.
void Pool::State::close_call() {
  word.fetch_and(~kOpen);
  const auto is_empty = [this] { return (word.load() & kInside) == 0; };
  if (spin_until(is_empty)) return;
  std::unique_lock<std::mutex> lock(mutex);
  caller_is_asleep.store(true);
  all_left.wait(lock, is_empty);
  caller_is_asleep.store(false);
}

}  // namespace moeinf
