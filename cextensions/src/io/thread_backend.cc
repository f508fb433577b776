#include <cerrno>
#include <cstring>
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
  ThreadBackend(Scheduler& scheduler, const FileSet& files, int num_threads, PreadFunction pread)
      : scheduler_(scheduler), files_(files), pread_(pread) {
    const SignalBlock block;
    try {
      for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error& refused) {
      scheduler_.close();
      join();
      throw SystemFailure(refused.code().value(),
                          std::string("cannot start a reading thread: ") + refused.what());
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
  void run() {
    Segment segment;
    while (scheduler_.wait_next(&segment)) {
      SegmentRead read(segment, files_.is_direct(segment.file));
      while (read.advance(ask(read))) {
      }
      scheduler_.finished(segment, read.take_outcome());
    }
  }

  std::int64_t ask(const SegmentRead& read) const {
    const ssize_t result =
        pread_(files_.descriptor(read.segment().file), read.destination(),
               static_cast<std::size_t>(read.num_bytes()), static_cast<off_t>(read.offset()));
    return result < 0 ? -static_cast<std::int64_t>(errno) : result;
  }

  Scheduler& scheduler_;
  const FileSet& files_;
  const PreadFunction pread_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Backend> make_thread_backend(Scheduler& scheduler, const FileSet& files, int num_threads,
                                             PreadFunction pread) {
  return std::make_unique<ThreadBackend>(scheduler, files, num_threads, pread);
}

}  // namespace moeinf
