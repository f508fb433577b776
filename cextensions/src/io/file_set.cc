#include "moeinf/io/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "moeinf/errors.h"

namespace moeinf {
namespace {

struct RemoteFileSystem {
  std::uint32_t number;  // linux/magic.h, and the sources of those that are not in it
  const char* name;
};
// FUSE is virtiofs as well.
constexpr RemoteFileSystem kRemote[] = {
    {0x65735546, "FUSE"},   {0x6969, "NFS"},       {0x517B, "SMB"},        {0xFF534D42, "CIFS"},
    {0xFE534D42, "SMB2"},   {0x01021997, "9p"},    {0x00C36400, "Ceph"},   {0x5346414F, "AFS"},
    {0x6B414653, "AFS"},    {0x73757245, "Coda"},  {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},
    {0x19830326, "BeeGFS"}, {0x20030528, "PVFS2"}, {0xAAD7AAEA, "PanFS"},  {0x786F4256, "vboxsf"},
    {0xBACBACBC, "vmhgfs"}, {0x7C7C6673, "prl_fs"}};

const char* remote_name(std::uint32_t number) {
  for (const RemoteFileSystem& known : kRemote) {
    if (known.number == number) return known.name;
  }
  return nullptr;
}

constexpr int kMostTries = 1000;

int open_retrying(const char* path, int flags) {
  int fd = -1;
  for (int i = 0; i < kMostTries && fd < 0 && (i == 0 || errno == EINTR); ++i) fd = ::open(path, flags);
  return fd;
}

#ifdef O_DIRECT
// Some file systems accept the flag at open and refuse the first read: its errno, or 0.
int refusal_of_direct_read(int fd) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlockBytes, kBlockBytes),
                                                          &std::free);
  if (!block) throw std::bad_alloc();
  const bool refused = ::pread(fd, block.get(), kBlockBytes, 0) < 0 && errno != EINTR && errno != EAGAIN;
  return refused ? errno : 0;
}
#endif

// Past the page cache where possible; `refusal` is the errno of a file system that refuses such reads, else
// 0.
Descriptor open_direct(const std::string& path, int& refusal) {
  refusal = 0;
#ifdef O_DIRECT
  Descriptor direct(open_retrying(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
  refusal = direct.is_open() ? refusal_of_direct_read(direct.get()) : errno;
  return refusal == 0 ? std::move(direct) : Descriptor(open_retrying(path.c_str(), O_RDONLY | O_CLOEXEC));
#else
  Descriptor opened(open_retrying(path.c_str(), O_RDONLY | O_CLOEXEC));
#ifdef F_NOCACHE
  if (opened.is_open() && ::fcntl(opened.get(), F_NOCACHE, 1) < 0) refusal = errno;
#else
  refusal = ENOTSUP;
#endif
  return opened;
#endif
}

// The same file once more, also where it has another name by now or none.
Descriptor open_again(int fd, const std::string& path) {
  char link[32];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  Descriptor opened(open_retrying(link, O_RDONLY | O_CLOEXEC));
  if (opened.is_open()) return opened;
  Descriptor named(open_retrying(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat wanted{}, found{};
  if (named.is_open() && ::fstat(fd, &wanted) == 0 && ::fstat(named.get(), &found) == 0 &&
      wanted.st_dev == found.st_dev && wanted.st_ino == found.st_ino) {
    return named;
  }
  return Descriptor();
}

std::string refusal_text(const std::string& what, int error) {
  return "O_DIRECT refused for " + what + " (" + (error == 0 ? "it brings nothing" : std::strerror(error)) +
         "): reading through the page cache";
}

}  // namespace

std::uint32_t file_system_of(int fd) {
#ifdef __linux__
  struct statfs status{};
  if (::fstatfs(fd, &status) == 0) return static_cast<std::uint32_t>(status.f_type);
#endif
  static_cast<void>(fd);
  return 0;
}

FileSet::FileSet(std::vector<std::string> paths, std::vector<std::int64_t> sizes, Access access,
                 FileSystemProbe file_system) {
  if (paths.size() != sizes.size()) throw std::invalid_argument("as many sizes as paths are needed");
  int num_refused = 0;
  std::string first_refused;
  int refusal = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    int refused = 0;
    files_.push_back(open(paths[i], sizes[i], access, refused));
    const char* remote = remote_name(file_system(files_.back().descriptor.get()));
    if (remote != nullptr && remote_.empty()) remote_ = paths[i] + " lies on " + remote;
    if (refused == 0) continue;
    if (num_refused++ == 0) first_refused = paths[i];
    refusal = refused;
  }
  if (num_refused > 0) {
    const std::string more = num_refused > 1 ? " and " + std::to_string(num_refused - 1) + " more" : "";
    notice_ = refusal_text(first_refused + more, refusal);
  }
}

FileSet::File FileSet::open(const std::string& path, std::int64_t num_bytes, Access access, int& refusal) {
  File file;
  file.path = path;
  file.num_bytes = num_bytes;
  file.descriptor = access == Access::kDirect ? open_direct(path, refusal)
                                              : Descriptor(open_retrying(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!file.descriptor.is_open() || ::fstat(file.descriptor.get(), &status) < 0) {
    const int error = errno;
    throw SystemFailure(error, "cannot open " + path + ": " + std::strerror(error), path);
  }
  if (!S_ISREG(status.st_mode)) throw ReadFailure(path + " is not a regular file", -1, 0, path, 0, 0);
  if (status.st_size != num_bytes) {
    throw ReadFailure(
        path + " has " + std::to_string(status.st_size) + " bytes, expected " + std::to_string(num_bytes), -1,
        0, path, 0, 0);
  }
#ifdef O_DIRECT
  file.direct = access == Access::kDirect && refusal == 0;
#endif
  return file;
}

int FileSet::descriptor(int file) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const File& each = files_[file];
  return !each.direct && each.second.is_open() ? each.second.get() : each.descriptor.get();
}

bool FileSet::is_direct(int file) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return files_[file].direct;
}

int FileSet::ordinary(int file) {
  File& each = files_[file];
  std::unique_lock<std::mutex> lock(mutex_);
  if (each.direct && !each.second.is_open()) {
    lock.unlock();  // a disk that hangs holds up nobody but its reader
    Descriptor opened = open_again(each.descriptor.get(), each.path);
    lock.lock();
    if (!each.second.is_open()) each.second = std::move(opened);
  }
  return each.second.is_open() ? each.second.get() : each.descriptor.get();
}

void FileSet::refuse_direct(int file, int error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  File& each = files_[file];
  if (!each.direct) return;
  each.direct = false;
  try {
    if (notice_.empty()) notice_ = refusal_text(each.path, error);
  } catch (const std::bad_alloc&) {  // there is no room for a line either
  }
}

std::string FileSet::notice() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return notice_;
}

std::int64_t FileSet::num_bytes_now(int file) const {
  struct stat status{};
  return ::fstat(files_[file].descriptor.get(), &status) == 0 ? static_cast<std::int64_t>(status.st_size)
                                                              : -1;
}

void FileSet::close() {
  for (File& file : files_) {
    file.descriptor = Descriptor();
    file.second = Descriptor();
  }
}

}  // namespace moeinf
