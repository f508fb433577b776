// Which ranges of host memory are registered with the driver, and where the device sees them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "moeinf/cuda/driver.h"

namespace moeinf::cuda {

// Memory is registered in pieces, and the driver refuses copies that reach from one into another, or beyond.
// What it registered is given back by clear() alone: a context has to be current for that, and for add().
class PinnedMemory {
 public:
  explicit PinnedMemory(std::shared_ptr<const Driver> driver) : driver_(std::move(driver)) {}

  // Pins piece by piece up to the first that is refused, and returns how many bytes from the start were
  // pinned. `between` is told as much after each piece, and may throw; so does add, std::invalid_argument
  // where the range overlaps a registered one.
  std::int64_t add(std::uintptr_t start, std::int64_t num_bytes,
                   const std::function<void(std::int64_t)>& between);

  // Throws std::invalid_argument where the range is not all registered, or not in one piece for the device.
  DeviceAddress device_address(std::uintptr_t address, std::int64_t num_bytes) const;

  struct Span {  // from an address to the end of the piece that holds it
    std::uintptr_t end = 0;
    DeviceAddress device = 0;  // of the address; 0: it is not registered
  };
  Span span(std::uintptr_t address) const;

  // Unregisters all; what the driver answers goes to `answer`.
  void clear(const std::function<void(Result, const char*)>& answer);

 private:
  struct Piece {
    std::uintptr_t end;
    DeviceAddress device;
  };

  std::shared_ptr<const Driver> driver_;
  std::map<std::uintptr_t, Piece> pieces_;  // by start
};

}  // namespace moeinf::cuda
