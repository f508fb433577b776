// Preloaded into the command: reads of files whose path contains $HANG_FILES never end once $HANG_MARK exists,
// but for the one block that is read to try O_DIRECT. io_uring is refused, so that reads come through pread.
// $HANG_MARK.reached says that a read hangs.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr size_t kBlockBytes = 4096;

void hang_if_due(int file) {
  const char* part = std::getenv("HANG_FILES");
  const char* mark = std::getenv("HANG_MARK");
  if (part == nullptr || mark == nullptr || ::access(mark, F_OK) != 0) return;
  char path[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  if (::readlink(link.c_str(), path, sizeof(path) - 1) < 0 || std::strstr(path, part) == nullptr) return;
  ::close(::open((std::string(mark) + ".reached").c_str(), O_CREAT | O_WRONLY, 0600));
  for (;;) ::pause();
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pread(int file, void* buffer, size_t num_bytes, off_t offset) {
  if (num_bytes > kBlockBytes) hang_if_due(file);
  return next<ssize_t (*)(int, void*, size_t, off_t)>("pread")(file, buffer, num_bytes, offset);
}

ssize_t pread64(int file, void* buffer, size_t num_bytes, off64_t offset) {
  if (num_bytes > kBlockBytes) hang_if_due(file);
  return next<ssize_t (*)(int, void*, size_t, off64_t)>("pread64")(file, buffer, num_bytes, offset);
}

// What Python's os.preadv calls.
ssize_t preadv2(int file, const struct iovec* buffers, int count, off_t offset, int flags) {
  hang_if_due(file);
  return next<ssize_t (*)(int, const struct iovec*, int, off_t, int)>("preadv2")(file, buffers, count, offset, flags);
}

ssize_t preadv64v2(int file, const struct iovec* buffers, int count, off64_t offset, int flags) {
  hang_if_due(file);
  return next<ssize_t (*)(int, const struct iovec*, int, off64_t, int)>("preadv64v2")(file, buffers, count, offset,
                                                                                     flags);
}

long syscall(long number, ...) {
  if (number == SYS_io_uring_setup) {
    errno = ENOSYS;
    return -1;
  }
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  return next<long (*)(long, ...)>("syscall")(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
}
