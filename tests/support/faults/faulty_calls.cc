// Preloaded into a process: once fail_calls() was called, calls of one kind fail with an errno, or bring nothing where
// it is 0: `count` of them behind the first `skipped`. Reads and opens count that concern a model's files.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace {

// As in tests/support/faults/reader_calls.py.
enum Kind { kNone, kOpen, kDirectOpen, kRead, kDirectRead, kStat, kSetUp, kRegister, kEnter, kCompletion, kWake,
            kMap, kAdvise, kThread };

std::atomic<int> failing{kNone}, error{0};
std::atomic<long> skipped{0}, left{0};

bool is_due(Kind kind) {
  if (failing.load() != kind) return false;
  if (skipped.fetch_sub(1) > 0) return false;
  if (left.fetch_sub(1) <= 0) return false;
  errno = error.load();
  return true;
}

bool is_of_model(const char* path) {
  return std::strstr(path, "experts-") != nullptr || std::strstr(path, "dense.safetensors") != nullptr;
}

bool is_of_model(int file) {
  const int before = errno;
  char link[32], path[4096];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t length = ::readlink(link, path, sizeof(path) - 1);
  errno = before;
  if (length < 0) return false;
  path[length] = 0;
  return is_of_model(path);
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool opening_fails(const char* path, int flags) {
  if (failing.load() != kOpen && failing.load() != kDirectOpen) return false;
  char target[4096];
  if (std::strncmp(path, "/proc/self/fd/", 14) == 0) {
    const ssize_t length = ::readlink(path, target, sizeof(target) - 1);
    if (length < 0) return false;
    target[length] = 0;
    path = target;
  }
  if (!is_of_model(path)) return false;
  return is_due(kOpen) || ((flags & O_DIRECT) != 0 && is_due(kDirectOpen));
}

// 1: read on; else what the call returns.
ssize_t reading_fails(int file) {
  if ((failing.load() != kRead && failing.load() != kDirectRead) || !is_of_model(file)) return 1;
  const bool direct = (::fcntl(file, F_GETFL) & O_DIRECT) != 0;
  if (!is_due(kRead) && !(direct && is_due(kDirectRead))) return 1;
  return error.load() == 0 ? 0 : -1;
}

io_uring_sqe* entries = nullptr;
std::size_t num_entries = 0;

// Lets the kernel fail the reads that are queued: with EBADF, EFAULT or EINVAL.
void spoil_entries() {
  for (std::size_t i = 0; entries != nullptr && i < num_entries; ++i) {
    if (entries[i].user_data == UINT64_MAX) continue;
    if (error.load() == EBADF) entries[i].fd = -1;
    if (error.load() == EFAULT) entries[i].addr = 8;
    if (error.load() == EINVAL) entries[i].opcode = 255;
  }
}

}  // namespace

extern "C" {

void fail_calls(int kind, long first, long count, int number) {
  skipped.store(first);
  left.store(count);
  error.store(number);
  failing.store(kind);
}

#define OPEN(name)                                                                              \
  int name(const char* path, int flags, ...) {                                                  \
    va_list list;                                                                               \
    va_start(list, flags);                                                                      \
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;                      \
    va_end(list);                                                                               \
    return opening_fails(path, flags) ? -1 : next<int (*)(const char*, int, ...)>(#name)(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define PREAD(name, offset_t)                                                                                  \
  ssize_t name(int file, void* buffer, size_t num_bytes, offset_t offset) {                                    \
    const ssize_t failed = reading_fails(file);                                                                \
    return failed < 1 ? failed                                                                                 \
                      : next<ssize_t (*)(int, void*, size_t, offset_t)>(#name)(file, buffer, num_bytes, offset); \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

// What Python's os.preadv calls.
#define PREADV(name, offset_t)                                                                                 \
  ssize_t name(int file, const struct iovec* buffers, int count, offset_t offset, int flags) {                 \
    const ssize_t failed = reading_fails(file);                                                                \
    return failed < 1 ? failed                                                                                 \
                      : next<ssize_t (*)(int, const struct iovec*, int, offset_t, int)>(#name)(file, buffers,  \
                                                                                               count, offset, flags); \
  }
PREADV(preadv2, off_t)
PREADV(preadv64v2, off64_t)

int fstat(int file, struct stat* status) {
  if (failing.load() == kStat && is_of_model(file) && is_due(kStat)) return -1;
  return next<int (*)(int, struct stat*)>("fstat")(file, status);
}

int fstat64(int file, struct stat64* status) {
  if (failing.load() == kStat && is_of_model(file) && is_due(kStat)) return -1;
  return next<int (*)(int, struct stat64*)>("fstat64")(file, status);
}

int eventfd(unsigned count, int flags) {
  return is_due(kWake) ? -1 : next<int (*)(unsigned, int)>("eventfd")(count, flags);
}

void* mmap(void* address, size_t num_bytes, int protection, int flags, int file, off_t offset) {
  if (is_due(kMap)) return MAP_FAILED;
  void* mapped = next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap")(address, num_bytes, protection, flags,
                                                                             file, offset);
  if (file >= 0 && offset == static_cast<off_t>(IORING_OFF_SQES) && mapped != MAP_FAILED) {
    entries = static_cast<io_uring_sqe*>(mapped);
    num_entries = num_bytes / sizeof(io_uring_sqe);
  }
  return mapped;
}

int madvise(void* address, size_t num_bytes, int advice) {
  return is_due(kAdvise) ? -1 : next<int (*)(void*, size_t, int)>("madvise")(address, num_bytes, advice);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* argument) {
  if (is_due(kThread)) return error.load();
  return next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create")(
      thread, attributes, run, argument);
}

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long words[6];
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (number == SYS_io_uring_setup && is_due(kSetUp)) return -1;
  if (number == SYS_io_uring_register && is_due(kRegister)) return -1;
  if (number == SYS_io_uring_enter) {
    if (is_due(kEnter)) return -1;
    if (words[1] > 0 && is_due(kCompletion)) spoil_entries();
  }
  return next<long (*)(long, ...)>("syscall")(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
}
