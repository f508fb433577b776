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
constexpr int kMostRefusals = 1000;  // in a row

// One thread submits and reaps. It sleeps in io_uring_enter, where a read of an eventfd is always pending:
// wake() completes it. The thread never ends while reads are in flight, since the kernel writes into the
// arena until then. Once the kernel takes no reads any more, or fails those of files that pread can read, the
// thread gives the ring up, and reads by pread itself.
class RingBackend final : public Backend {
 public:
  RingBackend(Scheduler& scheduler, FileSet& files, int queue_depth, PreadFunction pread)
      : scheduler_(scheduler),
        files_(files),
        pread_(pread),
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

  std::string notice() const override {
    const int error = given_up_.load();
    if (error == 0) return {};
    return std::string("io_uring refused (") + std::strerror(error) + "): reading with one thread";
  }

  void wake() override {
    scheduler_.wake_one();                  // where the ring was given up
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
    for (int num_refusals = 0; given_up_.load() == 0;) {
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
      const bool refused = refusal != 0 && refusal != EINTR;
      if (refused) std::this_thread::sleep_for(kRefusedPause);
      num_refusals = refused ? num_refusals + 1 : 0;
      if (num_refusals == kMostRefusals) given_up_.store(refusal);
      reap();
    }
    go_on_without();
  }

  void go_on_without() {
    for (std::uint64_t id; ring_.take_back(&id);) {
      if (id != kWakeId) finish(id);
    }
    while (free_.size() < reads_.size()) {
      reap();
      std::this_thread::sleep_for(kRefusedPause);
    }
    read_until_closed(scheduler_, files_, pread_);
  }

  // Reads what is left of a segment by pread. Where that can do what the ring could not, with the same
  // descriptor, the ring is of no use.
  void finish(std::uint64_t slot) {
    SegmentRead& read = reads_[slot];
    const bool direct = files_.is_direct(read.segment().file);
    read_to_end(read, files_, pread_);
    if (read.was_refused() && !direct) given_up_.store(read.refusal() == 0 ? EIO : read.refusal());
    end(slot);
  }

  void end(std::uint64_t slot) {
    free_.push_back(slot);
    scheduler_.finished(reads_[slot].segment(), reads_[slot].take_outcome());
  }

  void issue() {
    Segment segment;
    while (!free_.empty() && scheduler_.try_next(&segment)) {
      const std::size_t slot = free_.back();
      free_.pop_back();
      reads_[slot] = SegmentRead(segment, Asking::kOther);
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
      if (!read.advance(completion.result)) {
        end(completion.id);
      } else if (read.is_ordinary() || given_up_.load() != 0) {
        finish(completion.id);
      } else {
        queue(completion.id);
      }
    }
  }

  Scheduler& scheduler_;
  FileSet& files_;
  const PreadFunction pread_;
  Ring ring_;
  Descriptor wake_descriptor_;
  std::atomic<bool> signalled_{false};
  std::atomic<int> given_up_{0};  // the errno for which the ring was
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

std::unique_ptr<Backend> make_ring_backend(Scheduler& scheduler, FileSet& files, int queue_depth,
                                           PreadFunction pread) {
  return std::make_unique<RingBackend>(scheduler, files, queue_depth, pread);
}

}  // namespace moeinf

#else

namespace moeinf {

std::unique_ptr<Backend> make_ring_backend(Scheduler&, FileSet&, int, PreadFunction) {
  throw SystemFailure(ENOSYS, "io_uring refused (this build has no io_uring)");
}

}  // namespace moeinf
#endif
