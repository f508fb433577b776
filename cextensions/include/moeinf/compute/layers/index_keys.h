// What index keys are worth to tokens, and the best of them (DeepSeek-V3.2, arXiv 2512.02556, section 2.1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

// Of tokens that choose: heads [tokens, num_heads, head_dim] and weights [tokens, num_heads], or null where
// each head counts once. A key k is worth the sum over the heads of weight relu(head . k).
struct IndexQueries {
  RowSpan<const float> heads;
  const float* weights;
  std::int64_t num_heads;

  std::int64_t head_dim() const { return heads.cols / num_heads; }
};

// Keys [count, head_dim], `stride` numbers apart.
struct IndexKeys {
  const float* data;
  std::int64_t count, stride;
};

// scores [tokens, at least the most seen] of the keys that each token sees, the first ones;
// what lies behind these stays. What a token gets depends on no other, nor on the number of threads.
void score_keys(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                const std::int64_t* seen, RowSpan<float> scores);

// worth [tokens * num_heads, at least the most blocks]: of each block of `block` keys that a token sees, the
// last of which may be cut off, what its best key gives each head: head . k. As score_keys.
void score_blocks(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                  const std::int64_t* seen, std::int64_t block, RowSpan<float> worth);

// chosen [rows, most]: the numbers of the best of the first seen[row] scores of each row, ascending, and -1
// behind them where there are fewer; of equals the first. What is no number counts as the least.
void choose_best(Kernels& kernels, RowSpan<const float> scores, const std::int64_t* seen,
                 RowSpan<std::int64_t> chosen);

// Both: chosen [tokens, most], the numbers of the keys that are worth most to each token.
void choose_keys(Kernels& kernels, const IndexQueries& queries, const IndexKeys& keys,
                 const std::int64_t* seen, RowSpan<std::int64_t> chosen);

// What these take of the workspace at most, of tokens that see so many keys.
std::size_t index_workspace_bytes(std::int64_t num_heads, std::int64_t head_dim, std::int64_t num_keys,
                                  int num_threads);

}  // namespace moeinf
