#include "moeinf/cuda/pinned.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <string>

namespace moeinf::cuda {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;
// Pinned at once: where the system refuses a piece, the ones before it are kept.
constexpr std::uintptr_t kPieceBytes = std::uintptr_t{256} << 20;

// What a system answers that will not pin (so much) memory. All else is an error: a lost device, a wrong
// call.
bool is_refusal(Result result) {
  return result == kOutOfMemory || result == kNotSupported || result == kNotPermitted ||
         result == kOperatingSystem || result == kInvalidValue;
}

}  // namespace

std::int64_t PinnedMemory::add(std::uintptr_t start, std::int64_t num_bytes,
                               const std::function<void(std::int64_t)>& between) {
  const std::uintptr_t end = start + static_cast<std::uintptr_t>(num_bytes);
  const auto after = pieces_.lower_bound(end);
  if (after != pieces_.begin() && std::prev(after)->second.end > start) {
    throw std::invalid_argument("the memory overlaps what is registered already");
  }
  const Api& api = driver_->api();
  const std::uintptr_t first_page = start / kPageBytes * kPageBytes;  // no page may belong to two pieces
  std::uintptr_t piece = start;
  while (piece < end) {
    const std::uintptr_t border = first_page + ((piece - first_page) / kPieceBytes + 1) * kPieceBytes;
    const std::uintptr_t piece_end = std::min(end, border);
    void* const memory = reinterpret_cast<void*>(piece);
    const Result result = api.mem_host_register(memory, piece_end - piece, kHostPortable | kHostDeviceMap);
    if (is_refusal(result)) break;
    driver_->check(result, "cuMemHostRegister");
    DeviceAddress device = 0;
    const Result mapped = api.mem_host_get_device_pointer(&device, memory, 0);
    if (mapped != kSuccess) (void)api.mem_host_unregister(memory);
    driver_->check(mapped, "cuMemHostGetDevicePointer");
    pieces_[piece] = {piece_end, device};
    piece = piece_end;
    between(static_cast<std::int64_t>(piece - start));
  }
  return static_cast<std::int64_t>(piece - start);
}

PinnedMemory::Span PinnedMemory::span(std::uintptr_t address) const {
  const auto next = pieces_.upper_bound(address);
  if (next == pieces_.begin()) return {};
  const auto& [start, piece] = *std::prev(next);
  if (piece.end <= address) return {};
  return {piece.end, piece.device + (address - start)};
}

DeviceAddress PinnedMemory::device_address(std::uintptr_t address, std::int64_t num_bytes) const {
  const Span first = span(address);
  const std::uintptr_t end = address + static_cast<std::uintptr_t>(num_bytes);
  // On through the pieces that follow without a gap, here and for the device.
  Span last = first;
  while (last.device != 0 && last.end < end) {
    const std::uintptr_t border = last.end;
    last = span(border);
    if (last.device != first.device + (border - address)) last = {};
  }
  if (num_bytes > 0 && last.device != 0) return first.device;
  throw std::invalid_argument(std::to_string(num_bytes) + " bytes at " + std::to_string(address) +
                              " are not registered, or not in one piece for the device");
}

void PinnedMemory::clear(const std::function<void(Result, const char*)>& answer) {
  for (const auto& piece : pieces_) {
    answer(driver_->api().mem_host_unregister(reinterpret_cast<void*>(piece.first)), "cuMemHostUnregister");
  }
  pieces_.clear();
}

}  // namespace moeinf::cuda
