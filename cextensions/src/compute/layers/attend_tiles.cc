#include "attend_tiles.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compute/layout.h"

namespace moeinf {
namespace {

// What one thread holds: queries as bf16, what that rounding took of them, both as floats, sums, and the
// memory of the loops.
struct Held {
  unsigned char *queries, *rests;
  float *scaled, *widened, *sums;
  void* scratch;
};

// width: of queries and rows as they are multiplied.
std::size_t thread_bytes(std::int64_t width) {
  const std::size_t rows = row_bytes(Format::kBF16, 2 * kMaxSharing * width);  // queries and rests
  return rows + static_cast<std::size_t>(4 * (2 + kMaxSharing) * width) +
         shared_rows_bytes(width, width, true);
}

Held held_in(unsigned char* memory, std::int64_t width) {
  const std::size_t rows = row_bytes(Format::kBF16, kMaxSharing * width);
  Held held;
  held.queries = memory;
  held.rests = held.queries + rows;
  held.scaled = reinterpret_cast<float*>(held.rests + rows);
  held.widened = held.scaled + width;
  held.sums = held.widened + width;
  held.scratch = held.sums + kMaxSharing * width;
  return held;
}

// As bf16, and (with_rest) what that took of it; zeros from `dim` to `width`.
void round_query(const Ops& ops, const float* query, float scale, std::int64_t dim, std::int64_t width,
                 const Held& held, std::int64_t place, bool with_rest) {
  const std::size_t at = row_bytes(Format::kBF16, place * width);
  for (std::int64_t c = 0; c < dim; ++c) held.scaled[c] = query[c] * scale;
  std::fill(held.scaled + dim, held.scaled + width, 0.0f);
  ops.store_kv(Format::kBF16, held.scaled, width, held.queries + at);
  if (!with_rest) return;
  ops.widen_kv(Format::kBF16, held.queries + at, width, held.widened);
  for (std::int64_t c = 0; c < width; ++c) held.scaled[c] -= held.widened[c];
  ops.store_kv(Format::kBF16, held.scaled, width, held.rests + at);
}

// Keys and values of some heads, whose rows are `width` wide, and those of each head `stride` bytes behind
// the one before; or of one head, whose values are laid out in pairs.
struct WideRows {
  const unsigned char *keys, *values, *pairs;
  std::size_t stride;
};

constexpr std::int64_t kColumns = 32;       // of bf16 in a tile
constexpr std::int64_t kLeastHeadDim = 64;  // narrower ones are filled up with too many zeros
std::int64_t wide(std::int64_t dim) { return round_up(dim, kColumns); }

// Whether keys and values are laid out anew, for all queries of a call: where rows are narrower than tiles,
// and where each query sees all of them.
bool lays_out(const AttentionShape& shape) {
  return shape.sees_all || wide(shape.head_dim) != shape.head_dim;
}
constexpr std::int64_t kRowsStep = 64;  // of pair_values
std::size_t laid_out_bytes(std::int64_t positions, std::int64_t width) {
  return row_bytes(Format::kBF16, round_up(positions, kRowsStep) * width);
}

class TileAttention {
 public:
  TileAttention(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                const std::int64_t* ends, const OfQueries& own)
      : kernels_(kernels),
        s_(shape),
        sinks_(sinks),
        kv_(kv),
        length_(length),
        query_(query),
        mixed_(mixed),
        ends_(ends),
        own_(own),
        group_(shape.num_heads / shape.num_kv_heads),
        rows_(tokens * group_),
        width_(wide(shape.head_dim)),
        frame_(kernels.workspace()),
        threads_(static_cast<unsigned char*>(frame_.take_bytes(
            thread_bytes(width_) * static_cast<std::size_t>(kernels.pool().num_threads())))) {}

  void run() {
    if (!lays_out(s_)) {
      attend_heads(
          0, s_.num_kv_heads,
          {static_cast<const unsigned char*>(kv_.keys), static_cast<const unsigned char*>(kv_.values),
           nullptr, row_bytes(Format::kBF16, kv_.capacity * s_.head_dim)});
      return;
    }
    const std::int64_t positions = seen_by(0, rows_);
    const std::size_t of_head = laid_out_bytes(positions, width_);
    auto* const keys = static_cast<unsigned char*>(frame_.take_bytes(2 * of_head));
    for (std::int64_t head = 0; head < s_.num_kv_heads; ++head) {
      lay_out(head, positions, keys, keys + of_head);
      attend_heads(head, 1, {keys, nullptr, keys + of_head, 0});
    }
  }

 private:
  // How many positions some of these rows, of the heads of a group for one token after the other, see.
  std::int64_t seen_by(std::int64_t first, std::int64_t count) const {
    std::int64_t most = 0;
    for (std::int64_t token = first / group_; token <= (first + count - 1) / group_; ++token)
      most = std::max(most, ends_ == nullptr ? length_ + token + 1 : ends_[token]);
    return most;
  }

  // Keys of a head, with zeros behind each, and its values in pairs.
  void lay_out(std::int64_t head, std::int64_t count, unsigned char* keys, unsigned char* pairs) const {
    constexpr std::int64_t kRows = 4 * kRowsStep;  // of a task
    const std::size_t narrow = row_bytes(Format::kBF16, s_.head_dim),
                      bytes = row_bytes(Format::kBF16, width_),
                      first = static_cast<std::size_t>(head * kv_.capacity) * narrow;
    const auto* const from = static_cast<const unsigned char*>(kv_.keys) + first;
    const auto* const values = static_cast<const unsigned char*>(kv_.values) + first;
    kernels_.pool().run((count + kRows - 1) / kRows, [&](std::int64_t task, int) {
      const std::int64_t begin = task * kRows, end = std::min(count, begin + kRows);
      for (std::int64_t at = begin; at < end; ++at) {
        unsigned char* const to = keys + static_cast<std::size_t>(at) * bytes;
        std::memcpy(to, from + static_cast<std::size_t>(at) * narrow, narrow);
        std::memset(to + narrow, 0, bytes - narrow);
      }
      kernels_.ops().pair_values(values + static_cast<std::size_t>(begin) * narrow, s_.head_dim, end - begin,
                                 width_, pairs + static_cast<std::size_t>(begin) * bytes);
    });
  }

  // How many queries share what is read of a head: as many as leave each thread a few tasks.
  std::int64_t together(std::int64_t num_heads) const {
    const std::int64_t tasks = 4 * kernels_.pool().num_threads(), most = rows_ * num_heads / tasks;
    return std::clamp(round_up(most, kSharingAtOnce), kSharingAtOnce, std::int64_t{kMaxSharing});
  }

  void attend_heads(std::int64_t first_head, std::int64_t num_heads, const WideRows& rows) const {
    const std::int64_t queries = together(num_heads), blocks = (rows_ + queries - 1) / queries;
    kernels_.pool().run(blocks * num_heads, [&](std::int64_t index, int thread) {
      const std::int64_t first = (blocks - 1 - index / num_heads) * queries;  // longest first
      const std::int64_t head = index % num_heads;
      const std::size_t kept = static_cast<std::size_t>(head) * rows.stride;
      const WideRows of_head = {rows.keys + kept, rows.values == nullptr ? nullptr : rows.values + kept,
                                rows.pairs, 0};
      attend(first, std::min(queries, rows_ - first), first_head + head, of_head,
             held_in(threads_ + thread_bytes(width_) * static_cast<std::size_t>(thread), width_));
    });
  }

  void attend(std::int64_t first, std::int64_t count, std::int64_t kv_head, const WideRows& rows,
              const Held& held) const {
    const std::int64_t dim = s_.head_dim;
    SoftmaxState states[kMaxSharing];
    std::int64_t seen[kMaxSharing], place[kMaxSharing];
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t token = (first + r) / group_, head = kv_head * group_ + (first + r) % group_;
      place[r] = (token * s_.num_heads + head) * dim;
      seen[r] = seen_by(first + r, 1);
      const float* const sink = sinks_ != nullptr       ? sinks_ + head
                                : own_.sinks == nullptr ? nullptr
                                                        : own_.sinks + token * s_.num_heads + head;
      states[r] =
          sink == nullptr ? SoftmaxState{-std::numeric_limits<float>::infinity(), 0} : SoftmaxState{*sink, 1};
      round_query(kernels_.ops(), query_ + place[r], s_.scale, dim, width_, held, r, !s_.sees_all);
    }
    SharedRowsTask task;
    task.queries = held.queries;
    task.rests = s_.sees_all ? nullptr : held.rests;
    task.rounds_weights = s_.sees_all;
    task.query_bytes = static_cast<std::int64_t>(row_bytes(Format::kBF16, width_));
    task.num_queries = static_cast<int>(count);
    task.rows = rows.keys;
    task.values = rows.values;
    task.pairs = rows.pairs;
    task.format = Format::kBF16;
    task.num_rows = seen_by(first, count);
    task.width = task.rank = width_;
    task.seen = seen;
    task.scratch = held.scratch;
    kernels_.ops().attend_shared(task, states, held.sums);
    for (std::int64_t r = 0; r < count; ++r) {
      const float share = 1.0f / states[r].total;
      for (std::int64_t c = 0; c < dim; ++c) mixed_[place[r] + c] = held.sums[r * width_ + c] * share;
    }
  }

  Kernels& kernels_;
  const AttentionShape& s_;
  const float* sinks_;
  const KVView& kv_;
  std::int64_t length_;
  const float* query_;
  float* mixed_;
  const std::int64_t* ends_;
  const OfQueries& own_;
  std::int64_t group_, rows_, width_;
  Workspace::Frame frame_;
  unsigned char* threads_;
};

}  // namespace

bool attends_by_tiles(const Kernels& kernels, const AttentionShape& shape, Format kept,
                      const OfQueries& own) {
  return kernels.ops().attend_shared != nullptr && kept == Format::kBF16 && shape.head_dim % 8 == 0 &&
         shape.head_dim >= kLeastHeadDim && shape.window == 0 && shape.cap == 0 &&
         own.relative.states == nullptr;
}

void attend_tiles(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                  std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                  const std::int64_t* ends, const OfQueries& own) {
  TileAttention(kernels, shape, sinks, kv, length, query, mixed, tokens, ends, own).run();
}

std::size_t tiles_workspace_bytes(const AttentionShape& shape, const PassShape& pass) {
  const std::int64_t width = wide(shape.head_dim);
  Workspace::Frame memory;
  memory.take_bytes(thread_bytes(width) * static_cast<std::size_t>(pass.num_threads));
  if (lays_out(shape)) memory.take_bytes(2 * laid_out_bytes(pass.positions, width));
  return memory.num_bytes();
}

}  // namespace moeinf
