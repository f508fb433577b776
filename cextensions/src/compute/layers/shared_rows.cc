#include "moeinf/compute/layers/shared_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "attend_few.h"

namespace moeinf {
namespace {

constexpr std::int64_t kRowsAtOnce = 1024;  // of several tokens, so that they stay in a core's cache
constexpr std::int64_t kRowsOfTask = 64;    // that one task copies

std::int64_t num_rows(const SeenRows& seen) { return seen.rows + seen.others; }

// How many of the tokens go through together.
std::int64_t tokens_at_once(Span<const SeenRows> seen) {
  std::int64_t count = 0, rows = 0;
  for (const SeenRows& each : seen) {
    rows += num_rows(each);
    if (count == kFewAttending || (count > 0 && rows > kRowsAtOnce)) break;
    ++count;
  }
  return count;
}

void copy_rows(const SeenRows& seen, const float* window, RowSpan<const float> others, std::int64_t width,
               std::int64_t first, std::int64_t last, float* to) {
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t behind = i - seen.rows;
    const float* const row =
        behind < 0 ? window + (seen.first + i) * width
                   : others.data + (seen.picked == nullptr ? behind : seen.picked[behind]) * others.cols;
    std::memcpy(to + i * width, row, static_cast<std::size_t>(width) * sizeof(float));
  }
}

}  // namespace

void attend_shared_rows(Kernels& kernels, const SharedRowsShape& s, const float* window,
                        RowSpan<const float> others, Span<const SeenRows> seen, const float* queries,
                        float* out) {
  AttentionShape shape{};
  shape.num_heads = s.num_heads;
  shape.num_kv_heads = 1;
  shape.head_dim = s.head_dim;
  shape.scale = s.scale;
  const auto tokens = static_cast<std::int64_t>(seen.size());
  for (std::int64_t at = 0, count = 0; at < tokens; at += count) {
    count = tokens_at_once({seen.data() + at, static_cast<std::size_t>(tokens - at)});
    Workspace::Frame memory(kernels.workspace());
    std::array<KVView, kFewAttending> views{};
    std::array<Place, kFewAttending> places{};
    std::array<std::int64_t, kFewAttending + 1> tasks{};  // in front of each token
    for (std::int64_t t = 0; t < count; ++t) {
      const auto n = static_cast<std::size_t>(t);
      const std::int64_t rows = num_rows(seen[static_cast<std::size_t>(at + t)]);
      float* const side_by_side = memory.take<float>(rows * s.head_dim);
      views[n] = {side_by_side, side_by_side, Format::kF32, rows};
      places[n] = {&views[n], rows - 1};
      tasks[n + 1] = tasks[n] + (rows + kRowsOfTask - 1) / kRowsOfTask;
    }
    kernels.pool().run(tasks[static_cast<std::size_t>(count)], [&](std::int64_t task, int) {
      const std::int64_t t =
          std::upper_bound(tasks.begin(), tasks.begin() + count + 1, task) - tasks.begin() - 1;
      const auto n = static_cast<std::size_t>(t);
      const std::int64_t first = (task - tasks[n]) * kRowsOfTask;
      copy_rows(seen[static_cast<std::size_t>(at + t)], window, others, s.head_dim, first,
                std::min(views[n].capacity, first + kRowsOfTask), static_cast<float*>(views[n].keys));
    });
    const std::int64_t width = s.num_heads * s.head_dim;
    attend_few(kernels, shape, s.sinks, {places.data(), static_cast<std::size_t>(count)},
               queries + at * width, out + at * width);
  }
}

}  // namespace moeinf
