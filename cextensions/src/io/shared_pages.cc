#include "moeinf/io/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>
#include <new>
#include <stdexcept>
#include <utility>

#include "moeinf/errors.h"

namespace moeinf {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
constexpr std::int64_t kMostPlanes = std::int64_t{1} << 20;
constexpr int kMostTries = 1000;  // a filter of system calls may refuse with any errno, for ever

void require_pages(std::initializer_list<std::int64_t> sizes) {
  for (const std::int64_t size : sizes) {
    if (size < 0 || size % SharedPages::page_bytes() != 0) throw std::invalid_argument("no whole pages");
  }
}

// Behind `offset` of something of `size` bytes, neither of which is beyond kMostBytes.
void require_inside(std::int64_t offset, const Planes& planes, std::int64_t size) {
  require_pages({offset, planes.start, planes.num_bytes, planes.stride});
  if (planes.count < 1 || planes.count > kMostPlanes) throw std::invalid_argument("no such number of planes");
  if (planes.count > 1 && planes.stride == 0) throw std::invalid_argument("planes that lie in one place");
  const bool fits = offset <= size && planes.num_bytes <= size - offset &&
                    planes.start <= size - offset - planes.num_bytes &&
                    (planes.count == 1 ||
                     planes.count - 1 <= (size - offset - planes.num_bytes - planes.start) / planes.stride);
  if (!fits) throw std::invalid_argument("pages that there are not");
}

}  // namespace

#ifdef __linux__
SharedPages::SharedPages() : file_(::memfd_create("moeinf", MFD_CLOEXEC)) {
  if (!file_.is_open()) throw SystemFailure(errno, "the system gives no memory that can be shared");
}
#else
SharedPages::SharedPages() { throw SystemFailure(ENOSYS, "the system gives no memory that can be shared"); }
#endif

std::int64_t SharedPages::page_bytes() {
  static const std::int64_t size = ::sysconf(_SC_PAGESIZE);
  return size;
}

std::int64_t SharedPages::grow(std::int64_t num_bytes) {
  require_pages({num_bytes});
  if (num_bytes > kMostBytes - num_bytes_) throw std::bad_alloc();
  int result = -1;
  for (int i = 0; i < kMostTries && result != 0; ++i) {
    result = ::ftruncate(file_.get(), num_bytes_ + num_bytes);
    if (result != 0 && errno != EINTR) break;
  }
  if (result != 0) throw std::bad_alloc();
  return std::exchange(num_bytes_, num_bytes_ + num_bytes);
}

std::int64_t SharedPages::used_bytes() const {
  struct stat found = {};
  return ::fstat(file_.get(), &found) == 0 ? std::int64_t{found.st_blocks} * 512 : 0;
}

bool SharedPages::release(std::int64_t offset, Planes planes) const {
  require_inside(offset, planes, num_bytes_);
  if (planes.num_bytes == 0) return true;
#ifdef __linux__
  for (std::int64_t i = 0; i < planes.count; ++i) {
    const std::int64_t start = offset + planes.start + i * planes.stride;
    int result = -1;
    for (int tries = 0; tries < kMostTries && result != 0; ++tries) {
      result = ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, planes.num_bytes);
      if (result != 0 && errno != EINTR) return false;
    }
    if (result != 0) return false;
  }
  return true;
#else
  return false;
#endif
}

MappedPages::MappedPages(std::shared_ptr<SharedPages> pages, std::int64_t offset, std::int64_t num_bytes)
    : pages_(std::move(pages)), num_bytes_(num_bytes) {
  if (num_bytes == 0) throw std::invalid_argument("memory needs at least one page");
  require_inside(offset, {0, num_bytes, 0, 1}, pages_->num_bytes());
  void* address = ::mmap(nullptr, static_cast<std::size_t>(num_bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                         pages_->descriptor(), offset);
  if (address == MAP_FAILED) throw std::bad_alloc();
  memory_ = Mapping(address, static_cast<std::size_t>(num_bytes));
}

void MappedPages::map(std::int64_t offset, Planes planes) {
  require_inside(offset, planes, pages_->num_bytes());
  require_inside(0, planes, num_bytes_);
  if (planes.num_bytes == 0) return;
  for (std::int64_t i = 0; i < planes.count; ++i) {
    const std::int64_t start = planes.start + i * planes.stride;
    void* address = ::mmap(data() + start, static_cast<std::size_t>(planes.num_bytes), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED, pages_->descriptor(), offset + start);
    if (address == MAP_FAILED) throw std::bad_alloc();
  }
}

}  // namespace moeinf
