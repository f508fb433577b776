#include "attend_tiles.h"

#include <algorithm>
#include <limits>

namespace moeinf {
namespace {

// What one thread holds: queries as bf16, what that rounding took of them, both as floats, sums, and the
// memory of the loops.
struct Held {
  unsigned char *queries, *rests;
  float *scaled, *widened, *sums;
  void* scratch;
};

std::size_t thread_bytes(std::int64_t head_dim) {
  const std::size_t rows = row_bytes(Format::kBF16, 2 * kMaxSharing * head_dim);  // queries and rests
  return rows + static_cast<std::size_t>(4 * (2 + kMaxSharing) * head_dim) +
         shared_rows_bytes(head_dim, head_dim, true);
}

Held held_in(unsigned char* memory, std::int64_t head_dim) {
  const std::size_t rows = row_bytes(Format::kBF16, kMaxSharing * head_dim);
  Held held;
  held.queries = memory;
  held.rests = held.queries + rows;
  held.scaled = reinterpret_cast<float*>(held.rests + rows);
  held.widened = held.scaled + head_dim;
  held.sums = held.widened + head_dim;
  held.scratch = held.sums + kMaxSharing * head_dim;
  return held;
}

// As bf16, and what that took of it.
void round_query(const Ops& ops, const float* query, float scale, std::int64_t dim, const Held& held,
                 std::int64_t place) {
  const std::size_t at = row_bytes(Format::kBF16, place * dim);
  for (std::int64_t c = 0; c < dim; ++c) held.scaled[c] = query[c] * scale;
  ops.store_kv(Format::kBF16, held.scaled, dim, held.queries + at);
  ops.widen_kv(Format::kBF16, held.queries + at, dim, held.widened);
  for (std::int64_t c = 0; c < dim; ++c) held.scaled[c] -= held.widened[c];
  ops.store_kv(Format::kBF16, held.scaled, dim, held.rests + at);
}

}  // namespace

bool attends_by_tiles(const Kernels& kernels, const AttentionShape& shape, Format kept,
                      const OfQueries& own) {
  return kernels.ops().attend_shared != nullptr && kept == Format::kBF16 && shape.head_dim % 64 == 0 &&
         shape.window == 0 && shape.cap == 0 && own.relative.states == nullptr;
}

void attend_tiles(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                  std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                  const std::int64_t* ends, const OfQueries& own) {
  const std::int64_t dim = shape.head_dim, group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t rows = tokens * group, blocks = (rows + kMaxSharing - 1) / kMaxSharing;
  Workspace::Frame memory(kernels.workspace());
  const std::size_t of_thread = thread_bytes(dim);  // a multiple of 64
  auto* const threads = static_cast<unsigned char*>(
      memory.take_bytes(of_thread * static_cast<std::size_t>(kernels.pool().num_threads())));
  kernels.pool().run(blocks * shape.num_kv_heads, [&](std::int64_t index, int thread) {
    const Held held = held_in(threads + of_thread * static_cast<std::size_t>(thread), dim);
    const std::int64_t first = (blocks - 1 - index / shape.num_kv_heads) * kMaxSharing;  // longest first
    const std::int64_t count = std::min<std::int64_t>(kMaxSharing, rows - first);
    const std::int64_t kv_head = index % shape.num_kv_heads;
    SoftmaxState states[kMaxSharing];
    std::int64_t seen[kMaxSharing], place[kMaxSharing];
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t token = (first + r) / group, head = kv_head * group + (first + r) % group;
      place[r] = (token * shape.num_heads + head) * dim;
      seen[r] = ends == nullptr ? length + token + 1 : ends[token];
      const float* const sink = sinks != nullptr       ? sinks + head
                                : own.sinks == nullptr ? nullptr
                                                       : own.sinks + token * shape.num_heads + head;
      states[r] =
          sink == nullptr ? SoftmaxState{-std::numeric_limits<float>::infinity(), 0} : SoftmaxState{*sink, 1};
      round_query(kernels.ops(), query + place[r], shape.scale, dim, held, r);
    }
    const std::size_t kept = row_bytes(kv.format, kv_head * kv.capacity * dim);
    SharedRowsTask task;
    task.queries = held.queries;
    task.rests = held.rests;
    task.query_bytes = static_cast<std::int64_t>(row_bytes(Format::kBF16, dim));
    task.num_queries = static_cast<int>(count);
    task.rows = static_cast<const unsigned char*>(kv.keys) + kept;
    task.values = static_cast<const unsigned char*>(kv.values) + kept;
    task.format = kv.format;
    task.num_rows = *std::max_element(seen, seen + count);
    task.width = task.rank = dim;
    task.seen = seen;
    task.scratch = held.scratch;
    kernels.ops().attend_shared(task, states, held.sums);
    for (std::int64_t r = 0; r < count; ++r) {
      const float share = 1.0f / states[r].total;
      for (std::int64_t c = 0; c < dim; ++c) mixed[place[r] + c] = held.sums[r * dim + c] * share;
    }
  });
}

std::size_t tiles_workspace_bytes(const AttentionShape& shape, int num_threads) {
  return thread_bytes(shape.head_dim) * static_cast<std::size_t>(num_threads);
}

}  // namespace moeinf
