// What the engine throws. Misuse by the caller (unknown key, range outside a file) is std::invalid_argument.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace moeinf {

// A file that cannot be opened, or a kernel interface that was asked for by name and refused.
class SystemFailure : public std::runtime_error {
 public:
  SystemFailure(int error, const std::string& what, std::string path = {})
      : std::runtime_error(what), error(error), path(std::move(path)) {}

  int error;
  std::string path;  // empty when no file is concerned
};

// A read that did not bring all its bytes, or a file whose size is not the expected one.
class ReadFailure : public std::runtime_error {
 public:
  ReadFailure(const std::string& what, std::int64_t key, int error, std::string path, std::int64_t offset,
              std::int64_t num_bytes_read)
      : std::runtime_error(what),
        key(key),
        error(error),
        path(std::move(path)),
        offset(offset),
        num_bytes_read(num_bytes_read) {}

  std::int64_t key;  // -1: found when the file was opened
  int error;         // errno; 0: the file is shorter (or longer) than it has to be
  std::string path;
  std::int64_t offset;  // of the request
  std::int64_t num_bytes_read;
};

}  // namespace moeinf
