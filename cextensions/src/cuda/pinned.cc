#include "moeinf/cuda/pinned.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

namespace moeinf::cuda {
namespace {

// Pinned at once, about: where the system refuses a piece, those before it are kept.
constexpr std::uintptr_t kPieceBytes = std::uintptr_t{256} << 20;

// What a system answers that will not pin (so much) memory. All else is an error: a lost device, a wrong
// call.
bool is_refusal(Result result) {
  return result == kOutOfMemory || result == kNotSupported || result == kNotPermitted ||
         result == kOperatingSystem || result == kInvalidValue;
}

}  // namespace

std::int64_t PinnedMemory::add(std::uintptr_t start, const std::vector<std::int64_t>& ends,
                               const std::function<void(std::int64_t)>& between) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::int64_t before = 0;
  for (const std::int64_t each : ends)
    if (each <= std::exchange(before, each))
      throw std::invalid_argument("blocks of memory end in their order");
  if (ends.empty()) return 0;
  if (start % page != 0) throw std::invalid_argument("memory is registered from the start of a page");
  const std::uintptr_t end = start + static_cast<std::uintptr_t>(ends.back());
  const auto after = pieces_.lower_bound(end);
  if (after != pieces_.begin() && std::prev(after)->second.end > start) {
    throw std::invalid_argument("the memory overlaps what is registered already");
  }
  // Neither a block nor a page may belong to two pieces.
  auto next = ends.begin();
  const auto piece_end_behind = [&next, &ends, start, end, page](std::uintptr_t piece) {
    std::uintptr_t found = piece;
    for (; next != ends.end(); ++next) {
      const std::uintptr_t at = start + static_cast<std::uintptr_t>(*next);
      if (found > piece && at - piece > kPieceBytes) return found;
      if (at % page == 0) found = at;
    }
    return end;
  };
  std::uintptr_t piece = start, last = start;
  while (piece < end) {
    const std::uintptr_t piece_end = piece_end_behind(piece);
    if (!pin(piece, piece_end)) {
      if (piece == start) return 0;
      drop(last);  // the system has no more to give, and others in this process need a little
      return static_cast<std::int64_t>(last - start);
    }
    last = piece;
    piece = piece_end;
    between(static_cast<std::int64_t>(piece - start));
  }
  return ends.back();
}

bool PinnedMemory::pin(std::uintptr_t start, std::uintptr_t end) {
  const Api& api = driver_->api();
  void* const memory = reinterpret_cast<void*>(start);
  std::map<std::uintptr_t, Piece> made{{start, {end, 0}}};  // beforehand: what is registered must not be lost
  const Result result = api.mem_host_register(memory, end - start, kHostPortable | kHostDeviceMap);
  if (is_refusal(result)) return false;
  driver_->check(result, "cuMemHostRegister");
  const Result mapped = api.mem_host_get_device_pointer(&made.begin()->second.device, memory, 0);
  if (mapped != kSuccess) (void)api.mem_host_unregister(memory);
  driver_->check(mapped, "cuMemHostGetDevicePointer");
  pieces_.merge(made);
  return true;
}

void PinnedMemory::drop(std::uintptr_t start) {
  pieces_.erase(start);
  driver_->check(driver_->api().mem_host_unregister(reinterpret_cast<void*>(start)), "cuMemHostUnregister");
}

DeviceAddress PinnedMemory::find(std::uintptr_t address, std::int64_t num_bytes) const {
  const auto next = pieces_.upper_bound(address);
  if (next == pieces_.begin()) return 0;
  const auto& [start, piece] = *std::prev(next);
  return address + static_cast<std::uintptr_t>(num_bytes) <= piece.end ? piece.device + (address - start) : 0;
}

DeviceAddress PinnedMemory::device_address(std::uintptr_t address, std::int64_t num_bytes) const {
  const DeviceAddress device = num_bytes > 0 ? find(address, num_bytes) : 0;
  if (device != 0) return device;
  throw std::invalid_argument(std::to_string(num_bytes) + " bytes at " + std::to_string(address) +
                              " are not registered, or not in one piece");
}

void PinnedMemory::clear(const std::function<void(Result, const char*)>& answer) {
  for (const auto& piece : pieces_) {
    answer(driver_->api().mem_host_unregister(reinterpret_cast<void*>(piece.first)), "cuMemHostUnregister");
  }
  pieces_.clear();
}

}  // namespace moeinf::cuda
