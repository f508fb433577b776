// Preloaded into a process: once strike_calls() was called, the n-th call of a kind that concerns a file beneath a
// folder, and each k-th behind it where that is asked for, fails, is short, takes long, or is the last thing that the
// process does. Counts are shared with the process that it was forked from. Maps and connections count wherever they
// lead.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

// As in tests/support/faults/strikes.py. kChange counts all that changes a file or a folder.
enum Kind { kNone, kOpen, kRead, kWrite, kSync, kRename, kOther, kMap, kConnect, kChange };
enum Action { kFail = 1, kShort, kHang, kKillBefore, kKillAfter };

struct Counts {
  std::atomic<long> seen{0};
};

Counts* counts = nullptr;
int kind = kNone, action = 0, number = 0;
long at = 0, every = 0;  // every: 0 for the n-th alone
char root[PATH_MAX];
std::size_t root_length = 0;

__attribute__((constructor)) void share() {
  void* memory = ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) counts = new (memory) Counts;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool is_beneath(const char* path) { return path != nullptr && std::strncmp(path, root, root_length) == 0; }

bool path_of(int file, char* path) {
  char link[32];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const int before = errno;
  const ssize_t length = ::readlink(link, path, PATH_MAX - 1);
  errno = before;
  if (length < 0) return false;
  path[length] = 0;
  return true;
}

bool is_beneath(int file) {
  char path[PATH_MAX];
  return path_of(file, path) && is_beneath(path);
}

bool is_beneath(int folder, const char* path) {
  if (path != nullptr && path[0] == '/') return is_beneath(path);
  char whole[PATH_MAX];
  if (folder == AT_FDCWD) return ::getcwd(whole, sizeof(whole)) != nullptr && is_beneath(whole);
  return is_beneath(folder);
}

bool counted(Kind asked) {
  return counts != nullptr && (kind == asked || (kind == kChange && asked >= kWrite && asked <= kOther));
}

// Whether the call of that number is one that is struck.
bool is_struck(long call) { return call == at || (every > 0 && call > at && (call - at) % every == 0); }

bool is_due() { return is_struck(counts->seen.fetch_add(1) + 1); }

void end() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

void hang() {
  timespec left{number / 1000, number % 1000 * 1000000L};
  while (::nanosleep(&left, &left) != 0) {
  }
}

// Carries out a call that is counted, or what is to become of it. failed: what it returns where it fails.
template <typename Result, typename Call>
Result strike(bool concerned, Result failed, const Call& call) {
  if (!concerned || !is_due()) return call();
  if (action == kFail) {
    errno = number;
    return failed;
  }
  if (action == kKillBefore) end();
  if (action == kHang) hang();
  const Result result = call();
  if (action == kKillAfter) end();
  return result;
}

// The same of one that moves bytes, and may move fewer.
template <typename Call>
ssize_t strike_bytes(bool concerned, std::size_t num_bytes, const Call& call) {
  if (!concerned) return call(num_bytes);
  const bool is_short = action == kShort && num_bytes > 1 && is_struck(counts->seen.load() + 1);
  return strike<ssize_t>(true, -1, [&] { return call(is_short ? num_bytes / 2 : num_bytes); });
}

template <typename Call>
ssize_t strike_vectors(bool concerned, const iovec* buffers, int count, const Call& call) {
  if (!concerned) return call(buffers, count);
  const bool is_short = action == kShort && count > 0 && buffers[0].iov_len > 1 && is_struck(counts->seen.load() + 1);
  iovec first = count > 0 ? buffers[0] : iovec{};
  first.iov_len /= 2;
  return strike<ssize_t>(true, -1, [&] { return is_short ? call(&first, 1) : call(buffers, count); });
}

}  // namespace

extern "C" {

// For a process that was forked from the one whose calls are struck.
void strike_no_calls() { kind = kNone; }

void strike_calls(const char* folder, int struck, long first, int what, int value, long period) {
  std::snprintf(root, sizeof(root), "%s", folder);
  root_length = std::strlen(root);
  at = first;
  every = period;
  action = what;
  number = value;
  if (counts != nullptr) counts->seen.store(0);
  kind = struck;
}

long counted_calls() { return counts == nullptr ? -1 : counts->seen.load(); }

#define OPEN(name)                                                                                       \
  int name(const char* path, int flags, ...) {                                                           \
    va_list list;                                                                                        \
    va_start(list, flags);                                                                               \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;                  \
    va_end(list);                                                                                        \
    const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;                                             \
    const bool mine = (counted(kOpen) || (changes && counted(kOther))) && is_beneath(AT_FDCWD, path);    \
    return strike(mine, -1, [&] { return next<int (*)(const char*, int, ...)>(#name)(path, flags, mode); }); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                        \
  int name(int folder, const char* path, int flags, ...) {                                                  \
    va_list list;                                                                                           \
    va_start(list, flags);                                                                                  \
    const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;                     \
    va_end(list);                                                                                           \
    const bool changes = (flags & (O_CREAT | O_TRUNC)) != 0;                                                \
    const bool mine = (counted(kOpen) || (changes && counted(kOther))) && is_beneath(folder, path);         \
    return strike(mine, -1,                                                                                 \
                  [&] { return next<int (*)(int, const char*, int, ...)>(#name)(folder, path, flags, mode); }); \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t read(int file, void* buffer, size_t num_bytes) {
  return strike_bytes(counted(kRead) && is_beneath(file), num_bytes, [&](size_t asked) {
    return next<ssize_t (*)(int, void*, size_t)>("read")(file, buffer, asked);
  });
}

ssize_t write(int file, const void* buffer, size_t num_bytes) {
  return strike_bytes(counted(kWrite) && is_beneath(file), num_bytes, [&](size_t asked) {
    return next<ssize_t (*)(int, const void*, size_t)>("write")(file, buffer, asked);
  });
}

#define PREAD(name, offset_t)                                                                       \
  ssize_t name(int file, void* buffer, size_t num_bytes, offset_t offset) {                         \
    return strike_bytes(counted(kRead) && is_beneath(file), num_bytes, [&](size_t asked) {          \
      return next<ssize_t (*)(int, void*, size_t, offset_t)>(#name)(file, buffer, asked, offset);   \
    });                                                                                             \
  }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

#define PWRITE(name, offset_t)                                                                            \
  ssize_t name(int file, const void* buffer, size_t num_bytes, offset_t offset) {                         \
    return strike_bytes(counted(kWrite) && is_beneath(file), num_bytes, [&](size_t asked) {               \
      return next<ssize_t (*)(int, const void*, size_t, offset_t)>(#name)(file, buffer, asked, offset);   \
    });                                                                                                   \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define VECTORS(name, offset_t, what)                                                                           \
  ssize_t name(int file, const struct iovec* buffers, int count, offset_t offset, int flags) {                  \
    return strike_vectors(counted(what) && is_beneath(file), buffers, count, [&](const iovec* asked, int many) { \
      return next<ssize_t (*)(int, const struct iovec*, int, offset_t, int)>(#name)(file, asked, many, offset,  \
                                                                                    flags);                     \
    });                                                                                                         \
  }
VECTORS(preadv2, off_t, kRead)
VECTORS(preadv64v2, off64_t, kRead)
VECTORS(pwritev2, off_t, kWrite)
VECTORS(pwritev64v2, off64_t, kWrite)

int fsync(int file) {
  return strike(counted(kSync) && is_beneath(file), -1, [&] { return next<int (*)(int)>("fsync")(file); });
}

int fdatasync(int file) {
  return strike(counted(kSync) && is_beneath(file), -1, [&] { return next<int (*)(int)>("fdatasync")(file); });
}

int rename(const char* from, const char* to) {
  return strike(counted(kRename) && is_beneath(AT_FDCWD, to), -1,
                [&] { return next<int (*)(const char*, const char*)>("rename")(from, to); });
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return strike(counted(kRename) && is_beneath(to_folder, to), -1, [&] {
    return next<int (*)(int, const char*, int, const char*)>("renameat")(from_folder, from, to_folder, to);
  });
}

int link(const char* from, const char* to) {
  return strike(counted(kOther) && is_beneath(AT_FDCWD, to), -1,
                [&] { return next<int (*)(const char*, const char*)>("link")(from, to); });
}

int symlink(const char* from, const char* to) {
  return strike(counted(kOther) && is_beneath(AT_FDCWD, to), -1,
                [&] { return next<int (*)(const char*, const char*)>("symlink")(from, to); });
}

int unlink(const char* path) {
  return strike(counted(kOther) && is_beneath(AT_FDCWD, path), -1,
                [&] { return next<int (*)(const char*)>("unlink")(path); });
}

int unlinkat(int folder, const char* path, int flags) {
  return strike(counted(kOther) && is_beneath(folder, path), -1,
                [&] { return next<int (*)(int, const char*, int)>("unlinkat")(folder, path, flags); });
}

int rmdir(const char* path) {
  return strike(counted(kOther) && is_beneath(AT_FDCWD, path), -1,
                [&] { return next<int (*)(const char*)>("rmdir")(path); });
}

int mkdir(const char* path, mode_t mode) {
  return strike(counted(kOther) && is_beneath(AT_FDCWD, path), -1,
                [&] { return next<int (*)(const char*, mode_t)>("mkdir")(path, mode); });
}

int ftruncate(int file, off_t num_bytes) {
  return strike(counted(kOther) && is_beneath(file), -1,
                [&] { return next<int (*)(int, off_t)>("ftruncate")(file, num_bytes); });
}

int ftruncate64(int file, off64_t num_bytes) {
  return strike(counted(kOther) && is_beneath(file), -1,
                [&] { return next<int (*)(int, off64_t)>("ftruncate64")(file, num_bytes); });
}

void* mmap(void* address, size_t num_bytes, int protection, int flags, int file, off_t offset) {
  return strike<void*>(counted(kMap), MAP_FAILED, [&] {
    return next<void* (*)(void*, size_t, int, int, int, off_t)>("mmap")(address, num_bytes, protection, flags, file,
                                                                       offset);
  });
}

void* mmap64(void* address, size_t num_bytes, int protection, int flags, int file, off64_t offset) {
  return strike<void*>(counted(kMap), MAP_FAILED, [&] {
    return next<void* (*)(void*, size_t, int, int, int, off64_t)>("mmap64")(address, num_bytes, protection, flags,
                                                                           file, offset);
  });
}

int connect(int file, const struct sockaddr* address, socklen_t length) {
  return strike(counted(kConnect), -1, [&] {
    return next<int (*)(int, const struct sockaddr*, socklen_t)>("connect")(file, address, length);
  });
}
}
