#include "allocations.h"

#include <sys/mman.h>

#include <atomic>
#include <limits>

#include "operator_new.h"

namespace {

constexpr long kNever = std::numeric_limits<long>::min();

std::atomic<long> left{kNever};  // requests until one fails
std::atomic<bool> persists{false}, failed{false};

}  // namespace

bool allocation_fails() noexcept {
  if (left.load() == kNever) return false;
  const long before = left.fetch_sub(1);
  if (before > 0 || (before < 0 && !persists)) return false;
  failed = true;
  return true;
}

FailingAllocation::FailingAllocation(int number, Refused refused) {
  failed = false;
  persists = refused == Refused::kFromThenOn;
  left = number;
}

FailingAllocation::~FailingAllocation() { left = kNever; }

bool FailingAllocation::has_failed() { return failed; }

// The linker puts it in the place of mmap where the engine calls that (--wrap).
extern "C" void* __real_mmap(void*, std::size_t, int, int, int, off_t);
extern "C" void* __wrap_mmap(void* address, std::size_t num_bytes, int protection, int flags, int fd,
                             off_t offset) {
  if ((flags & MAP_ANONYMOUS) == 0 || !allocation_fails())
    return __real_mmap(address, num_bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
