// The core of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1). Each token has one
// row, to which all heads attend: a latent, which is every head's value and part of its key, and a rotated
// key that the heads share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

struct LatentShape {
  std::int64_t num_heads, rank;   // rank: of a latent
  std::int64_t qk_nope_head_dim;  // of the part of a head's query that is not rotated
  std::int64_t value_dim;         // of what a head gives
  std::int64_t rotary_pairs;      // of a head's query, and of the key that all heads share; may be 0
  Pairs pairs;
  float scale;                   // of the scores
  const float* sinks = nullptr;  // [num_heads]: a further score of each head, whose weight goes nowhere
  std::int64_t window = 0;       // a token sees itself and the window - 1 before it; 0: all

  std::int64_t query_dim() const { return qk_nope_head_dim + 2 * rotary_pairs; }
  std::int64_t width() const { return rank + 2 * rotary_pairs; }  // of a row
};

// What one layer keeps of a sequence: [capacity, width] in `format`: f32, f16, bf16, or
// q8_0, where rank and the rotated part are whole blocks.
struct LatentRows {
  unsigned char* data;
  Format format;
};

// Writes rows [tokens, width], their ends rotated, at positions length.. of the cache. cos, sin: [tokens,
// rotary_pairs].
void store_latents(Kernels& kernels, const LatentShape& shape, const LatentRows& cache, std::int64_t length,
                   RowSpan<const float> rows, const Turns& turns);

// queries [tokens, num_heads, query_dim], not rotated yet, of tokens at positions length.., whose rows are
// stored, to out [tokens, num_heads, value_dim]. keys_values [num_heads * (qk_nope_head_dim + value_dim),
// rank] (f32, f16 or bf16): for each head W_UK and then W_UV, which make keys and values out of latents. What
// a token gives depends neither on the number of threads nor on the tokens that go through with it.
void attend_latents(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values,
                    const LatentRows& cache, std::int64_t length, RowSpan<const float> queries,
                    const Turns& turns, RowSpan<float> out);
// The same of tokens that attend to chosen rows alone: chosen [tokens, most], the positions of each token's
// rows, at least one, -1 behind them. The shape's window counts for nothing.
void attend_chosen_latents(Kernels& kernels, const LatentShape& shape, const Matrix& keys_values,
                           const LatentRows& cache, RowSpan<const std::int64_t> chosen,
                           RowSpan<const float> queries, const Turns& turns, RowSpan<float> out);
// What both take of the workspace at most; most_chosen: 0 where no token chooses.
std::size_t latent_workspace_bytes(const LatentShape& shape, const PassShape& pass, std::int64_t most_chosen);

}  // namespace moeinf
