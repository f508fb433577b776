#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "moeinf/compute/kernels.h"
#include "moeinf/io/arena.h"

namespace moeinf {
namespace {

constexpr std::size_t kTaskBytes = std::size_t{1} << 20;
// Enough that additions wait for memory, never for each other, however wide they are.
constexpr int kAccumulators = 32;

// Words of all bits set would overflow an int64 but not these; num_words is a multiple of kAccumulators.
std::uint64_t sum(const std::uint64_t* words, std::size_t num_words) {
  std::uint64_t sums[kAccumulators] = {};
  for (std::size_t i = 0; i < num_words; i += kAccumulators) {
    for (int lane = 0; lane < kAccumulators; ++lane) sums[lane] += words[i + static_cast<std::size_t>(lane)];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t lane : sums) total += lane;
  return total;
}

}  // namespace

double memory_read_rate(Pool& pool, std::size_t num_bytes, int repeats) {
  if (num_bytes < kTaskBytes || repeats < 1) {
    throw std::invalid_argument("a read rate needs at least 1 MiB and 1 repeat");
  }
  const std::size_t num_tasks = num_bytes / kTaskBytes;
  const Arena arena(num_tasks * kTaskBytes);
  const auto whole = static_cast<std::int64_t>(num_tasks);
  pool.run(whole, [&](std::int64_t task, int) {  // written, or all pages would be one page of zeros
    std::memset(arena.data() + static_cast<std::size_t>(task) * kTaskBytes, 1, kTaskBytes);
  });
  std::atomic<std::uint64_t> total{0};  // used, or the compiler would leave the reading out
  double best_s = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(whole, [&](std::int64_t task, int) {
      const unsigned char* begin = arena.data() + static_cast<std::size_t>(task) * kTaskBytes;
      total += sum(reinterpret_cast<const std::uint64_t*>(begin), kTaskBytes / sizeof(std::uint64_t));
    });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best_s = repeat == 0 ? elapsed.count() : std::min(best_s, elapsed.count());
  }
  return static_cast<double>(num_tasks * kTaskBytes) / best_s;
}

}  // namespace moeinf
