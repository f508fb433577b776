// Working memory that grows and stays, so that a step that was done before allocates nothing.
#pragma once

#include <cstddef>
#include <memory>

#include "moeinf/io/arena.h"

namespace moeinf {

class Buffer {
 public:
  // At least num_bytes on a 64-byte border, not initialised; of huge pages where it is large. What an earlier
  // call returned stays valid, content and all, unless this one needs more than any before.
  void* reserve(std::size_t num_bytes) {
    if (num_bytes > capacity_) grow(num_bytes);
    if (num_bytes > used_) used_ = num_bytes;
    return data_;
  }
  template <typename T>
  T* reserve_array(std::size_t count) {
    return static_cast<T*>(reserve(count * sizeof(T)));
  }
  // Gives its memory back to the machine; the next call takes it anew.
  void release();
  std::size_t capacity() const { return capacity_; }
  std::size_t used_bytes() const { return used_; }  // pages behind are not touched

 private:
  void grow(std::size_t num_bytes);

  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> small_;
  std::unique_ptr<Arena> large_;
  void* data_ = nullptr;
  std::size_t capacity_ = 0, used_ = 0;
};

}  // namespace moeinf
