// Scratch memory of the operations that are under way, as a stack. An operation opens a frame and takes from
// it what it needs; operations that it calls open their frames above. So no two of them meet in the same
// memory, and what one has left serves the next. Used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "moeinf/compute/buffer.h"

namespace moeinf {

class Workspace {
 public:
  class Frame {
   public:
    explicit Frame(Workspace& workspace);
    Frame() = default;  // only counts: what is taken from it has no address
    ~Frame();
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;

    // `count` elements on a 64-byte border, not initialised. Theirs until the frame ends.
    template <typename T>
    T* take(std::int64_t count) {
      return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
    }
    void* take_bytes(std::size_t num_bytes);
    std::size_t num_bytes() const { return num_bytes_; }  // that were taken, each piece rounded up to 64

   private:
    Workspace* workspace_ = nullptr;
    std::size_t block_ = 0, offset_ = 0;  // where the stack ended when the frame began
    std::size_t num_bytes_ = 0;
  };

  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // Gives all memory back to the machine. Throws std::logic_error while a frame has some of it.
  void release();
  std::size_t used_bytes() const;  // of all blocks, as far as frames have reached

 private:
  void* take(std::size_t num_bytes);
  void join_blocks();

  // Growing must not move what was taken: what does not fit goes into a further block. When the stack is
  // empty the blocks become one, so that a step that was done before allocates nothing.
  std::vector<Buffer> blocks_;
  std::size_t block_ = 0, offset_ = 0;  // the end of the stack
  std::size_t live_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace moeinf
