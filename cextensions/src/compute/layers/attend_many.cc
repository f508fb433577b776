#include "attend_many.h"

#include <algorithm>
#include <limits>

#include "attend_tiles.h"
#include "compute/layout.h"

namespace moeinf {
namespace {

constexpr std::int64_t kRows = 128;  // queries of a task, over the heads of its group
// Positions whose scores go through the softmax together. Blocks begin at multiples of it, so that a token's
// softmax is cut at the same places wherever the call begins.
constexpr std::int64_t kBlock = 512;
constexpr std::int64_t kPanel =
    64;  // positions whose keys, or values, stay in the first-level cache as floats

template <typename T>
void transpose(const unsigned char* rows, std::int64_t num_rows, std::int64_t cols, unsigned char* to,
               std::int64_t stride) {
  const auto* from = reinterpret_cast<const T*>(rows);
  auto* const columns = reinterpret_cast<T*>(to);
  for (std::int64_t c = 0; c < cols; ++c) {
    for (std::int64_t j = 0; j < num_rows; ++j) columns[c * stride + j] = from[j * cols + c];
  }
}

// What one thread holds: its queries, scaled, their scores for a block of positions, the sums of what these
// weigh, and a panel of keys or values.
struct Held {
  float *queries, *scores, *sums, *panel;
  SoftmaxState* states;
};

struct HeldSizes {
  std::int64_t rows, head_dim;

  std::int64_t thread_floats() const {
    return rows * (2 * head_dim + kBlock) + 2 * kPanel * head_dim + round_up(2 * rows, 16);
  }
  Held held_in(float* memory) const {
    Held held;
    held.queries = memory;
    held.scores = held.queries + rows * head_dim;
    held.sums = held.scores + rows * kBlock;
    held.panel = held.sums + rows * head_dim;
    held.states = reinterpret_cast<SoftmaxState*>(held.panel + 2 * kPanel * head_dim);
    return held;
  }
};

std::int64_t tokens_of_task(const AttentionShape& shape) {
  return std::max<std::int64_t>(1, kRows / (shape.num_heads / shape.num_kv_heads));
}

// Of a call: keys of all heads transposed, and what the threads hold.
struct ManyMemory {
  unsigned char* keys;
  float* threads;
};

ManyMemory take_memory(Workspace::Frame& memory, const HeldSizes& sizes, Format kept,
                       std::int64_t num_kv_heads, std::int64_t count, int num_threads) {
  const std::size_t bytes = row_bytes(multiplied_format(kept), num_kv_heads * sizes.head_dim * count);
  auto* const keys = static_cast<unsigned char*>(memory.take_bytes(bytes));
  return {keys, memory.take<float>(sizes.thread_floats() * num_threads)};
}

class ManyTokens {
 public:
  ManyTokens(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
             std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
             const std::int64_t* ends, const OfQueries& own)
      : kernels_(kernels),
        s_(shape),
        sinks_(sinks),
        kv_(kv),
        length_(length),
        query_(query),
        mixed_(mixed),
        tokens_(tokens),
        ends_(ends),
        own_(own),
        group_(shape.num_heads / shape.num_kv_heads),
        task_tokens_(tokens_of_task(shape)),
        first_(shape.first_seen(length)),
        end_(last_seen(0, tokens)),
        format_(multiplied_format(kv.format)),
        sizes_{task_tokens_ * group_, shape.head_dim},
        frame_(kernels.workspace()),
        memory_(take_memory(frame_, sizes_, kv.format, shape.num_kv_heads, end_ - first_,
                            kernels.pool().num_threads())) {}

  void run() {
    const std::int64_t blocks = (end_ + kBlock - 1) / kBlock - first_ / kBlock;
    kernels_.pool().run(s_.num_kv_heads * blocks, [&](std::int64_t index, int thread) {
      lay_out(index / blocks, std::max(first_, (first_ / kBlock + index % blocks) * kBlock), held_by(thread));
    });
    const std::int64_t tasks = (tokens_ + task_tokens_ - 1) / task_tokens_;
    kernels_.pool().run(tasks * s_.num_kv_heads, [&](std::int64_t index, int thread) {
      attend(tasks - 1 - index / s_.num_kv_heads, index % s_.num_kv_heads,  // longest first
             held_by(thread));
    });
  }

 private:
  Held held_by(int thread) const { return sizes_.held_in(memory_.threads + sizes_.thread_floats() * thread); }

  std::int64_t block_end(std::int64_t start) const { return std::min(end_, (start / kBlock + 1) * kBlock); }

  // The position behind the last one that some of these tokens see.
  std::int64_t last_seen(std::int64_t first_token, std::int64_t tokens) const {
    const std::int64_t last = first_token + tokens;
    return ends_ == nullptr ? length_ + last : *std::max_element(ends_ + first_token, ends_ + last);
  }

  // Of keys laid out: [kv heads, blocks, panels of positions, head_dim, positions of the panel].
  std::size_t place(std::int64_t head, std::int64_t start) const {
    return row_bytes(format_, (head * (end_ - first_) + start - first_) * s_.head_dim);
  }
  const unsigned char* kept(const void* memory, std::int64_t head, std::int64_t position) const {
    return static_cast<const unsigned char*>(memory) +
           row_bytes(kv_.format, (head * kv_.capacity + position) * s_.head_dim);
  }

  // Keys of a block of positions as columns: then scores are sums of columns, as what they weigh is, and
  // nothing is added across a vector.
  void lay_out(std::int64_t head, std::int64_t start, const Held& held) const {
    const Ops& ops = kernels_.ops();
    for (std::int64_t at = start; at < block_end(start); at += kPanel) {
      const std::int64_t num = std::min(kPanel, block_end(start) - at);
      const unsigned char* keys = kept(kv_.keys, head, at);
      if (format_ != kv_.format) {
        auto* const rounded = reinterpret_cast<unsigned char*>(held.panel + kPanel * s_.head_dim);
        ops.widen_kv(kv_.format, keys, num * s_.head_dim, held.panel);
        ops.store_kv(format_, held.panel, num * s_.head_dim, rounded);
        keys = rounded;
      }
      const bool narrow = row_bytes(format_, 1) == 2;
      (narrow ? transpose<std::uint16_t> : transpose<float>)(keys, num, s_.head_dim,
                                                             memory_.keys + place(head, at), num);
    }
  }

  void attend(std::int64_t number, std::int64_t head, const Held& held) const {
    const std::int64_t first_token = number * task_tokens_,
                       tokens = std::min(task_tokens_, tokens_ - first_token), rows = tokens * group_;
    const std::int64_t end = last_seen(first_token, tokens);
    const std::int64_t at = (first_token * s_.num_heads + head * group_) * s_.head_dim;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const query = query_ + at + row_offset(r);
      for (std::int64_t c = 0; c < s_.head_dim; ++c) held.queries[r * s_.head_dim + c] = query[c] * s_.scale;
      const float* const sink = sink_of(first_token + r / group_, head * group_ + r % group_);
      held.states[r] =
          sink == nullptr ? SoftmaxState{-std::numeric_limits<float>::infinity(), 0} : SoftmaxState{*sink, 1};
    }
    std::fill(held.sums, held.sums + rows * s_.head_dim, 0.0f);
    for (std::int64_t start = s_.first_seen(length_ + first_token); start < end; start = block_end(start)) {
      add_block(head, start, std::min(end, block_end(start)), length_ + first_token, rows, held);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      float* const out = mixed_ + at + row_offset(r);
      const float share = 1.0f / held.states[r].total;
      for (std::int64_t c = 0; c < s_.head_dim; ++c) out[c] = held.sums[r * s_.head_dim + c] * share;
    }
  }

  // Of a head of one token; null where there is none.
  const float* sink_of(std::int64_t token, std::int64_t head) const {
    if (sinks_ != nullptr) return sinks_ + head;
    return own_.sinks == nullptr ? nullptr : own_.sinks + token * s_.num_heads + head;
  }

  std::int64_t end_of(std::int64_t position) const {
    return ends_ == nullptr ? position + 1 : ends_[position - length_];
  }

  // Of a task's rows, the heads of a group for one token after the other.
  std::int64_t row_offset(std::int64_t row) const {
    return (row / group_ * s_.num_heads + row % group_) * s_.head_dim;
  }

  // Adds to the scores of the rows of a token, for positions from `start` to `end`, what is said of
  // distances.
  void add_relative(std::int64_t head, std::int64_t own, std::int64_t start, std::int64_t end,
                    float* scores) const {
    const RelativeBias& relative = own_.relative;
    const std::int64_t reached = own - relative.extent + 1;  // the first position
    const std::int64_t from = std::max(start, reached), to = std::min(end, own + 1);
    if (from >= to) return;
    const float* const columns = relative.profiles + (from - reached);
    const Matrix profiles{reinterpret_cast<unsigned char*>(const_cast<float*>(columns)), Format::kF32,
                          relative.width, relative.extent};
    const std::int64_t query = (own - length_) * s_.num_heads + head * group_;
    kernels_.ops().weighted_sum(profiles, 0, to - from, relative.states + query * relative.width,
                                relative.width, group_, scores + from - start, kBlock);
  }

  // Adds what the rows of queries, of tokens from `position` on, see of a block of positions, from the panel
  // of `seen` to `end`.
  void add_block(std::int64_t head, std::int64_t seen, std::int64_t end, std::int64_t position,
                 std::int64_t rows, const Held& held) const {
    const Ops& ops = kernels_.ops();
    const std::int64_t first = std::max(first_, seen / kBlock * kBlock);
    const std::int64_t start = seen - (seen - first) % kPanel, width = end - start;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::fill(held.scores + r * kBlock, held.scores + r * kBlock + width, 0.0f);
    }
    for (std::int64_t at = start; at < end; at += kPanel) {
      const std::int64_t num = std::min(kPanel, block_end(start) - at);
      ops.widen_kv(format_, memory_.keys + place(head, at), num * s_.head_dim, held.panel);
      const Matrix keys{reinterpret_cast<unsigned char*>(held.panel), Format::kF32, s_.head_dim, num};
      ops.weighted_sum(keys, 0, std::min(num, end - at), held.queries, s_.head_dim, rows,
                       held.scores + at - start, kBlock);
    }
    for (std::int64_t r = 0; own_.relative.states != nullptr && r < rows; r += group_) {
      add_relative(head, position + r / group_, start, end, held.scores + r * kBlock);
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t own = position + r / group_;
      const std::int64_t from = std::clamp(s_.first_seen(own), start, end) - start;
      const std::int64_t to = std::clamp(end_of(own), start + from, end) - start;
      float* const row = held.scores + r * kBlock;
      std::fill(row, row + from, 0.0f);
      if (s_.cap > 0) ops.cap(row + from, to - from, s_.cap);
      ops.online_softmax(row + from, to - from, held.states[r], held.sums + r * s_.head_dim, s_.head_dim);
      std::fill(row + to, row + width, 0.0f);
    }
    for (std::int64_t at = start; at < end; at += kPanel) {
      const std::int64_t num = std::min(kPanel, end - at);
      ops.widen_kv(kv_.format, kept(kv_.values, head, at), num * s_.head_dim, held.panel);
      const Matrix values{reinterpret_cast<unsigned char*>(held.panel), Format::kF32, num, s_.head_dim};
      ops.weighted_sum(values, 0, s_.head_dim, held.scores + at - start, kBlock, rows, held.sums,
                       s_.head_dim);
    }
  }

  Kernels& kernels_;
  const AttentionShape& s_;
  const float* sinks_;
  const KVView& kv_;
  std::int64_t length_;
  const float* query_;
  float* mixed_;
  std::int64_t tokens_;
  const std::int64_t* ends_;
  OfQueries own_;
  std::int64_t group_, task_tokens_;
  std::int64_t first_, end_;  // of the positions that some token sees
  Format format_;             // of keys laid out
  HeldSizes sizes_;
  Workspace::Frame frame_;
  ManyMemory memory_;
};

}  // namespace

void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                 const std::int64_t* ends, const OfQueries& own) {
  if (attends_by_tiles(kernels, shape, kv.format, own))
    return attend_tiles(kernels, shape, sinks, kv, length, query, mixed, tokens, ends, own);
  ManyTokens(kernels, shape, sinks, kv, length, query, mixed, tokens, ends, own).run();
}

std::size_t many_workspace_bytes(const AttentionShape& shape, const PassShape& pass) {
  const std::int64_t seen = shape.window + most_at_once(shape) + shape.ahead;
  const std::int64_t count = shape.window > 0 ? std::min(pass.positions, seen) : pass.positions;
  const std::int64_t rows = tokens_of_task(shape) * (shape.num_heads / shape.num_kv_heads);
  Workspace::Frame memory;
  take_memory(memory, {rows, shape.head_dim}, pass.kept, shape.num_kv_heads, count, pass.num_threads);
  return std::max(memory.num_bytes(), tiles_workspace_bytes(shape, pass));
}

}  // namespace moeinf
