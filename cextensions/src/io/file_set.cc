#include "moeinf/io/file_set.h"

#include <fcntl.h>
#include <sys/stat.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
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

int open_retrying(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

#ifdef O_DIRECT
// Some file systems accept the flag at open and refuse the first read.
bool refuses_direct_read(int fd) {
  const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(kBlockBytes, kBlockBytes),
                                                          &std::free);
  if (!block) throw std::bad_alloc();
  return ::pread(fd, block.get(), kBlockBytes, 0) < 0 && errno == EINVAL;
}
#endif

// Past the page cache where possible; `refusal` is the errno of a file system that has no such reads, else 0.
Descriptor open_direct(const std::string& path, int& refusal) {
  refusal = 0;
#ifdef O_DIRECT
  Descriptor direct(open_retrying(path, O_RDONLY | O_CLOEXEC | O_DIRECT));
  if (!direct.is_open() && errno != EINVAL) return direct;
  if (direct.is_open() && !refuses_direct_read(direct.get())) return direct;
  refusal = EINVAL;
  return Descriptor(open_retrying(path, O_RDONLY | O_CLOEXEC));
#else
  Descriptor opened(open_retrying(path, O_RDONLY | O_CLOEXEC));
#ifdef F_NOCACHE
  if (opened.is_open() && ::fcntl(opened.get(), F_NOCACHE, 1) < 0) refusal = errno;
#else
  refusal = ENOTSUP;
#endif
  return opened;
#endif
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

FileSet::FileSet(std::vector<std::string> paths, std::vector<std::int64_t> sizes, bool direct,
                 FileSystemProbe file_system) {
  if (paths.size() != sizes.size()) throw std::invalid_argument("as many sizes as paths are needed");
  int num_refused = 0;
  std::string first_refused;
  int refusal = 0;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    int refused = 0;
    files_.push_back(open(paths[i], sizes[i], direct, refused));
    const char* remote = remote_name(file_system(files_.back().descriptor.get()));
    if (remote != nullptr && remote_.empty()) remote_ = paths[i] + " lies on " + remote;
    if (refused == 0) continue;
    if (num_refused++ == 0) first_refused = paths[i];
    refusal = refused;
  }
  if (num_refused > 0) {
    notice_ = "O_DIRECT refused for " + first_refused +
              (num_refused > 1 ? " and " + std::to_string(num_refused - 1) + " more" : "") + " (" +
              std::strerror(refusal) + "): reading through the page cache";
  }
}

FileSet::File FileSet::open(const std::string& path, std::int64_t num_bytes, bool direct, int& refusal) {
  File file;
  file.path = path;
  file.num_bytes = num_bytes;
  file.descriptor =
      direct ? open_direct(path, refusal) : Descriptor(open_retrying(path, O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!file.descriptor.is_open() || ::fstat(file.descriptor.get(), &status) < 0) {
    const int error = errno;
    throw SystemFailure(error, "cannot open " + path + ": " + std::strerror(error), path);
  }
  if (!S_ISREG(status.st_mode)) throw SystemFailure(EINVAL, path + " is not a regular file", path);
  if (status.st_size != num_bytes) {
    throw ReadFailure(
        path + " has " + std::to_string(status.st_size) + " bytes, expected " + std::to_string(num_bytes), -1,
        0, path, 0, 0);
  }
#ifdef O_DIRECT
  file.direct = direct && refusal == 0;
#endif
  return file;
}

std::int64_t FileSet::num_bytes_now(int file) const {
  struct stat status{};
  return ::fstat(descriptor(file), &status) == 0 ? static_cast<std::int64_t>(status.st_size) : -1;
}

void FileSet::close() {
  for (File& file : files_) file.descriptor = Descriptor();
}

}  // namespace moeinf
