// Every request for memory of every class fails once: nothing ends the process, and the next call is right.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "allocations.h"
#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/loader.h"
#include "moeinf/cache/visit.h"
#include "moeinf/compute/formats/quantise.h"
#include "moeinf/compute/layers/experts.h"
#include "moeinf/io/crc32c.h"
#include "moeinf/io/page_taker.h"
#include "moeinf/io/reader.h"
#include "moeinf/policy/next_use.h"
#include "moeinf/policy/tuned_use.h"
#include "moeinf/sampling/draw.h"

using moeinf::BackendKind;
using moeinf::Keys;

namespace {

constexpr std::int64_t kBlock = 4096, kExpert = 2 * kBlock, kLayers = 3, kExperts = 6,
                       kKeys = kLayers * kExperts;
constexpr auto kLong = std::chrono::milliseconds(60000);

struct Nothing {};
std::unique_ptr<Nothing> nothing() { return std::make_unique<Nothing>(); }

// A file of all experts, one behind the other.
struct ExpertFile {
  ExpertFile() : bytes(kKeys * kExpert) {
    std::mt19937 random(1);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const int fd = ::mkstemp(path);
    CHECK(fd >= 0 && ::write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }
  ~ExpertFile() { ::unlink(path); }

  char path[32] = "./native-test-XXXXXX";
  std::vector<unsigned char> bytes;
};

std::vector<BackendKind> backends() {
  std::vector<BackendKind> kinds{BackendKind::kThreads};
  try {
    moeinf::Reader({}, {}, std::make_shared<moeinf::Arena>(kBlock), {BackendKind::kRing});
    kinds.push_back(BackendKind::kRing);
  } catch (const moeinf::SystemFailure&) {
  }
  return kinds;
}

// A reader of the file that knows the sums of experts, and reads each in two pieces.
struct Reading {
  Reading(const ExpertFile& from, BackendKind kind)
      : file(from), arena(std::make_shared<moeinf::Arena>(kKeys * kExpert)) {
    moeinf::ReaderOptions options;
    options.backend = kind;
    options.queue_depth = 2;
    options.segment_bytes = kBlock;
    reader = std::make_unique<moeinf::Reader>(std::vector<std::string>{file.path},
                                              std::vector<std::int64_t>{kKeys * kExpert}, arena, options);
    for (std::int64_t key = 0; key < kKeys; ++key) {
      const std::int64_t number = 0, offset = key * kExpert;
      const std::uint32_t sum = moeinf::crc32c(file.bytes.data() + offset, kExpert);
      reader->expect({&number, 1}, {&offset, 1}, kExpert, {&sum, 1}, moeinf::Compared::kAlways);
    }
  }

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) {
    std::vector<std::int64_t> files, starts, destinations, sizes;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      for (const std::int64_t piece : {0, 1}) {
        files.push_back(0);
        starts.push_back(keys[i] * kExpert + piece * kBlock);
        destinations.push_back(offsets[i] + piece * kBlock);
        sizes.push_back(kBlock);
      }
    }
    const auto rows = [&](const std::vector<std::int64_t>& column) -> moeinf::RowSpan<const std::int64_t> {
      return {column.data(), static_cast<std::int64_t>(keys.size()), 2};
    };
    reader->submit_pieces(keys, {rows(files), rows(starts), rows(destinations), rows(sizes)}, priorities);
  }
  bool holds(std::int64_t key, std::int64_t offset) const {
    return std::memcmp(arena->data() + offset, file.bytes.data() + key * kExpert, kExpert) == 0;
  }

  const ExpertFile& file;
  std::shared_ptr<moeinf::Arena> arena;
  std::unique_ptr<moeinf::Reader> reader;
};

// What the module for Python has over the read engine.
class ReadsOfEngine final : public moeinf::ExpertReads {
 public:
  explicit ReadsOfEngine(Reading& reading) : reading_(reading) {}

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) override {
    reading_.submit(keys, offsets, priorities);
  }
  void reprioritise(const Keys& keys, const std::vector<double>& priorities) override {
    reading_.reader->reprioritise(keys, priorities);
  }
  Keys cancel(const Keys& keys) override { return reading_.reader->cancel(keys); }
  Keys known(const Keys& keys) override { return reading_.reader->known(keys); }
  Polled poll() override {
    auto polled = reading_.reader->poll();
    return {std::move(polled.done), std::move(polled.failed)};
  }
  Waited wait_any(const Keys& keys) override {
    Waited waited;
    try {
      waited.landed = reading_.reader->wait_any(keys, kLong);
    } catch (const moeinf::ReadFailure& failure) {
      waited.failed = failure.key;
      waited.error = std::current_exception();
    }
    return waited;
  }

 private:
  Reading& reading_;
};

// A cache with slots for half of the experts, over such a reader.
struct Tier {
  Tier(const ExpertFile& file, BackendKind kind)
      : reading(file, kind),
        table(0, {{kExpert}, std::vector<std::uint8_t>(kKeys / 2, 0), {}}, states, offsets),
        cache(table, kLayers, kExperts, [this](std::int64_t) { return scores.data(); }),
        reads(reading),
        loader(cache, reads, 2) {}

  bool visit(std::int64_t layer, const Keys& experts) {
    moeinf::Visit visit(cache, loader, {layer, 1, experts, moeinf::Keys(experts.size(), 1)});
    const std::unique_ptr<moeinf::Visit, void (*)(moeinf::Visit*)> closed(
        &visit, [](moeinf::Visit* each) { each->close(); });
    std::size_t num_seen = 0;
    while (true) {
      const Keys& batch = visit.next_batch();
      for (const std::int64_t key : batch) {
        if (table.state(key) != moeinf::kResident || !reading.holds(key, table.offset(key))) return false;
        ++num_seen;
      }
      if (!batch.empty()) continue;
      if (visit.has_ended()) return num_seen == experts.size() * static_cast<std::size_t>(loader.slices());
      if (const std::exception_ptr failed = visit.wait()) std::rethrow_exception(failed);
    }
  }

  Reading reading;
  std::vector<std::uint8_t> states = std::vector<std::uint8_t>(kKeys, moeinf::kAbsent);
  std::vector<std::int64_t> offsets = std::vector<std::int64_t>(kKeys);
  std::vector<double> scores = std::vector<double>(kKeys, 1);
  moeinf::SlotTable table;
  moeinf::ExpertCache cache;
  ReadsOfEngine reads;
  moeinf::Loader loader;
};

std::vector<unsigned char> q8_0(std::int64_t rows, std::int64_t cols) {
  std::vector<float> values(static_cast<std::size_t>(rows * cols));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i * 7 % 13) - 6;
  std::vector<unsigned char> bytes(static_cast<std::size_t>(rows) * row_bytes(moeinf::Format::kQ8_0, cols));
  moeinf::quantise(moeinf::Format::kQ8_0, reinterpret_cast<const unsigned char*>(values.data()),
                   moeinf::Format::kF32, rows, cols, bytes.data());
  return bytes;
}

}  // namespace

TEST(reads_go_on_after_any_request_for_memory_was_refused) {
  const ExpertFile file;
  for (const BackendKind kind : backends()) {
    const auto ask = [](Reading& reading) {
      Keys left = {0, 1, 7};
      for (Keys known; !(known = reading.reader->known(left)).empty();) {  // of the last try
        try {
          reading.reader->wait_any(known, kLong);
        } catch (const moeinf::ReadFailure&) {
        }
      }
      const double first = std::numeric_limits<double>::infinity();
      reading.submit(left, {0, kExpert, 7 * kExpert}, {0.5, 0.5, 0.5});
      reading.reader->reprioritise({&left[1], 1}, {&first, 1});
      while (!left.empty()) {
        for (const std::int64_t key : reading.reader->wait_any(left, kLong)) {
          if (!reading.holds(key, key * kExpert)) return false;
          left.erase(std::find(left.begin(), left.end(), key));
        }
      }
      return true;
    };
    CHECK(at_every_allocation([&] { return std::make_unique<Reading>(file, kind); }, ask) > 20);
    const auto open = [&](Nothing&) { return ask(*std::make_unique<Reading>(file, kind)); };
    CHECK(at_every_allocation(nothing, open) > 60);
  }
}

TEST(visits_go_on_after_any_request_for_memory_was_refused) {
  const ExpertFile file;
  for (const BackendKind kind : backends()) {
    const auto ask = [](Tier& tier) {
      bool right = true;
      for (int step = 0; step <= kLayers; ++step) {
        const std::int64_t layer = step % kLayers, next = (layer + 1) % kLayers * kExperts;
        right &= tier.visit(layer, {step % 2, 2});
        if (tier.table.state(next + 3) == moeinf::kAbsent) tier.loader.prefetch({next + 3}, {0.5});
        tier.loader.poll();
      }
      return right;
    };
    CHECK(at_every_allocation([&] { return std::make_unique<Tier>(file, kind); }, ask) > 100);
  }
}

TEST(products_go_on_after_their_scratch_memory_was_refused) {
  constexpr std::int64_t kRows = 16, kTokens = 9;  // so many go by tiles
  const std::int64_t most_cols = 2048;
  const std::vector<unsigned char> bytes = q8_0(kRows, most_cols);
  const std::vector<float> x(kTokens * most_cols, 0.25F);
  std::vector<float> y(kTokens * kRows), expected;
  const auto ask = [&](moeinf::Kernels& kernels) {
    for (const std::int64_t cols : {std::int64_t{256}, std::int64_t{768}, most_cols}) {
      std::fill(y.begin(), y.end(), 0.0F);
      kernels.linear({bytes.data(), moeinf::Format::kQ8_0, kRows, cols, 1}, {x.data(), kTokens, cols},
                     y.data());
    }
    if (expected.empty()) expected = y;
    return y == expected;
  };
  const auto make = [] { return std::make_unique<moeinf::Kernels>(3, ""); };
  CHECK(ask(*make()));
  CHECK(at_every_allocation(make, ask) > 5);
  CHECK(at_every_allocation(nothing, [&](Nothing&) { return ask(*make()); }) > 8);
}

TEST(experts_go_on_after_any_request_for_memory_was_refused) {
  constexpr std::int64_t kHidden = 64, kRows = 96, kTokens = 20, kTopK = 2;
  const std::vector<unsigned char> up = q8_0(kRows, kHidden), down = q8_0(kHidden, kRows);
  std::vector<unsigned char> memory = up;
  memory.insert(memory.end(), down.begin(), down.end());
  const moeinf::ExpertParts parts{std::nullopt,
                                  {moeinf::Format::kQ8_0, kRows, kHidden, 0},
                                  {moeinf::Format::kQ8_0, kHidden, kRows, up.size()},
                                  {},
                                  {},
                                  {}};
  const std::vector<float> hidden(kTokens * kHidden, 0.5F), weights(kTokens * kTopK, 0.5F);
  std::vector<std::int64_t> ids;
  for (std::int64_t token = 0; token < kTokens; ++token)
    for (const std::int64_t id : {token % 5, 5 + token % 3}) ids.push_back(id);
  std::vector<float> expected;
  struct Subject {
    moeinf::Kernels kernels{2, ""};
    std::unique_ptr<moeinf::ExpertKernel> experts;
  };
  const auto make = [&] {
    auto made = std::make_unique<Subject>();
    made->experts = std::make_unique<moeinf::ExpertKernel>(made->kernels, memory.data(), memory.size(),
                                                           std::vector<moeinf::ExpertParts>{parts});
    return made;
  };
  std::vector<float> out(kTokens * kHidden);
  const auto ask = [&](Subject& subject) {
    std::fill(out.begin(), out.end(), 0.0F);
    moeinf::ExpertKernel& experts = *subject.experts;
    experts.begin({hidden.data(), kTokens, kHidden}, {ids.data(), kTokens, kTopK}, weights.data());
    for (const std::int64_t expert : experts.experts()) {
      const std::int64_t offset = 0;
      try {
        experts.compute({&expert, 1}, {&offset, 1});
      } catch (...) {
        const FailingAllocation none(std::numeric_limits<int>::max(), Refused::kOnce);
        CHECK(throws<std::invalid_argument>([&] { experts.finish(out.data()); }));
        throw;
      }
    }
    experts.finish(out.data());
    if (expected.empty()) expected = out;
    return out == expected;
  };
  CHECK(ask(*make()));
  CHECK(at_every_allocation(make, ask) > 10);
}

TEST(frames_have_what_they_were_given_and_count_no_more) {
  const auto ask = [](moeinf::Workspace& workspace) {
    moeinf::Workspace::Frame below(workspace);
    auto* const first = below.take<int>(100);
    first[99] = 1;
    moeinf::Workspace::Frame above(workspace);
    for (const std::int64_t count : {1000, 3000, 400000}) {
      const std::size_t before = above.num_bytes();
      try {
        above.take<int>(count)[count - 1] = 2;
      } catch (const std::bad_alloc&) {
        if (above.num_bytes() != before) return false;
        throw;
      }
    }
    return first[99] == 1;
  };
  CHECK(at_every_allocation([] { return std::make_unique<moeinf::Workspace>(); }, ask) > 3);
  moeinf::Workspace workspace;
  moeinf::Workspace::Frame frame(workspace);
  CHECK(throws<std::bad_alloc>([&] { frame.take<int>(-1); }) && frame.num_bytes() == 0);
}

TEST(a_draw_goes_on_after_its_memory_was_refused) {
  const std::vector<float> scores(3000, 0.5F);
  const auto ask = [&scores](Nothing&) {
    std::int64_t drawn = -1;
    std::exception_ptr failed;
    std::thread([&] {  // memory for a draw is kept for each thread
      try {
        drawn = draw_token(moeinf::ops_for(""), scores, {1, 0.5F, 0, 0.25});
      } catch (...) {
        failed = std::current_exception();
      }
    })
        .join();
    if (failed) std::rethrow_exception(failed);
    return drawn > 0 && drawn < 3000;
  };
  CHECK(at_every_allocation(nothing, ask) > 3);
}

TEST(policies_take_their_memory_when_they_are_made) {
  const std::int64_t layers = 2, experts = 8, top_k = 2, width = 3;
  const auto make = [&] {
    const auto zeros = [](std::int64_t count) { return std::vector<float>(static_cast<std::size_t>(count)); };
    return std::make_unique<moeinf::TunedUse>(
        layers, experts, top_k,
        moeinf::TunedWeights{width, zeros(layers * experts * width), zeros(layers * experts * width),
                             zeros(4 * width * width), zeros(layers * width), zeros(width * width),
                             zeros(layers * width * 2 * experts), zeros(layers * 2 * experts),
                             zeros(layers * moeinf::UseEvidence::kRows * 2)});
  };
  const auto ask = [&](moeinf::TunedUse& use) {
    moeinf::NextUseScores scores(use.no_use(), use.wait(), layers, experts, 0, 1);
    const std::int64_t ids[] = {0, 1, 2, 3, 4, 5};
    for (int token = 0; token < 9; ++token)
      for (std::int64_t layer = 0; layer < layers; ++layer)
        use.observe(layer, ids + token % 3, token % 4 ? 1 : 2);
    use.restart();
    return scores.keep_scores(0)[0] <= 0;
  };
  CHECK(at_every_allocation(make, ask) == 1);  // of the scores alone
  CHECK(at_every_allocation(nothing, [&](Nothing&) { return ask(*make()); }) > 40);
}

TEST(pages_are_taken_or_come_with_the_reads_where_memory_is_refused) {
  const auto ask = [](moeinf::Arena& arena) {
    moeinf::PageTaker taker(arena.data(), arena.num_bytes());
    taker.take(0, arena.num_bytes());
    taker.drop(0);
    return true;
  };
  CHECK(at_every_allocation([] { return std::make_unique<moeinf::Arena>(5 << 20); }, ask) > 2);
}

TEST(a_pool_is_made_or_refused_where_memory_is) {
  const auto ask = [](Nothing&) {
    moeinf::Pool pool(4);
    std::atomic<int> sum{0};
    pool.run(9, [&sum](std::int64_t index, int) { sum += static_cast<int>(index); });
    return sum == 36;
  };
  CHECK(at_every_allocation(nothing, ask) > 4);
}
