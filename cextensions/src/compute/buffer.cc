#include "moeinf/compute/buffer.h"

#include <algorithm>
#include <new>

namespace moeinf {
namespace {

constexpr std::align_val_t kAlign{64};
constexpr std::size_t kLarge = std::size_t{1} << 20;  // from here a huge page is not mostly waste

}  // namespace

void Buffer::Free::operator()(void* memory) const { ::operator delete(memory, kAlign); }

void Buffer::grow(std::size_t num_bytes) {
  // By half at least: prompts that grow by a token each must not allocate anew each time.
  const std::size_t wanted = std::max(num_bytes, capacity_ + capacity_ / 2), used = used_;
  release();
  used_ = used;
  if (wanted < kLarge) {
    small_.reset(::operator new(wanted, kAlign));
    data_ = small_.get();
  } else {
    large_ = std::make_unique<Arena>(wanted);
    data_ = large_->data();
  }
  capacity_ = wanted;
}

void Buffer::release() {
  data_ = nullptr;
  capacity_ = used_ = 0;
  small_.reset();
  large_.reset();
}

}  // namespace moeinf
