// The pool: every index once, exceptions, sleeping workers, and ends that must not hang.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.h"
#include "compute/cores.h"
#include "moeinf/compute/pool.h"

using moeinf::Pool;

namespace {

// How often each index was called; checks that threads are numbered as promised.
std::vector<int> calls(Pool& pool, std::int64_t num_tasks) {
  std::vector<std::atomic<int>> counts(static_cast<std::size_t>(num_tasks));
  std::atomic<bool> numbered{true};
  pool.run(num_tasks, [&](std::int64_t index, int thread) {
    ++counts[static_cast<std::size_t>(index)];
    if (thread < 0 || thread >= pool.num_threads()) numbered = false;
  });
  CHECK(numbered);
  return {counts.begin(), counts.end()};
}

bool all_once(const std::vector<int>& counts) {
  for (const int count : counts) {
    if (count != 1) return false;
  }
  return true;
}

}  // namespace

TEST(each_index_is_called_once_for_every_number_of_threads_and_tasks) {
  for (const int num_threads : {1, 2, 3, 7}) {
    Pool pool(num_threads);
    CHECK(pool.num_threads() == num_threads);
    for (std::int64_t num_tasks = 0; num_tasks < 40; ++num_tasks) CHECK(all_once(calls(pool, num_tasks)));
  }
}

TEST(what_tasks_wrote_is_seen_by_the_caller_and_by_the_next_call) {
  Pool pool(3);
  std::vector<std::int64_t> values(64, 0);
  for (int round = 0; round < 5000; ++round) {
    pool.run(64, [&](std::int64_t index, int) { values[63 - static_cast<std::size_t>(index)] += index; });
    pool.run(64, [&](std::int64_t index, int) { values[static_cast<std::size_t>(index)] -= 63 - index; });
  }
  for (const std::int64_t value : values) CHECK(value == 0);
}

TEST(workers_that_went_to_sleep_are_woken_by_the_next_call) {
  Pool pool(2);
  for (int round = 0; round < 3; ++round) {
    std::atomic<int> num_inside{0};
    // Each of the two waits for the other, so the caller alone cannot do both: the worker has to come, asleep
    // or not.
    pool.run(2, [&](std::int64_t, int) {
      ++num_inside;
      while (num_inside < 2) std::this_thread::yield();
    });
    // Longer than a worker spins.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
  }
}

TEST(the_first_exception_reaches_the_caller_and_the_pool_goes_on) {
  for (const int num_threads : {1, 2, 4}) {
    Pool pool(num_threads);
    for (int round = 0; round < 200; ++round) {
      std::atomic<int> num_run{0};
      const auto task = [&](std::int64_t index, int) {
        ++num_run;
        if (index % 5 == 3) throw std::runtime_error("task");
      };
      CHECK(throws<std::runtime_error>([&] { pool.run(100, task); }));
      CHECK(num_run >= 1 && num_run < 100);
      CHECK(all_once(calls(pool, 10)));
    }
  }
}

TEST(a_slow_task_of_a_worker_is_waited_for) {
  Pool pool(2);
  std::atomic<bool> is_done{false};
  std::atomic<bool> is_begun{false};
  pool.run(2, [&](std::int64_t, int thread) {
    if (thread == 0) {
      while (!is_begun) std::this_thread::yield();  // leaves the other index to the worker
      return;
    }
    is_begun = true;
    // Longer than the caller spins.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
    while (std::chrono::steady_clock::now() < end) std::this_thread::yield();
    is_done = true;
  });
  CHECK(is_done);
}

TEST(pools_come_and_go_without_a_call) {
  for (int round = 0; round < 50; ++round) Pool pool(1 + round % 4);
  CHECK(throws<std::invalid_argument>([] { Pool pool(0); }));
}

TEST(cores_are_bound_only_by_a_pool_that_uses_them_all) {
  const std::vector<int> physical = {2, 4, 6, 0};
  CHECK(moeinf::cores_to_bind(3, physical).empty());
  CHECK(moeinf::cores_to_bind(4, physical) == physical);
  CHECK(moeinf::cores_to_bind(5, physical) == physical);
  CHECK(moeinf::cores_to_bind(4, {}).empty());
}

TEST(workers_leave_signals_to_the_caller_but_those_of_their_own_faults) {
  Pool pool(4);
  std::atomic<int> num_wrong{0};
  pool.run(64, [&](std::int64_t, int thread) {
    if (thread == 0) return;
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (const int outside : {SIGINT, SIGTERM, SIGALRM}) num_wrong += sigismember(&blocked, outside) != 1;
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) num_wrong += sigismember(&blocked, fault) != 0;
  });
  CHECK(num_wrong == 0);
}
