// Takes memory from the kernel in the background, shortly before it is read into.
#pragma once

#include <cstddef>

#include "moeinf/home_process.h"
#include "moeinf/io/arena.h"

namespace moeinf {

// Two threads, which sleep while nothing is queued, so that whoever queues memory waits for neither. A thread
// started for each part of it would keep the caller for milliseconds: its stack has to be mapped, and the
// lock of the address space is held by those that take pages.
class PageTaker {
 public:
  using Populate = bool (*)(unsigned char*, std::size_t);  // tests put others in its place

  PageTaker(unsigned char* data, std::size_t num_bytes, Populate populate = moeinf::populate);
  ~PageTaker();  // drops what is queued
  PageTaker(const PageTaker&) = delete;
  PageTaker& operator=(const PageTaker&) = delete;

  // Queues the bytes from start to end of the memory. A hint: where the kernel cannot take pages, or has no
  // thread to give, they come with the reads. Throws std::invalid_argument for a range outside the memory.
  // This and drop() throw std::runtime_error in a forked child.
  void take(std::size_t start, std::size_t end);

  // Drops what is queued from there on, and waits until nothing is being taken there.
  void drop(std::size_t from);

 private:
  struct State;

  HomeProcess home_;
  HeldAtHome<State> state_;
};

}  // namespace moeinf
