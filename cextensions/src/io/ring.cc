#include "ring.h"

#ifdef MOEINF_HAS_IO_URING
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "moeinf/errors.h"

namespace moeinf {
namespace {

[[noreturn]] void refuse(const char* call, int error) {
  throw SystemFailure(error, std::string("io_uring refused (") + call + ": " + std::strerror(error) + ")");
}

Mapping map(int fd, std::size_t num_bytes, off_t offset) {
  void* address = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, offset);
  if (address == MAP_FAILED) refuse("mmap", errno);
  return Mapping(address, num_bytes);
}

void require_plain_read(int fd) {
  constexpr unsigned kNumOps = IORING_OP_READ + 1;
  std::vector<std::uint64_t> room((sizeof(io_uring_probe) + kNumOps * sizeof(io_uring_probe_op)) / 8 + 1);
  auto* probe = reinterpret_cast<io_uring_probe*>(room.data());
  if (::syscall(__NR_io_uring_register, fd, IORING_REGISTER_PROBE, probe, kNumOps) < 0)
    refuse("probe", errno);
  if (probe->last_op < IORING_OP_READ || (probe->ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) == 0) {
    refuse("read", EOPNOTSUPP);
  }
}

unsigned* at(const Mapping& mapping, std::uint32_t offset) {
  return reinterpret_cast<unsigned*>(mapping.data() + offset);
}

}  // namespace

Ring::Ring(unsigned num_entries) {
  io_uring_params params{};
  descriptor_ = Descriptor(static_cast<int>(::syscall(__NR_io_uring_setup, num_entries, &params)));
  if (!descriptor_.is_open()) refuse("io_uring_setup", errno);
  require_plain_read(descriptor_.get());

  const std::size_t submission_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
  const std::size_t completion_bytes = params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe);
  const bool single = (params.features & IORING_FEAT_SINGLE_MMAP) != 0;
  rings_ = map(descriptor_.get(), single ? std::max(submission_bytes, completion_bytes) : submission_bytes,
               IORING_OFF_SQ_RING);
  if (!single) completion_ring_ = map(descriptor_.get(), completion_bytes, IORING_OFF_CQ_RING);
  const Mapping& completion = single ? rings_ : completion_ring_;
  entries_ = map(descriptor_.get(), params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);

  submission_tail_ = at(rings_, params.sq_off.tail);
  submission_array_ = at(rings_, params.sq_off.array);
  submission_mask_ = *at(rings_, params.sq_off.ring_mask);
  completion_head_ = at(completion, params.cq_off.head);
  completion_tail_ = at(completion, params.cq_off.tail);
  completion_mask_ = *at(completion, params.cq_off.ring_mask);
  completions_ = reinterpret_cast<io_uring_cqe*>(completion.data() + params.cq_off.cqes);
  // Filters exist that allow the set-up and refuse this.
  if (::syscall(__NR_io_uring_enter, descriptor_.get(), 0u, 0u, 0u, nullptr, std::size_t{0}) < 0) {
    refuse("io_uring_enter", errno);
  }
}

void Ring::queue_read(int fd, void* destination, std::uint32_t num_bytes, std::uint64_t offset,
                      std::uint64_t id) {
  const unsigned tail = *submission_tail_;  // written by this thread only
  const unsigned index = tail & submission_mask_;
  io_uring_sqe& entry = reinterpret_cast<io_uring_sqe*>(entries_.data())[index];
  std::memset(&entry, 0, sizeof(entry));
  entry.opcode = IORING_OP_READ;
  entry.fd = fd;
  entry.addr = reinterpret_cast<std::uint64_t>(destination);
  entry.len = num_bytes;
  entry.off = offset;
  entry.user_data = id;
  submission_array_[index] = index;
  // Released, so that the kernel sees the entry before the tail.
  __atomic_store_n(submission_tail_, tail + 1, __ATOMIC_RELEASE);
  ++num_queued_;
}

int Ring::enter() {
  const long submitted = ::syscall(__NR_io_uring_enter, descriptor_.get(), num_queued_, 1u,
                                   IORING_ENTER_GETEVENTS, nullptr, std::size_t{0});
  if (submitted < 0) return errno;
  num_queued_ -= static_cast<unsigned>(submitted);
  return 0;
}

bool Ring::take_back(std::uint64_t* id) {
  if (num_queued_ == 0) return false;
  --num_queued_;
  const unsigned tail = *submission_tail_ - 1;
  *id = reinterpret_cast<io_uring_sqe*>(entries_.data())[tail & submission_mask_].user_data;
  __atomic_store_n(submission_tail_, tail, __ATOMIC_RELEASE);
  return true;
}

bool Ring::take(Completion* completion) {
  const unsigned head = *completion_head_;  // written by this thread only
  if (head == __atomic_load_n(completion_tail_, __ATOMIC_ACQUIRE)) return false;
  const io_uring_cqe& entry = completions_[head & completion_mask_];
  *completion = {entry.user_data, entry.res};
  __atomic_store_n(completion_head_, head + 1, __ATOMIC_RELEASE);  // the kernel may use the place again
  return true;
}

}  // namespace moeinf
#endif
