// Several disks that have the same files: which of them a read asks, by what each was measured to give and
// has in flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

namespace moeinf {

// Of every `period` bytes of a file the first disk has the `first` ones, and the second disk the others.
struct Cut {
  std::int64_t period = 0;
  std::int64_t first = 0;
};

// Copy c of file f is file f + c * num_files, and lies on disk c.
struct Copies {
  int num_disks = 1;
  int num_files = 0;
  std::vector<Cut> cuts;  // by file, of files that are divided; empty: every disk has every byte

  int file_on(int file, int disk) const { return file + disk * num_files; }
};

using Disks = std::uint32_t;  // a set: bit c stands for disk c
constexpr int kMostDisks = 16;

// Not synchronised: belongs to the scheduler's mutex.
class DiskRates {
 public:
  using Clock = std::chrono::steady_clock;

  explicit DiskRates(int num_disks) : disks_(static_cast<std::size_t>(num_disks)) {}

  // The disk that would have read so many bytes soonest, of those that are not among `without`; -1 where none
  // is left. One that was given up is asked where no other is left; one that is too slow to be asked is asked
  // now and then, since it may have become faster.
  int choose(std::int64_t num_bytes, Disks without, Clock::time_point now) const;
  void issued(int disk, std::int64_t num_bytes, Clock::time_point now);
  void finished(int disk, std::int64_t asked_bytes, std::int64_t read_bytes, Clock::time_point now);
  void give_up(int disk) { disks_[static_cast<std::size_t>(disk)].given_up = true; }

  // Bytes a second while it was busy, lately; 0 where too little was read to tell.
  double bytes_per_s(int disk) const;
  std::int64_t bytes_read(int disk) const { return disks_[static_cast<std::size_t>(disk)].bytes_read; }

 private:
  struct Disk {
    std::int64_t in_flight = 0;    // bytes
    std::int64_t bytes_read = 0;   // since the beginning
    double bytes = 0, busy_s = 0;  // lately
    Clock::time_point busy_since{}, idle_since{};
    bool given_up = false;
  };

  std::vector<Disk> disks_;
};

}  // namespace moeinf
