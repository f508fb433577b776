// Memory that is refused is an exception, as without a sanitizer, whose own operators end the program there:
// so a module for Python raises MemoryError.
#include "operator_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

__attribute__((weak)) bool allocation_fails() noexcept { return false; }

namespace {

void* allocated(std::size_t num_bytes, std::size_t alignment) noexcept {
  if (allocation_fails()) return nullptr;
  void* found = nullptr;
  const std::size_t least = alignment < sizeof(void*) ? sizeof(void*) : alignment;
  return posix_memalign(&found, least, num_bytes == 0 ? 1 : num_bytes) == 0 ? found : nullptr;
}

void* required(std::size_t num_bytes, std::size_t alignment) {
  void* const found = allocated(num_bytes, alignment);
  if (found == nullptr) throw std::bad_alloc();
  return found;
}

constexpr std::size_t kAlignment = alignof(std::max_align_t);

std::size_t number(std::align_val_t alignment) { return static_cast<std::size_t>(alignment); }

}  // namespace

void* operator new(std::size_t num_bytes) { return required(num_bytes, kAlignment); }
void* operator new[](std::size_t num_bytes) { return required(num_bytes, kAlignment); }
void* operator new(std::size_t num_bytes, std::align_val_t a) { return required(num_bytes, number(a)); }
void* operator new[](std::size_t num_bytes, std::align_val_t a) { return required(num_bytes, number(a)); }
void* operator new(std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return allocated(num_bytes, kAlignment);
}
void* operator new[](std::size_t num_bytes, const std::nothrow_t&) noexcept {
  return allocated(num_bytes, kAlignment);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
