// The memory that experts are read into: one anonymous mapping, cut into slots by its owner.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/io/mapping.h"

namespace moeinf {

class Arena {
 public:
  // Reserves num_bytes > 0 on a 2 MiB border; pages come from the kernel, zeroed, when they are first
  // written, so memory in use is that of the slots in use. Throws std::invalid_argument for 0 bytes,
  // std::bad_alloc where refused.
  explicit Arena(std::size_t num_bytes);

  unsigned char* data() const { return data_; }
  std::size_t num_bytes() const { return num_bytes_; }

 private:
  Mapping mapping_;
  unsigned char* data_ = nullptr;
  std::size_t num_bytes_ = 0;
};

// Takes the whole pages of a range from the kernel now, as writing them would, and leaves their contents
// alone: reads may be landing in it meanwhile. Where a read is the first to touch memory, its submission
// waits for pages to be zeroed. False where the kernel cannot do this (before Linux 5.14): the pages then
// come as they are touched.
bool populate(unsigned char* data, std::size_t num_bytes);

// Gives the whole pages of a range back to the kernel; what was in them is lost. They come anew, zeroed,
// when they are written again. No read may be under way into the range. False where the kernel refuses.
bool give_back(unsigned char* data, std::size_t num_bytes);

}  // namespace moeinf
