#include "allocations.h"

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>

namespace {

constexpr long kNever = std::numeric_limits<long>::min();

std::atomic<long> left{kNever};  // requests until one fails
std::atomic<bool> persists{false}, failed{false};

bool fails() {
  if (left.load() == kNever) return false;
  const long before = left.fetch_sub(1);
  if (before > 0 || (before < 0 && !persists)) return false;
  failed = true;
  return true;
}

void* allocated(std::size_t num_bytes, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  void* found = nullptr;
  const std::size_t least = alignment < sizeof(void*) ? sizeof(void*) : alignment;
  return posix_memalign(&found, least, num_bytes == 0 ? 1 : num_bytes) == 0 ? found : nullptr;
}

void* required(std::size_t num_bytes, std::size_t alignment) {
  void* const found = allocated(num_bytes, alignment);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

constexpr std::size_t kAlignment = alignof(std::max_align_t);

std::size_t number_of(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

FailingAllocation::FailingAllocation(int number, bool persistent) {
  failed = false;
  persists = persistent;
  left = number;
}

FailingAllocation::~FailingAllocation() { left = kNever; }

bool FailingAllocation::has_failed() { return failed; }

void* operator new(std::size_t num_bytes) { return required(num_bytes, kAlignment); }
void* operator new[](std::size_t num_bytes) { return required(num_bytes, kAlignment); }
void* operator new(std::size_t num_bytes, std::align_val_t a) { return required(num_bytes, number_of(a)); }
void* operator new[](std::size_t num_bytes, std::align_val_t a) { return required(num_bytes, number_of(a)); }
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return allocated(num_bytes, kAlignment);
}
void* operator new[](std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return allocated(num_bytes, kAlignment);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

// The linker puts it in the place of mmap where the engine calls that (--wrap).
extern "C" void* __real_mmap(void*, std::size_t, int, int, int, off_t);
extern "C" void* __wrap_mmap(void* address, std::size_t num_bytes, int protection, int flags, int fd,
                             off_t offset) {
  if ((flags & MAP_ANONYMOUS) == 0 || !fails())
    return __real_mmap(address, num_bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
