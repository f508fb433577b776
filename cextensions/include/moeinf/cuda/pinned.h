// Which ranges of host memory are registered with the driver, and where the device sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "moeinf/cuda/driver.h"

namespace moeinf::cuda {

// Memory is registered in pieces of whole blocks: the driver refuses copies that reach from one piece into
// another, and a device may see pieces apart that are neighbours here. What it registered is given back by
// clear() alone: a context has to be current for that, and for add().
class PinnedMemory {
 public:
  explicit PinnedMemory(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}

  // Pins memory that holds blocks, each of which ends where `ends` says, in ascending order, in bytes behind
  // the start, and returns how many bytes from the start were pinned: all up to the last end, or, where a
  // piece is refused, what was pinned before but for its last piece. `between` is told after each piece how
  // many bytes that makes, and may throw; so does add, std::invalid_argument where the range overlaps a
  // registered one or does not start with a page, or where ends do not ascend.
  std::int64_t add(std::uintptr_t start, const std::vector<std::int64_t>& ends,
                   const std::function<void(std::int64_t)>& between);

  // Where the device sees the range; 0 where it is not registered in one piece.
  DeviceAddress find(std::uintptr_t address, std::int64_t num_bytes) const;

  // The same, but throws std::invalid_argument.
  DeviceAddress device_address(std::uintptr_t address, std::int64_t num_bytes) const;

  // Unregisters all; what the driver answers goes to `answer`.
  void clear(const std::function<void(Result, const char*)>& answer);

 private:
  struct Piece {
    std::uintptr_t end;
    DeviceAddress device;
  };

  bool pin(std::uintptr_t start, std::uintptr_t end);  // false: refused
  void drop(std::uintptr_t start);

  std::shared_ptr<const Driver> driver_;
  std::map<std::uintptr_t, Piece> pieces_;  // by start
};

}  // namespace moeinf::cuda
