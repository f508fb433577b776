// A pool of threads that outlive the calls: the caller is one of them.
#pragma once

#include <cstdint>

#include "moeinf/home_process.h"

namespace moeinf {

class Pool {
 public:
  // num_threads >= 1 counts the caller. Where they are as many as the physical cores of this process's
  // affinity mask, or more, the others are bound to a core each; the caller is left where it is, as threads
  // that it starts later would inherit its mask. Throws std::invalid_argument for less than 1, SystemFailure
  // where a thread is refused.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int num_threads() const;

  // Calls task(index, thread) once for each index in [0, num_tasks), 0 <= thread < num_threads(); returns
  // when all are done. Each thread begins with a run of neighbouring indices and then takes from the others
  // what they have not begun. An idle worker spins some 100 us for the next call, then sleeps. The first
  // exception of a task reaches the caller; tasks not begun by then are skipped. Throws std::logic_error from
  // inside a task and, as far as it is seen, beside another caller, std::runtime_error in a forked child.
  template <typename Task>
  void run(std::int64_t num_tasks, const Task& task) {
    run_erased(
        num_tasks,
        [](const void* erased, std::int64_t index, int thread) {
          (*static_cast<const Task*>(erased))(index, thread);
        },
        &task);
  }

 private:
  using Function = void (*)(const void* task, std::int64_t index, int thread);
  struct State;

  void run_erased(std::int64_t num_tasks, Function function, const void* task);

  HeldAtHome<State> state_;
};

}  // namespace moeinf
