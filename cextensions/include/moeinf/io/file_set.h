// The open files of one reader, each checked for its size and opened past the page cache where its file
// system allows, and as long as it answers such reads.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "moeinf/io/descriptor.h"

namespace moeinf {

constexpr std::int64_t kBlockBytes = 4096;  // O_DIRECT wants offset, length and address on it

// The kernel's number of the file system that an open file lies on; 0 where it does not tell. Tests put
// others in its place.
using FileSystemProbe = std::uint32_t (*)(int fd);
std::uint32_t file_system_of(int fd);

// How files are read: past the page cache where they can be, or through it.
enum class Access { kDirect, kCached };

class FileSet {
 public:
  // Opens every file. Throws SystemFailure (missing file, no permission, too many open files) and, for
  // what is not a regular file of the expected size, ReadFailure.
  FileSet(std::vector<std::string> paths, std::vector<std::int64_t> sizes, Access access,
          FileSystemProbe file_system = file_system_of);

  int count() const { return static_cast<int>(files_.size()); }
  // What to read from, and whether that goes past the page cache.
  int descriptor(int file) const;
  bool is_direct(int file) const;
  // One that goes through the page cache, which is opened when it is first asked for; descriptor() where the
  // system has no other to give.
  int ordinary(int file);
  // A direct read failed with this errno, or 0 where it brought nothing, and an ordinary one did not: the
  // file is read through the page cache from now on.
  void refuse_direct(int file, int error);

  std::int64_t num_bytes(int file) const { return files_[file].num_bytes; }
  const std::string& path(int file) const { return files_[file].path; }

  std::int64_t num_bytes_now(int file) const;  // asks the file system; -1 where it does not tell
  std::string notice() const;                  // one line once O_DIRECT was refused, else empty
  // Says which file lies on FUSE or on a network file system, and on which; empty where none does.
  const std::string& remote() const { return remote_; }
  void close();  // only when nothing reads any more

 private:
  struct File {
    std::string path;
    std::int64_t num_bytes = 0;
    Descriptor descriptor;
    Descriptor second;  // of a file that was opened past the page cache: without that
    bool direct = false;
  };

  static File open(const std::string& path, std::int64_t num_bytes, Access access, int& refusal);

  mutable std::mutex mutex_;  // guards what may change later: `second`, `direct` and the notice
  std::vector<File> files_;
  std::string notice_;
  std::string remote_;
};

}  // namespace moeinf
