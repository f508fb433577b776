#include "moeinf/io/copies.h"

#include <algorithm>

namespace moeinf {
namespace {

constexpr double kLeastBytes = 8 << 20;  // that a rate is told of
constexpr double kRecentSeconds = 2;     // of being busy; what lies before counts half
constexpr double kIdleReads = 20;        // as long as so many reads take, a disk is not asked at most

bool has(Disks disks, std::size_t disk) { return (disks >> disk & 1) != 0; }

}  // namespace

int DiskRates::choose(std::int64_t num_bytes, Disks without, Clock::time_point now) const {
  double fastest = 0;  // stands for the rate of a disk that is not known yet
  bool any_left = false;
  for (std::size_t disk = 0; disk < disks_.size(); ++disk) {
    fastest = std::max(fastest, bytes_per_s(static_cast<int>(disk)));
    any_left = any_left || (!has(without, disk) && !disks_[disk].given_up);
  }
  int best = -1;
  double soonest = 0;
  for (std::size_t disk = 0; disk < disks_.size(); ++disk) {
    const Disk& each = disks_[disk];
    if (has(without, disk) || (any_left && each.given_up)) continue;
    const double known = bytes_per_s(static_cast<int>(disk));
    const double rate = known > 0 ? known : fastest > 0 ? fastest : 1;
    const double seconds = static_cast<double>(each.in_flight + num_bytes) / rate;
    const std::chrono::duration<double> idle = now - each.idle_since;
    if (each.in_flight == 0 && known > 0 && idle.count() > kIdleReads * seconds)
      return static_cast<int>(disk);
    const bool tie = best >= 0 && seconds == soonest;
    if (best >= 0 && seconds > soonest) continue;
    if (tie && each.bytes_read >= disks_[static_cast<std::size_t>(best)].bytes_read) continue;
    best = static_cast<int>(disk);
    soonest = seconds;
  }
  return best;
}

void DiskRates::issued(int disk, std::int64_t num_bytes, Clock::time_point now) {
  Disk& each = disks_[static_cast<std::size_t>(disk)];
  if (each.in_flight == 0) each.busy_since = now;
  each.in_flight += num_bytes;
}

void DiskRates::finished(int disk, std::int64_t asked_bytes, std::int64_t read_bytes, Clock::time_point now) {
  Disk& each = disks_[static_cast<std::size_t>(disk)];
  each.in_flight -= asked_bytes;
  each.bytes_read += read_bytes;
  each.bytes += static_cast<double>(read_bytes);
  each.busy_s += std::chrono::duration<double>(now - each.busy_since).count();
  each.busy_since = each.idle_since = now;
  if (each.busy_s < kRecentSeconds || each.bytes < 2 * kLeastBytes) return;
  each.bytes /= 2;
  each.busy_s /= 2;
}

double DiskRates::bytes_per_s(int disk) const {
  const Disk& each = disks_[static_cast<std::size_t>(disk)];
  return each.bytes >= kLeastBytes && each.busy_s > 0 ? each.bytes / each.busy_s : 0;
}

}  // namespace moeinf
