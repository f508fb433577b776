#include <cerrno>

#include "moeinf/errors.h"
#include "moeinf/io/backend.h"
#include "ring.h"

#ifdef MOEINF_HAS_IO_URING
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "moeinf/signal_block.h"

namespace moeinf {
namespace {

constexpr std::uint64_t kWakeId = UINT64_MAX;
constexpr std::chrono::milliseconds kRefusedPause(1);

// One thread submits and reaps. It sleeps in io_uring_enter, where a read of an eventfd is always pending:
// wake() completes it. The thread never gives up while reads are in flight, since the kernel writes into the
// arena until then.
class RingBackend final : public Backend {
 public:
  RingBackend(Scheduler& scheduler, const FileSet& files, int queue_depth)
      : scheduler_(scheduler),
        files_(files),
        ring_(static_cast<unsigned>(queue_depth) + 1),
        wake_descriptor_(::eventfd(0, EFD_CLOEXEC)),
        reads_(static_cast<std::size_t>(queue_depth)) {
    if (!wake_descriptor_.is_open())
      throw SystemFailure(errno, std::string("eventfd: ") + std::strerror(errno));
    for (std::size_t slot = 0; slot < reads_.size(); ++slot) free_.push_back(slot);
    const SignalBlock block;
    try {
      thread_ = std::thread([this] {
        id_.store(static_cast<pid_t>(::syscall(SYS_gettid)));
        run();
        id_.store(0);
      });
    } catch (const std::system_error& refused) {
      throw SystemFailure(refused.code().value(),
                          std::string("cannot start the io_uring thread: ") + refused.what());
    }
  }
  ~RingBackend() override { join(); }

  const char* name() const override { return "io_uring"; }

  void wake() override {
    if (signalled_.exchange(true)) return;  // the thread has not looked since the last time
    leave_core_of_caller();
    const std::uint64_t one = 1;
    while (::write(wake_descriptor_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
    }
  }

  void join() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  // To submit takes longer than all else that a caller does between two kernels, while the core of another
  // computing thread does nothing; but where each of these spins, the kernel would wake our thread on the
  // core of whoever wakes it. Only a hint.
  void leave_core_of_caller() {
    const int core = ::sched_getcpu();
    const pid_t id = id_.load();
    if (core < 0 || id == 0 || left_core_.exchange(core) == core) return;
    cpu_set_t others;
    if (::sched_getaffinity(0, sizeof(others), &others) != 0) return;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) > 0) (void)::sched_setaffinity(id, sizeof(others), &others);
  }

  void run() {
    for (;;) {
      const bool closed = scheduler_.is_closed();
      if (closed && !wake_pending_ && free_.size() == reads_.size()) return;
      if (!closed && !wake_pending_) {
        ring_.queue_read(wake_descriptor_.get(), &wake_count_, sizeof(wake_count_), 0, kWakeId);
        wake_pending_ = true;
      }
      issue();
      const int refusal = ring_.enter();
      // Out of memory or of completion room: both pass when others finish. Signals are blocked in this
      // thread.
      if (refusal != 0 && refusal != EINTR) std::this_thread::sleep_for(kRefusedPause);
      reap();
    }
  }

  void issue() {
    Segment segment;
    while (!free_.empty() && scheduler_.try_next(&segment)) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      reads_[slot] = SegmentRead(segment, files_.is_direct(segment.file));
      queue(slot);
    }
  }

  void queue(std::size_t slot) {
    const SegmentRead& read = reads_[slot];
    ring_.queue_read(files_.descriptor(read.segment().file), read.destination(),
                     static_cast<std::uint32_t>(read.num_bytes()), static_cast<std::uint64_t>(read.offset()),
                     slot);
  }

  void reap() {
    Ring::Completion completion{};
    while (ring_.take(&completion)) {
      if (completion.id == kWakeId) {
        wake_pending_ = false;
        signalled_.store(false);  // before the queue is looked at: a later wake() writes again
        continue;
      }
      SegmentRead& read = reads_[completion.id];
      if (read.advance(completion.result)) {
        queue(completion.id);
        continue;
      }
      free_.push_back(completion.id);
      scheduler_.finished(read.segment(), read.take_outcome());
    }
  }

  Scheduler& scheduler_;
  const FileSet& files_;
  Ring ring_;
  Descriptor wake_descriptor_;
  std::atomic<bool> signalled_{false};
  std::atomic<int> left_core_{-1};
  std::atomic<pid_t> id_{0};  // of the thread while it runs
  std::thread thread_;

  // Of the thread alone.
  std::vector<SegmentRead> reads_;  // by slot; a slot is in flight when it is not in free_
  std::vector<std::size_t> free_;
  std::uint64_t wake_count_ = 0;
  bool wake_pending_ = false;
};

}  // namespace

std::unique_ptr<Backend> make_ring_backend(Scheduler& scheduler, const FileSet& files, int queue_depth) {
  return std::make_unique<RingBackend>(scheduler, files, queue_depth);
}

}  // namespace moeinf

#else

namespace moeinf {

std::unique_ptr<Backend> make_ring_backend(Scheduler&, const FileSet&, int) {
  throw SystemFailure(ENOSYS, "io_uring refused (this build has no io_uring)");
}

}  // namespace moeinf
#endif
