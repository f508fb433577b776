#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "moeinf/compute/kernels.h"
#include "moeinf/io/arena.h"

namespace moeinf {
namespace {

constexpr std::size_t kTaskBytes = std::size_t{1} << 20;
constexpr std::size_t kCachedBytes = std::size_t{2} << 20;  // of a cached matrix, over and over
// Enough that additions wait for memory, never for each other, and few enough to stay in any CPU's registers.
constexpr std::size_t kAccumulators = 16;
constexpr std::size_t kLineWords = 8;
constexpr std::size_t kAheadWords = 512;  // 4 KiB: hardware alone asks for less than there is room for

// Words of all bits set would overflow an int64 but not these; num_words is a multiple of kAccumulators. What
// is asked for beyond the last word is not read, and need not be there.
std::uint64_t sum(const std::uint64_t* words, std::size_t num_words) {
  std::uint64_t sums[kAccumulators] = {};
  for (std::size_t i = 0; i < num_words; i += kAccumulators) {
    for (std::size_t line = 0; line < kAccumulators; line += kLineWords)
      __builtin_prefetch(words + i + kAheadWords + line);
    for (std::size_t lane = 0; lane < kAccumulators; ++lane) sums[lane] += words[i + lane];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t lane : sums) total += lane;
  return total;
}

template <typename Call>
double seconds_of(const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Memory in whole tasks, which all threads write once and read as often as they are asked.
class FilledMemory {
 public:
  explicit FilledMemory(std::size_t num_bytes)
      : num_tasks_(num_bytes / kTaskBytes), arena_(num_tasks_ * kTaskBytes) {}

  const unsigned char* data() const { return arena_.data(); }
  std::size_t num_bytes() const { return arena_.num_bytes(); }

  // With `pattern`, again and again. Written it must be, or all pages would be one page of zeros.
  void fill(Pool& pool, const unsigned char* pattern, std::size_t pattern_bytes) {
    pool.run(static_cast<std::int64_t>(num_tasks_), [&](std::int64_t task, int) {
      std::size_t at = static_cast<std::size_t>(task) * kTaskBytes;
      const std::size_t end = at + kTaskBytes;
      while (at < end) {
        const std::size_t begin = at % pattern_bytes, count = std::min(pattern_bytes - begin, end - at);
        std::memcpy(arena_.data() + at, pattern + begin, count);
        at += count;
      }
    });
  }

  double read_rate(Pool& pool) {
    std::atomic<std::uint64_t> total{0};  // used, or the compiler would leave the reading out
    return static_cast<double>(num_bytes()) / seconds_of([&] {
             pool.run(static_cast<std::int64_t>(num_tasks_), [&](std::int64_t task, int) {
               const unsigned char* begin = data() + static_cast<std::size_t>(task) * kTaskBytes;
               total +=
                   sum(reinterpret_cast<const std::uint64_t*>(begin), kTaskBytes / sizeof(std::uint64_t));
             });
           });
  }

 private:
  std::size_t num_tasks_;
  Arena arena_;
};

// Ordinary numbers of both signs; what they are makes no difference.
std::vector<float> activations(std::int64_t count) {
  std::vector<float> x(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 2.5F;
  return x;
}

void require_activations(std::int64_t num_x, int repeats) {
  if (num_x < 1 || num_x > kMaxDotRows || repeats < 1)
    throw std::invalid_argument("a product's rate needs 1 to 8 activations and at least 1 repeat");
}

}  // namespace

double memory_read_rate(Pool& pool, std::size_t num_bytes, int repeats) {
  if (num_bytes < kTaskBytes || repeats < 1)
    throw std::invalid_argument("a read rate needs at least 1 MiB and 1 repeat");
  FilledMemory filled(num_bytes);
  const std::vector<unsigned char> pattern(kTaskBytes, 1);  // a byte at a time would take seconds
  filled.fill(pool, pattern.data(), pattern.size());
  double best = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) best = std::max(best, filled.read_rate(pool));
  return best;
}

std::vector<ReadRates> product_read_rates(Kernels& kernels, const Matrix& w, std::int64_t num_x,
                                          std::size_t num_bytes, int repeats) {
  require_activations(num_x, repeats);
  const std::size_t matrix_bytes = static_cast<std::size_t>(w.rows) * row_bytes(w.format, w.cols);
  if (num_bytes < kTaskBytes || num_bytes / kTaskBytes * kTaskBytes < matrix_bytes)
    throw std::invalid_argument("a product's rate needs at least 1 MiB, and room for the matrix");
  FilledMemory filled(num_bytes);
  filled.fill(kernels.pool(), w.data, matrix_bytes);
  const std::vector<float> x = activations(num_x * w.cols);
  std::vector<float> y(static_cast<std::size_t>(num_x * w.rows));
  const std::size_t num_matrices = filled.num_bytes() / matrix_bytes;
  std::vector<ReadRates> found;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double plain = filled.read_rate(kernels.pool());
    const double seconds = seconds_of([&] {
      for (std::size_t i = 0; i < num_matrices; ++i) {
        const Matrix copy = {filled.data() + i * matrix_bytes, w.format, w.rows, w.cols, w.scale};
        kernels.linear(copy, {x.data(), num_x, copy.cols}, y.data());
      }
    });
    found.push_back({plain, static_cast<double>(num_matrices * matrix_bytes) / seconds});
  }
  return found;
}

std::vector<double> cached_product_rates(Kernels& kernels, const Matrix& w, std::int64_t num_x, int repeats) {
  require_activations(num_x, repeats);
  const std::size_t matrix_bytes = static_cast<std::size_t>(w.rows) * row_bytes(w.format, w.cols);
  const std::size_t stride = (matrix_bytes + kTaskBytes - 1) / kTaskBytes * kTaskBytes;
  const auto num_threads = static_cast<std::size_t>(kernels.pool().num_threads());
  const std::size_t times = std::max(kCachedBytes / matrix_bytes, std::size_t{1});
  const Arena arena(stride * num_threads);
  const std::vector<float> x = activations(num_x * w.cols);
  Workspace::Frame memory(kernels.workspace());
  const ActivationKind kind = kernels.activation_of(w.format, num_x);
  void* prepared = memory.take_bytes(static_cast<std::size_t>(num_x) * activation_bytes(kind, w.cols));
  kernels.prepare(kind, {x.data(), num_x, w.cols}, prepared);
  if (kernels.by_tiles(num_x)) kernels.reserve_thread_scratch(w.cols);
  std::vector<std::vector<float>> ys(num_threads,
                                     std::vector<float>(static_cast<std::size_t>(num_x * w.rows)));
  const auto run = [&](std::size_t count) {
    kernels.pool().run(static_cast<std::int64_t>(num_threads), [&](std::int64_t task, int thread) {
      const auto place = static_cast<std::size_t>(task);
      unsigned char* data = arena.data() + place * stride;
      if (count == 0) std::memcpy(data, w.data, matrix_bytes);
      const Matrix copy = {data, w.format, w.rows, w.cols, w.scale};
      for (std::size_t i = 0; i < count; ++i)
        kernels.multiply(copy, 0, w.rows, kind, prepared, num_x, thread, ys[place].data(), w.rows);
    });
  };
  run(0);
  std::vector<double> found;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double seconds = seconds_of([&] { run(times); });
    found.push_back(static_cast<double>(num_threads * times * matrix_bytes) / seconds);
  }
  return found;
}

}  // namespace moeinf
