#include "moeinf/home_process.h"

#include <pthread.h>

#include <atomic>
#include <stdexcept>

namespace moeinf {
namespace {

// Between the first process and this one. Asked at every call of a pool, where getpid would be a system call.
std::atomic<int> num_forks{0};

const int registered = ::pthread_atfork(nullptr, nullptr, [] { num_forks.fetch_add(1); });

}  // namespace

HomeProcess::HomeProcess() : num_forks_(num_forks.load(std::memory_order_relaxed)) { (void)registered; }

bool HomeProcess::is_here() const { return num_forks.load(std::memory_order_relaxed) == num_forks_; }

void HomeProcess::require() const {
  if (is_here()) return;
  throw std::runtime_error(
      "this process was forked from the one that opened the model, and has none of its threads: open the "
      "model anew "
      "in this process");
}

}  // namespace moeinf
