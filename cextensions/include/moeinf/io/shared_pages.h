// Memory whose pages may lie at several addresses at once: a file that has no name and is on no disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "moeinf/io/descriptor.h"
#include "moeinf/io/mapping.h"

namespace moeinf {

// Equal ranges that lie in equal distances: of `count` planes the bytes from `start` to `start + num_bytes`.
struct Planes {
  std::int64_t start, num_bytes, stride, count;
};

class SharedPages {
 public:
  // Throws SystemFailure where the system has no such files.
  SharedPages();

  static std::int64_t page_bytes();
  // Adds so many bytes, whole pages, which take no memory until they are written; returns where they begin.
  // Throws std::invalid_argument for a size that is none, std::bad_alloc where the system refuses.
  std::int64_t grow(std::int64_t num_bytes);
  // Gives pages back to the system: they read as 0 until they are written again. False where it refuses.
  // Throws std::invalid_argument for what is not inside, or no whole pages.
  bool release(std::int64_t offset, Planes planes) const;

  std::int64_t num_bytes() const { return num_bytes_; }
  // What it takes of the machine's memory.
  std::int64_t used_bytes() const;
  int descriptor() const { return file_.get(); }

 private:
  Descriptor file_;
  std::int64_t num_bytes_ = 0;
};

// A range of addresses over pages of such a file.
class MappedPages {
 public:
  // Over the pages from `offset`. Throws as `map`.
  MappedPages(std::shared_ptr<SharedPages> pages, std::int64_t offset, std::int64_t num_bytes);

  // Puts pages of the file, those of the same planes behind `offset`, at addresses. Throws
  // std::invalid_argument for what is not inside, or no whole pages; std::bad_alloc where the system refuses:
  // some of it may then be done.
  void map(std::int64_t offset, Planes planes);

  unsigned char* data() const { return memory_.data(); }
  std::int64_t num_bytes() const { return num_bytes_; }

 private:
  std::shared_ptr<SharedPages> pages_;
  std::int64_t num_bytes_;
  Mapping memory_;
};

}  // namespace moeinf
