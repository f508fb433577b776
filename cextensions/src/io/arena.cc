#include "moeinf/io/arena.h"

#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>

namespace moeinf {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr int kMostTries = 1000;  // a filter of system calls may refuse with any errno, for ever
#ifdef __linux__
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
#endif

bool advise_whole_pages(unsigned char* data, std::size_t num_bytes, int advice) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto start = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + num_bytes) / page * page;
  if (end <= start) return true;
  for (int i = 0; i < kMostTries; ++i) {
    if (::madvise(reinterpret_cast<void*>(start), end - start, advice) == 0) return true;
    if (errno != EINTR && errno != EAGAIN) return false;
  }
  return false;
}

}  // namespace

Arena::Arena(std::size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) throw std::invalid_argument("an arena needs at least one byte");
  if (num_bytes > SIZE_MAX - kHugePageBytes) throw std::bad_alloc();
  // Mapped larger by one huge page, since mmap aligns to small pages only; the rest is address space, never
  // memory.
  const std::size_t mapped_bytes = num_bytes + kHugePageBytes;
  void* address = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  mapping_ = Mapping(address, mapped_bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  data_ = reinterpret_cast<unsigned char*>((start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes);
#ifdef MADV_HUGEPAGE
  // Only a hint: fewer TLB misses in the kernels, and fewer pages for the disk driver to look up.
  (void)::madvise(data_, num_bytes, MADV_HUGEPAGE);
#endif
}

bool populate(unsigned char* data, std::size_t num_bytes) {
#ifdef __linux__
  return advise_whole_pages(data, num_bytes, kPopulateWrite);
#else
  (void)data, (void)num_bytes;
  return false;
#endif
}

bool give_back(unsigned char* data, std::size_t num_bytes) {
#ifdef __linux__
  return advise_whole_pages(data, num_bytes, MADV_DONTNEED);
#else
  // MADV_DONTNEED keeps the pages of macOS and the BSDs.
  return advise_whole_pages(data, num_bytes, MADV_FREE);
#endif
}

}  // namespace moeinf
