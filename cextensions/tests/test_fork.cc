// What has threads or a device, in a forked child: it is refused there and let go of, and neither hangs.
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "forks.h"
#include "moeinf/compute/pool.h"
#include "moeinf/io/page_taker.h"
#include "moeinf/io/reader.h"

using moeinf::BackendKind;
using moeinf::PageTaker;
using moeinf::Pool;
using moeinf::Reader;

namespace {

constexpr std::int64_t kBlock = 4096;

std::atomic<bool> held{false};

// Takes as long as the test wants.
ssize_t slow_pread(int, void*, std::size_t num_bytes, off_t) {
  while (held) std::this_thread::yield();
  return static_cast<ssize_t>(num_bytes);
}

bool slow_populate(unsigned char*, std::size_t) {
  while (held) std::this_thread::yield();
  return true;
}

}  // namespace

TEST(a_pool_is_refused_and_let_go_of_in_a_forked_child) {
  auto pool = std::make_unique<Pool>(3);
  std::atomic<int> sum{0};
  const auto run = [&] { pool->run(4, [&sum](std::int64_t index, int) { sum += static_cast<int>(index); }); };
  run();
  CHECK(holds_in_child([&] {
    const bool was_refused = refused_after_fork(run);
    pool.reset();
    return was_refused;
  }));
  run();
  CHECK(sum == 12);
  CHECK(throws<std::logic_error>([&] { pool->run(4, [&](std::int64_t, int) { run(); }); }));
  run();
  CHECK(sum == 18);
}

TEST(a_reader_is_refused_and_let_go_of_in_a_forked_child) {
  char path[] = "./native-test-XXXXXX";
  const int fd = ::mkstemp(path);
  CHECK(fd >= 0 && ::ftruncate(fd, 16 * kBlock) == 0);
  for (const BackendKind kind :
       {BackendKind::kThreads, BackendKind::kAuto}) {  // io_uring, where there is one
    moeinf::ReaderOptions options;
    options.backend = kind;
    options.access = moeinf::Access::kCached;
    if (kind == BackendKind::kThreads) options.pread = slow_pread;
    held = true;
    auto reader =
        std::make_unique<Reader>(std::vector<std::string>{path}, std::vector<std::int64_t>{16 * kBlock},
                                 std::make_shared<moeinf::Arena>(16 * kBlock), options);
    const std::int64_t key = 7, none = 0;
    const double priority = std::numeric_limits<double>::infinity();
    const auto submit = [&] {
      reader->submit({&key, 1}, {&none, 1}, {&none, 1}, {&none, 1}, 16 * kBlock, {&priority, 1});
    };
    const auto wait = [&] { return reader->wait_any({&key, 1}, std::chrono::milliseconds(60000)); };
    submit();
    CHECK(holds_in_child([&] {
      const bool was_refused = refused_after_fork(submit) && refused_after_fork(wait) &&
                               refused_after_fork([&] { reader->poll(); }) &&
                               refused_after_fork([&] { reader->cancel({&key, 1}); }) &&
                               refused_after_fork([&] { reader->reprioritise({&key, 1}, {&priority, 1}); }) &&
                               refused_after_fork([&] { reader->known({&key, 1}); }) &&
                               refused_after_fork([&] { reader->path_of(key); }) &&
                               refused_after_fork([&] { reader->bytes_read(); }) &&
                               refused_after_fork([&] { reader->busy_seconds(); }) &&
                               refused_after_fork([&] { reader->notice(); });
      reader->close();
      reader.reset();
      return was_refused;
    }));
    held = false;
    CHECK(wait().size() == 1);
    reader->close();
  }
  ::close(fd);
  ::unlink(path);
}

TEST(a_page_taker_is_refused_and_let_go_of_in_a_forked_child) {
  held = true;
  moeinf::Arena arena(std::size_t{8} << 20);
  auto taker = std::make_unique<PageTaker>(arena.data(), arena.num_bytes(), slow_populate);
  taker->take(0, arena.num_bytes());
  CHECK(holds_in_child([&] {
    const bool was_refused =
        refused_after_fork([&] { taker->take(0, 1); }) && refused_after_fork([&] { taker->drop(0); });
    taker.reset();
    return was_refused;
  }));
  held = false;
  taker->drop(0);
}
