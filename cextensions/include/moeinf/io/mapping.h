// A range of mapped memory that unmaps itself.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace moeinf {

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, std::size_t num_bytes) : address_(address), num_bytes_(num_bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~Mapping() {
    if (address_ != nullptr) ::munmap(address_, num_bytes_);
  }

  unsigned char* data() const { return static_cast<unsigned char*>(address_); }

 private:
  void* address_ = nullptr;
  std::size_t num_bytes_ = 0;
};

}  // namespace moeinf
