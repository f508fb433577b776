// Reads byte ranges of files into an arena in the background: files, scheduler and backend put together.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "moeinf/errors.h"
#include "moeinf/home_process.h"
#include "moeinf/io/arena.h"
#include "moeinf/io/backend.h"
#include "moeinf/io/copies.h"
#include "moeinf/io/file_set.h"
#include "moeinf/io/scheduler.h"
#include "moeinf/span.h"

namespace moeinf {

enum class BackendKind { kAuto, kRing, kThreads };

struct ReaderOptions {
  BackendKind backend = BackendKind::kAuto;
  Access access = Access::kDirect;
  int queue_depth = 16;
  int prefetch_depth = 4;
  std::int64_t segment_bytes = 1 << 20;
  Copies copies{};  // its num_files is what the reader makes of it
  PreadFunction pread = ::pread;
  FileSystemProbe file_system = file_system_of;
};

// Of each request as many ranges: which of which files, and where in the arena they go.
struct Pieces {
  RowSpan<const std::int64_t> files, offsets, destinations, num_bytes;
};

// In a forked child, which has none of the reading threads, every member but backend(), expect() and close()
// throws std::runtime_error, and close() does nothing.
class Reader {
 public:
  // paths: those of the first disk, then the same files on each other one; sizes: of the files of one disk.
  // Throws std::invalid_argument for options out of range, SystemFailure and ReadFailure as FileSet and the
  // backends do.
  Reader(std::vector<std::string> paths, std::vector<std::int64_t> sizes, std::shared_ptr<Arena> arena,
         const ReaderOptions& options);
  ~Reader();  // closes

  bool is_at_home() const { return home_.is_here(); }  // not in a forked child
  const char* backend() const { return backend_->name(); }
  // One line once O_DIRECT or io_uring was refused, or one disk stood in for another, else empty; any thread.
  std::string notice() const;

  // From now on, a read of the num_bytes at one of these places is compared with their CRC-32C: the first
  // time, or always. One that differs fails as ReadFailure does, with EBADMSG. Reads of ranges that make up
  // the whole, one behind the other, are compared as the last of them lands, which then fails for all of
  // them. Throws std::invalid_argument, and expects nothing, for a range that is not inside its file.
  void expect(Span<const std::int64_t> files, Span<const std::int64_t> offsets, std::int64_t num_bytes,
              Span<const std::uint32_t> sums, Compared compared);

  // `destinations` are offsets in the arena. Throws std::invalid_argument, before anything is queued, for a
  // known key and for a range that is not on 4 KiB borders or not inside its file and the arena.
  void submit(Span<const std::int64_t> keys, Span<const std::int64_t> files, Span<const std::int64_t> offsets,
              Span<const std::int64_t> destinations, std::int64_t num_bytes, Span<const double> priorities);
  // The same for requests of several ranges each, [keys, ranges], that begin and end anywhere in
  // their files. Each is read with the rest of its blocks: its byte i comes to destination + offset % 4096 +
  // i, and destinations are on block borders, with room for whole blocks. A range of 0 bytes is left out,
  // unless it is the first. Sums are those of the ranges.
  void submit_pieces(Span<const std::int64_t> keys, const Pieces& pieces, Span<const double> priorities);
  void reprioritise(Span<const std::int64_t> keys, Span<const double> priorities);
  std::vector<std::int64_t> cancel(Span<const std::int64_t> keys);
  std::vector<std::int64_t> known(Span<const std::int64_t> keys) const;  // as Scheduler::known

  // As Scheduler::wait_any, but a failure is thrown as ReadFailure. Empty: the time is over.
  std::vector<std::int64_t> wait_any(Span<const std::int64_t> keys, std::chrono::milliseconds timeout);
  Scheduler::Polled poll() { return at_home().poll(); }
  std::string path_of(std::int64_t key) const;  // the file that it is read from; empty: the key is not known

  std::int64_t bytes_read() const { return at_home().bytes_read(); }
  std::int64_t bytes_read_of(int disk) const { return at_home().bytes_read_of(disk); }
  double busy_seconds() const { return at_home().busy_seconds(); }
  void close();  // drops what is queued, waits for what is in flight; any thread, any number of times

 private:
  Scheduler& at_home() const;
  void start(const ReaderOptions& options);
  Piece piece_of(std::int64_t key, std::int64_t file, std::int64_t offset, std::int64_t destination,
                 std::int64_t num_bytes);
  void find_sum(Piece* piece);
  ReadFailure failure(const FailedRequest& failed) const;
  std::string replaced() const;

  std::shared_ptr<Arena> arena_;
  const int num_files_;  // of each disk
  FileSet files_;
  std::map<std::pair<int, std::int64_t>, BlockSum> expected_;  // by file and offset
  HomeProcess home_;
  HeldAtHome<Scheduler> scheduler_;
  HeldAtHome<Backend> backend_;
  std::string refused_ring_;  // why there is none, where one was to be
  std::mutex closing_;
};

}  // namespace moeinf
