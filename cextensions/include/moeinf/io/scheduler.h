// Which segment is read next, and what has landed: the queue between the thread that asks and the threads
// that read.
//
// Requests of priority +inf are demand: first come, first served, and free to fill the queue depth. Finite
// priorities are prefetches: highest first, only while no demand waits to be issued, and at most
// prefetch_depth of their segments in flight. A request is issued segment by segment, so a half-issued
// prefetch yields to a demand.
//
// Where several disks have the same files, each segment goes to the one that will have read it soonest. A
// request of which a disk did not bring all bytes, or wrong ones, is read again from the others before it
// counts as failed.
//
// Every member may be called from any thread; one mutex guards all state and is never held across a system
// call. Only wait_any (caller's side) and wait_next (reader's side) block, and close() wakes both for good.
// Members of the caller's side throw std::invalid_argument once closed. Memory of a segment that was handed
// out belongs to the reader's side until finished() is called for it, also after close().
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "moeinf/io/copies.h"
#include "moeinf/io/segment_read.h"
#include "moeinf/span.h"

namespace moeinf {

// Reads of a block with its sum: until one from each disk that has all of it was sound, or each.
enum class Compared { kOnce, kAlways };

// The CRC-32C that a block of a file has, and whether it was found to have it. Belongs to the scheduler's
// mutex once a request points to it.
struct BlockSum {
  struct Share {
    std::int64_t num_bytes = 0;
    std::uint32_t sum = 0;
    Disks disks = 0;  // that brought it
  };

  std::uint32_t expected = 0;
  Compared compared = Compared::kOnce;
  Disks sound = 0;  // disks that have brought all of it, as it was written
  std::int64_t num_bytes = 0;
  // Where the block is read range by range: what each range, by its place in the block, contributes to the
  // sum, as it was read last. The block is compared whenever they make up all of it.
  std::map<std::int64_t, Share> shares{};
  int disk = -1;  // that alone has it as it was written; -1: as far as is known, all of them have
};

// A range of a file that a request reads. Where it ends with the file, it need not be whole blocks; its
// memory is.
struct Piece {
  int file = 0;
  std::int64_t offset = 0;
  unsigned char* destination = nullptr;
  std::int64_t num_bytes = 0;
  BlockSum* sum = nullptr;  // null: taken as it comes
  // What the sum is of: a range that begins and ends anywhere is read with the rest of its blocks.
  std::int64_t summed_from = 0, summed_bytes = 0;
  std::int64_t place_in_sum = 0;  // of that range in what the sum is of, which may be more

  // How much of what the sum is of lies behind the range.
  std::int64_t bytes_behind() const { return sum ? sum->num_bytes - place_in_sum - summed_bytes : 0; }
};

struct Request {
  std::int64_t key = 0;
  double priority = 0;
  Piece piece;
  std::vector<Piece> more;  // of a request whose bytes lie apart: it lands when all of them have
};

struct FailedRequest {
  std::int64_t key = 0;
  Piece piece;  // with the file of the disk that failed
  Outcome outcome;
};

// What one disk did not bring, and another did.
struct Replaced {
  FailedRequest failed;
  int file = 0;  // that it was read from
};

class Scheduler {
 public:
  using Clock = DiskRates::Clock;
  using Now = Clock::time_point (*)();  // of the rates of disks; a simulation has a clock of its own

  // Depths are those of each disk.
  Scheduler(int queue_depth, int prefetch_depth, std::int64_t segment_bytes, Copies copies = {},
            Now now = Clock::now);

  // Caller's side. The first two tell whether something may be issued now: only then is there a reason to
  // wake a reader, and the wake-up of a sleeping thread is what a call costs.
  bool submit(const std::vector<Request>& requests);  // all or, where a key is known already, none
  bool reprioritise(Span<const std::int64_t> keys, Span<const double> priorities);
  std::vector<std::int64_t> cancel(Span<const std::int64_t> keys);
  // Those of the keys that are queued, in flight, or landed and not collected.
  std::vector<std::int64_t> known(Span<const std::int64_t> keys) const;

  struct Waited {
    std::vector<std::int64_t> done;  // in the order in which they landed; forgotten by the scheduler
    std::optional<FailedRequest> failed;
  };
  // Blocks until one of the keys has landed or failed, or the time is over (then both members are empty). A
  // failure is reported alone, and only the failed key is forgotten. Nothing is where memory is refused for
  // the answer.
  Waited wait_any(Span<const std::int64_t> keys, std::chrono::milliseconds timeout);

  struct Polled {
    std::vector<std::int64_t> done;
    std::vector<std::int64_t> failed;
  };
  Polled poll();

  int file_of(std::int64_t key) const;  // on the disk that was asked last; -1: the key is not known
  std::optional<Replaced> first_replaced() const;

  // Reader's side.
  bool try_next(Segment* segment);   // false: nothing may be issued now
  bool wait_next(Segment* segment);  // false: closed
  // Never throws: where memory is refused that a comparison of sums takes, the read has failed with ENOMEM.
  void finished(const Segment& segment, const Outcome& outcome);
  void wake_one();  // a thread inside wait_next looks again

  void close();
  bool is_closed() const;
  std::int64_t bytes_read() const;
  double busy_seconds() const;                 // time in which at least one segment was in flight
  std::int64_t bytes_read_of(int disk) const;  // throws std::out_of_range for a disk that there is not
  void check_integrity() const;                // throws std::logic_error; for tests

 private:
  struct Found {
    bool checked = false;
    std::uint32_t sum = 0;  // of the segments that have landed
    Disks disks = 0;        // that were asked for them
  };
  struct Entry {
    Request request;
    std::uint64_t order = 0;        // ties: first come, first served
    std::size_t piece = 0;          // that is being handed out
    std::int64_t issued_bytes = 0;  // of that piece
    std::int64_t num_bytes = 0;     // of all pieces
    std::int64_t landed_bytes = 0;
    int in_flight = 0;             // segments
    Outcome failure;               // the first one
    std::size_t failed_piece = 0;  // in which it was
    int failed_disk = 0;           // by which
    Disks refused = 0;             // disks that failed for this request
    int alone = -1;                // the disk that all of it is read from, once it did not match its sum
    int disk = 0;                  // that was asked last
    std::optional<FailedRequest> replaced;  // what failed last, and is read from another disk
    Found found;
    std::vector<Found> more_found;
    bool complete = false;

    std::size_t num_pieces() const { return 1 + request.more.size(); }
    const Piece& piece_at(std::size_t index) const {
      return index == 0 ? request.piece : request.more[index - 1];
    }
    Found& found_at(std::size_t index) { return index == 0 ? found : more_found[index - 1]; }
    bool begun() const { return piece > 0 || issued_bytes > 0; }
    void begin_again();
  };
  struct Sooner {
    bool operator()(const Entry* a, const Entry* b) const;
  };

  static bool is_demand(const Entry& entry);
  static bool has_failed(const Entry& entry);
  void compare_sums(Entry& entry);
  void distrust(const BlockSum& sum);
  FailedRequest failed_request(const Entry& entry) const;
  bool read_from_others(Entry& entry);
  int first_but(Disks refused) const;  // -1: all have refused
  void note_replaced(Entry& entry);
  int disk_of(const Entry& entry, const Piece& piece, std::int64_t start, std::int64_t* end,
              Clock::time_point now) const;
  bool is_damaged(const Piece& piece, const Found& found);
  Disks all_disks() const { return (Disks{1} << copies_.num_disks) - 1; }
  Disks shown_sound(Disks from) const;
  void add(const Request& request);
  void remove(std::int64_t key);
  bool can_issue() const;
  void take(Segment* segment);
  void require_open() const;
  void require_known(Span<const std::int64_t> keys) const;
  void forget_landed(const Entry* entry);

  const int queue_depth_;
  const int prefetch_depth_;
  const std::int64_t segment_bytes_;
  const Copies copies_;
  const Now now_;

  mutable std::mutex mutex_;
  std::condition_variable work_;    // wait_next
  std::condition_variable landed_;  // wait_any
  std::unordered_map<std::int64_t, Entry> entries_;
  std::set<Entry*, Sooner> waiting_;  // entries with segments not yet issued
  std::vector<const Entry*>
      complete_;  // landed or failed, in that order, and not collected; has room for all
  std::uint64_t next_order_ = 0;
  int in_flight_ = 0;
  int prefetch_in_flight_ = 0;
  int num_waiters_ = 0;
  bool closed_ = false;
  std::int64_t bytes_read_ = 0;
  DiskRates rates_;
  std::optional<Replaced> first_replaced_;
  Clock::duration busy_{};
  Clock::time_point busy_since_{};
};

}  // namespace moeinf
