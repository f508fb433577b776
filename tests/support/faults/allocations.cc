// Preloaded into Python: the n-th memory that one shared object asks for is refused, as if there were no
// more.
//
// Calls of the object's own code count, by the address they return to; those of other libraries, and of other
// threads than the one that has armed it, go through.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::uintptr_t begin = 0, end = 0;                                       // of the object's code
thread_local long left __attribute__((tls_model("initial-exec"))) = 0;   // until the one that is refused
thread_local long asked __attribute__((tls_model("initial-exec"))) = 0;  // since it was armed

bool refuses(const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  if (at < begin || at >= end) return false;
  ++asked;
  return left > 0 && --left == 0;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

void* allocated(std::size_t num_bytes) {
  static auto* const real = next<void*(std::size_t)>("malloc");
  if (void* found = real(num_bytes == 0 ? 1 : num_bytes)) return found;
  throw std::bad_alloc();
}

void* aligned(std::size_t num_bytes, std::align_val_t align) {
  static auto* const real = next<int(void**, std::size_t, std::size_t)>("posix_memalign");
  void* found = nullptr;
  if (real(&found, static_cast<std::size_t>(align), num_bytes) != 0) throw std::bad_alloc();
  return found;
}

}  // namespace

extern "C" {

// From now on the number-th allocation of this thread is refused; 0: none. start, stop: of the object's code.
void arm_allocations(std::uintptr_t start, std::uintptr_t stop, long number) {
  begin = start;
  end = stop;
  asked = 0;
  left = number;
}

// Returns how many were asked for since then.
long asked_allocations() { return asked; }

void* malloc(std::size_t num_bytes) {
  static auto* const real = next<void*(std::size_t)>("malloc");
  if (!refuses(__builtin_return_address(0))) return real(num_bytes);
  errno = ENOMEM;
  return nullptr;
}

int posix_memalign(void** found, std::size_t align, std::size_t num_bytes) {
  static auto* const real = next<int(void**, std::size_t, std::size_t)>("posix_memalign");
  return refuses(__builtin_return_address(0)) ? ENOMEM : real(found, align, num_bytes);
}

void* mmap(void* address, std::size_t num_bytes, int protection, int flags, int fd, off_t offset) {
  static auto* const real = next<void*(void*, std::size_t, int, int, int, off_t)>("mmap");
  if (!refuses(__builtin_return_address(0))) return real(address, num_bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}

}  // extern "C"

void* operator new(std::size_t num_bytes) {
  if (refuses(__builtin_return_address(0))) throw std::bad_alloc();
  return allocated(num_bytes);
}
void* operator new[](std::size_t num_bytes) {
  if (refuses(__builtin_return_address(0))) throw std::bad_alloc();
  return allocated(num_bytes);
}
void* operator new(std::size_t num_bytes, std::align_val_t align) {
  if (refuses(__builtin_return_address(0))) throw std::bad_alloc();
  return aligned(num_bytes, align);
}
void* operator new[](std::size_t num_bytes, std::align_val_t align) {
  if (refuses(__builtin_return_address(0))) throw std::bad_alloc();
  return aligned(num_bytes, align);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
