#include "attend_many.h"

#include <algorithm>
#include <cstring>

#include "compute/formats/half.h"
#include "compute/layout.h"

namespace moeinf {
namespace {

constexpr int kTransposedScratch = 18, kThreadScratch = 19;  // which no operation called from here uses
constexpr std::int64_t kRows = 128;                          // queries of a task, over the heads of its group
constexpr std::int64_t kPositionsOfTask = 256;               // of a transposing task

std::size_t padded(std::size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

// Where one thread keeps a block of queries, their scores and what follows.
struct Block {
  unsigned char *queries, *weights, *scratch;
  float *scores, *out;
};

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
        tokens_(tokens) {
    group_ = s_.num_heads / s_.num_kv_heads;
    block_tokens_ = std::max<std::int64_t>(1, kRows / group_);
    first_ = s_.window > 0 ? std::max<std::int64_t>(0, length + 1 - s_.window) : 0;
    first_ -= first_ % border(s_.window);
    count_ = length + tokens - first_;
    kind_ = matmul_activation(kv.format);
    transposed_format_ = kind_ == ActivationKind::kBF16 ? Format::kBF16 : Format::kF32;
  }

  void run() {
    transpose_values();
    const std::size_t per_thread = thread_bytes();
    auto* memory = static_cast<unsigned char*>(kernels_.scratch(
        kThreadScratch, per_thread * static_cast<std::size_t>(kernels_.pool().num_threads())));
    const std::int64_t blocks = (tokens_ + block_tokens_ - 1) / block_tokens_;
    kernels_.pool().run(blocks * s_.num_kv_heads, [&](std::int64_t index, int thread) {
      attend_block(blocks - 1 - index / s_.num_kv_heads, index % s_.num_kv_heads,  // longest first
                   block_in(memory + per_thread * static_cast<std::size_t>(thread)));
    });
  }

 private:
  // Products over positions are cut into panels and steps, counted from first_ on. Where it lies on such a
  // border of the sequence, a token's sums are cut at the same places wherever the call begins. A short
  // window is one panel.
  static std::int64_t border(std::int64_t window) {
    return window + kMostTokens + kMaxStep <= kPanelCols / 2 ? kMaxStep : kPanelCols;
  }

  // Values as [kv heads, head_dim, count]: then mixing is a product with rows of weights, as all others are.
  void transpose_values() {
    const std::size_t width = row_bytes(transposed_format_, 1);
    transposed_ = static_cast<unsigned char*>(kernels_.scratch(
        kTransposedScratch, static_cast<std::size_t>(s_.num_kv_heads * s_.head_dim * count_) * width));
    const std::int64_t cuts = (count_ + kPositionsOfTask - 1) / kPositionsOfTask;
    kernels_.pool().run(s_.num_kv_heads * cuts, [&](std::int64_t index, int) {
      const std::int64_t head = index / cuts, start = index % cuts * kPositionsOfTask;
      const std::int64_t end = std::min(count_, start + kPositionsOfTask);
      const unsigned char* from = head_rows(kv_.values, head);
      unsigned char* to = transposed_ + static_cast<std::size_t>(head * s_.head_dim * count_) * width;
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

  std::size_t thread_bytes() const {
    const std::size_t rows = static_cast<std::size_t>(block_tokens_ * group_);
    return rows * (activation_bytes(kind_, s_.head_dim) + activation_bytes(kind_, count_)) +
           padded(rows * static_cast<std::size_t>(count_) * sizeof(float)) +
           padded(rows * static_cast<std::size_t>(s_.head_dim) * sizeof(float)) +
           padded(std::max(matmul_scratch_bytes(s_.head_dim), matmul_scratch_bytes(count_)));
  }

  Block block_in(unsigned char* memory) const {
    const std::size_t rows = static_cast<std::size_t>(block_tokens_ * group_);
    Block block;
    block.queries = memory;
    block.weights = block.queries + rows * activation_bytes(kind_, s_.head_dim);
    block.scores = reinterpret_cast<float*>(block.weights + rows * activation_bytes(kind_, count_));
    block.out =
        block.scores + padded(rows * static_cast<std::size_t>(count_) * sizeof(float)) / sizeof(float);
    block.scratch = reinterpret_cast<unsigned char*>(
        block.out + padded(rows * static_cast<std::size_t>(s_.head_dim) * sizeof(float)) / sizeof(float));
    return block;
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
    const Matrix values{transposed_ + static_cast<std::size_t>(head * s_.head_dim * count_) * width,
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
    const std::int64_t start = s_.window > 0 ? std::max<std::int64_t>(0, position + 1 - s_.window) : 0;
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
  unsigned char* transposed_ = nullptr;
};

}  // namespace

void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens) {
  ManyTokens(kernels, shape, sinks, kv, length, query, mixed, tokens).run();
}

}  // namespace moeinf
