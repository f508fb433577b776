#include "attend_many.h"

#include <algorithm>
#include <cstring>

#include "compute/formats/half.h"
#include "compute/layout.h"

namespace moeinf {
namespace {

constexpr std::int64_t kRows = 128;             // queries of a task, over the heads of its group
constexpr std::int64_t kPositionsOfTask = 256;  // of a transposing task

std::size_t padded(std::size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

// Where one thread keeps a block of queries, their scores and what follows.
struct Block {
  unsigned char *queries, *weights, *scratch;
  float *scores, *out;
};

// The sizes of all blocks of a call: `rows` queries, and `count` positions that some token sees.
struct BlockSizes {
  std::int64_t rows, head_dim, count;
  ActivationKind kind;

  std::size_t query_bytes() const {
    return static_cast<std::size_t>(rows) * activation_bytes(kind, head_dim);
  }
  std::size_t weight_bytes() const { return static_cast<std::size_t>(rows) * activation_bytes(kind, count); }
  std::size_t score_bytes() const { return padded(static_cast<std::size_t>(rows * count) * sizeof(float)); }
  std::size_t out_bytes() const { return padded(static_cast<std::size_t>(rows * head_dim) * sizeof(float)); }
  std::size_t thread_bytes() const {
    const std::size_t scratch = std::max(matmul_scratch_bytes(head_dim), matmul_scratch_bytes(count));
    return query_bytes() + weight_bytes() + score_bytes() + out_bytes() + padded(scratch);
  }

  Block block_in(unsigned char* memory) const {
    Block block;
    block.queries = memory;
    block.weights = block.queries + query_bytes();
    block.scores = reinterpret_cast<float*>(block.weights + weight_bytes());
    block.out = block.scores + score_bytes() / sizeof(float);
    block.scratch = reinterpret_cast<unsigned char*>(block.out) + out_bytes();
    return block;
  }
};

// Values transposed, of all heads, and the blocks of all threads.
struct ManyMemory {
  unsigned char *transposed, *threads;
};

ManyMemory take_memory(Workspace::Frame& memory, const BlockSizes& sizes, std::int64_t num_kv_heads,
                       Format transposed, int num_threads) {
  const std::size_t values = row_bytes(transposed, num_kv_heads * sizes.head_dim * sizes.count);
  const std::size_t threads = sizes.thread_bytes() * static_cast<std::size_t>(num_threads);
  return {static_cast<unsigned char*>(memory.take_bytes(values)),
          static_cast<unsigned char*>(memory.take_bytes(threads))};
}

std::int64_t tokens_of_block(const AttentionShape& shape) {
  return std::max<std::int64_t>(1, kRows / (shape.num_heads / shape.num_kv_heads));
}

Format transposed_format(ActivationKind kind) {
  return kind == ActivationKind::kBF16 ? Format::kBF16 : Format::kF32;
}

// Products over positions are cut into panels and steps, counted from the first position that is seen. Where
// that lies on such a border of the sequence, a token's sums are cut at the same places wherever the call
// begins. A short window is one panel.
std::int64_t border(std::int64_t window) {
  return window + kMostTokens + kMaxStep <= kPanelCols / 2 ? kMaxStep : kPanelCols;
}

class ManyTokens {
 public:
  ManyTokens(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
             std::int64_t length, const float* query, float* mixed, std::int64_t tokens)
      : kernels_(kernels),
        s_(shape),
        sinks_(sinks),
        kv_(kv),
        length_(length),
        query_(query),
        mixed_(mixed),
        tokens_(tokens),
        frame_(kernels.workspace()) {
    group_ = s_.num_heads / s_.num_kv_heads;
    block_tokens_ = tokens_of_block(shape);
    first_ = s_.first_seen(length);
    first_ -= first_ % border(s_.window);
    count_ = length + tokens - first_;
    kind_ = activation_of(kv.format);
    transposed_format_ = transposed_format(kind_);
    sizes_ = {block_tokens_ * group_, s_.head_dim, count_, kind_};
    memory_ = take_memory(frame_, sizes_, s_.num_kv_heads, transposed_format_, kernels.pool().num_threads());
  }

  void run() {
    transpose_values();
    const std::size_t per_thread = sizes_.thread_bytes();
    const std::int64_t blocks = (tokens_ + block_tokens_ - 1) / block_tokens_;
    kernels_.pool().run(blocks * s_.num_kv_heads, [&](std::int64_t index, int thread) {
      attend_block(blocks - 1 - index / s_.num_kv_heads, index % s_.num_kv_heads,  // longest first
                   sizes_.block_in(memory_.threads + per_thread * static_cast<std::size_t>(thread)));
    });
  }

 private:
  // Values as [kv heads, head_dim, count]: then mixing is a product with rows of weights, as all others are.
  void transpose_values() {
    const std::size_t width = row_bytes(transposed_format_, 1);
    const std::int64_t cuts = (count_ + kPositionsOfTask - 1) / kPositionsOfTask;
    kernels_.pool().run(s_.num_kv_heads * cuts, [&](std::int64_t index, int) {
      const std::int64_t head = index / cuts, start = index % cuts * kPositionsOfTask;
      const std::int64_t end = std::min(count_, start + kPositionsOfTask);
      const unsigned char* from = head_rows(kv_.values, head);
      unsigned char* to = memory_.transposed + static_cast<std::size_t>(head * s_.head_dim * count_) * width;
      if (kv_.format == Format::kBF16) {
        transpose<std::uint16_t>(from, start, end, to, [](std::uint16_t bits) { return bits; });
      } else if (kv_.format == Format::kF32) {
        transpose<float>(from, start, end, to, [](float value) { return value; });
      } else {
        transpose<std::uint16_t>(from, start, end, to,
                                 [](std::uint16_t bits) { return float_of_half(bits); });
      }
    });
  }

  template <typename From, typename Widen>
  void transpose(const unsigned char* from, std::int64_t start, std::int64_t end, unsigned char* to,
                 const Widen& widen) const {
    using To = decltype(widen(From()));
    const auto* rows = reinterpret_cast<const From*>(from);
    auto* columns = reinterpret_cast<To*>(to);
    for (std::int64_t c = 0; c < s_.head_dim; ++c) {
      for (std::int64_t j = start; j < end; ++j) {
        columns[c * count_ + j] = widen(rows[j * s_.head_dim + c]);
      }
    }
  }

  const unsigned char* head_rows(const void* memory, std::int64_t head) const {
    return static_cast<const unsigned char*>(memory) +
           row_bytes(kv_.format, (head * kv_.capacity + first_) * s_.head_dim);
  }

  void attend_block(std::int64_t number, std::int64_t head, const Block& block) const {
    const Ops& ops = kernels_.ops();
    const std::int64_t first_token = number * block_tokens_,
                       tokens = std::min(block_tokens_, tokens_ - first_token);
    const std::int64_t rows = tokens * group_;
    const std::int64_t end = length_ + first_token + tokens - first_;  // of the positions that are seen
    const float* const queries = query_ + (first_token * s_.num_heads + head * group_) * s_.head_dim;
    for (std::int64_t r = 0; r < rows; ++r) {
      ops.prepare(kind_, queries + (r / group_ * s_.num_heads + r % group_) * s_.head_dim, s_.head_dim,
                  block.queries + static_cast<std::size_t>(r) * activation_bytes(kind_, s_.head_dim));
    }
    const Matrix keys{head_rows(kv_.keys, head), kv_.format, end, s_.head_dim};
    ops.matmul_rows(keys, 0, end, block.queries, rows, block.scratch, block.scores, count_);
    for (std::int64_t r = 0; r < rows; ++r) {
      weigh(block.scores + r * count_, length_ + first_token + r / group_ - first_,
            sinks_ == nullptr ? nullptr : sinks_ + head * group_ + r % group_);
      ops.prepare(kind_, block.scores + r * count_, count_,
                  block.weights + static_cast<std::size_t>(r) * activation_bytes(kind_, count_));
    }
    const std::size_t width = row_bytes(transposed_format_, 1);
    const Matrix values{memory_.transposed + static_cast<std::size_t>(head * s_.head_dim * count_) * width,
                        transposed_format_, s_.head_dim, count_};
    ops.matmul_rows(values, 0, s_.head_dim, block.weights, rows, block.scratch, block.out, s_.head_dim);
    float* const mixed = mixed_ + (first_token * s_.num_heads + head * group_) * s_.head_dim;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::memcpy(mixed + t * s_.num_heads * s_.head_dim, block.out + t * group_ * s_.head_dim,
                  static_cast<std::size_t>(group_ * s_.head_dim) * sizeof(float));
    }
  }

  // The softmax of the scores that the token at `position` (counted from first_) sees; 0 for all others.
  void weigh(float* scores, std::int64_t position, const float* sink) const {
    const std::int64_t start = std::max<std::int64_t>(0, s_.first_seen(first_ + position) - first_);
    std::fill(scores, scores + start, 0.0f);
    kernels_.ops().softmax(scores + start, position + 1 - start, s_.scale, sink);
    std::fill(scores + position + 1, scores + count_, 0.0f);
  }

  Kernels& kernels_;
  const AttentionShape& s_;
  const float* sinks_;
  const KVView& kv_;
  std::int64_t length_;
  const float* query_;
  float* mixed_;
  std::int64_t tokens_, group_, block_tokens_;
  std::int64_t first_, count_;  // positions first_ .. first_ + count_ are seen by some token
  ActivationKind kind_;
  Format transposed_format_;
  BlockSizes sizes_;
  Workspace::Frame frame_;
  ManyMemory memory_;
};

}  // namespace

void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens) {
  ManyTokens(kernels, shape, sinks, kv, length, query, mixed, tokens).run();
}

std::size_t many_workspace_bytes(const AttentionShape& shape, const PassShape& pass) {
  const ActivationKind kind = activation_of(pass.dtype);
  const std::int64_t seen = shape.window + kMostTokens + border(shape.window);
  const std::int64_t count = shape.window > 0 ? std::min(pass.positions, seen) : pass.positions;
  const std::int64_t rows = tokens_of_block(shape) * (shape.num_heads / shape.num_kv_heads);
  Workspace::Frame memory;
  take_memory(memory, {rows, shape.head_dim, count, kind}, shape.num_kv_heads, transposed_format(kind),
              pass.num_threads);
  return memory.num_bytes();
}

}  // namespace moeinf
