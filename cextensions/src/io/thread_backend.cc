#include <cerrno>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "moeinf/errors.h"
#include "moeinf/io/backend.h"
#include "moeinf/signal_block.h"

namespace moeinf {
namespace {

class ThreadBackend final : public Backend {
 public:
  ThreadBackend(Scheduler& scheduler, FileSet& files, int num_threads, PreadFunction pread)
      : scheduler_(scheduler) {
    const SignalBlock block;
    try {
      for (int i = 0; i < num_threads; ++i)
        threads_.emplace_back(read_until_closed, std::ref(scheduler), std::ref(files), pread);
    } catch (...) {
      scheduler_.close();
      join();
      try {
        throw;
      } catch (const std::system_error& refused) {
        throw SystemFailure(refused.code().value(),
                            std::string("cannot start a reading thread: ") + refused.what());
      }
    }
  }
  ~ThreadBackend() override { join(); }

  const char* name() const override { return "threads"; }
  void wake() override { scheduler_.wake_one(); }
  void join() override {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  Scheduler& scheduler_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Backend> make_thread_backend(Scheduler& scheduler, FileSet& files, int num_threads,
                                             PreadFunction pread) {
  return std::make_unique<ThreadBackend>(scheduler, files, num_threads, pread);
}

void read_to_end(SegmentRead& read, FileSet& files, PreadFunction pread) {
  const int file = read.segment().file;
  ssize_t result;
  do {
    const int fd = read.is_ordinary() ? files.ordinary(file) : files.descriptor(file);
    result = pread(fd, read.destination(), static_cast<std::size_t>(read.num_bytes()),
                   static_cast<off_t>(read.offset()));
  } while (read.advance(result < 0 ? -static_cast<std::int64_t>(errno) : result));
  if (read.was_refused()) files.refuse_direct(file, read.refusal());
}

void read_until_closed(Scheduler& scheduler, FileSet& files, PreadFunction pread) {
  Segment segment;
  while (scheduler.wait_next(&segment)) {
    SegmentRead read(segment, files.is_direct(segment.file) ? Asking::kOther : Asking::kOrdinary);
    read_to_end(read, files, pread);
    scheduler.finished(segment, read.take_outcome());
  }
}

}  // namespace moeinf
