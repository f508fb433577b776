// The two ways to carry out the scheduler's segments: a pool of threads in pread, or one thread over
// io_uring.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "moeinf/io/file_set.h"
#include "moeinf/io/scheduler.h"

namespace moeinf {

using PreadFunction = ssize_t (*)(int, void*, std::size_t, off_t);  // tests put faults in its place

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const = 0;
  virtual std::string notice() const { return {}; }  // one line where it does not read in its own way
  virtual void wake() = 0;  // there may be something to issue; any thread, does not block
  virtual void join() = 0;  // after Scheduler::close(): returns when no read is in flight and no thread runs
};

// Both keep references to their arguments and run until joined. They throw SystemFailure where the kernel
// refuses.
std::unique_ptr<Backend> make_thread_backend(Scheduler& scheduler, FileSet& files, int num_threads,
                                             PreadFunction pread);
std::unique_ptr<Backend> make_ring_backend(Scheduler& scheduler, FileSet& files, int queue_depth,
                                           PreadFunction pread);

// Carries out what is left of a segment in the calling thread.
void read_to_end(SegmentRead& read, FileSet& files, PreadFunction pread);
// Does so for one segment after the other until the scheduler is closed.
void read_until_closed(Scheduler& scheduler, FileSet& files, PreadFunction pread);

}  // namespace moeinf
