// Queries and keys that short convolutions mix (CCA, arXiv 2510.04476), but for the products of each head.
#pragma once

#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

struct MixedHeadsShape {
  std::int64_t num_heads, num_kv_heads, head_dim;

  std::int64_t heads() const { return num_heads + num_kv_heads; }
  std::int64_t channels() const { return heads() * head_dim; }
};

// A convolution of each channel over by_channel rows of seen, and the by_head rows of its results that each
// token's product is made of: seen [tokens + by_channel + by_head - 2, channels], taps [by_channel,
// channels], bias [channels] -> out [heads, tokens, head_dim, by_head].
struct HeadWindows {
  MixedHeadsShape shape;
  std::int64_t tokens, by_channel, by_head;
  const float *seen, *taps, *bias;
  float* out;
};

void window_heads(Kernels& kernels, const HeadWindows& given);

// Of products [heads, tokens, head_dim], their bias [channels], queries [tokens, num_heads * head_dim] and
// keys [tokens, num_kv_heads * head_dim]: each product gets its bias and half of query + key, that of a key
// the mean over the heads that share it, and is brought to the length of its head, lengths [heads].
struct LevelHeads {
  MixedHeadsShape shape;
  std::int64_t tokens;
  const float *products, *bias, *queries, *keys, *lengths;
  float *out_queries, *out_keys;
};

void level_heads(Kernels& kernels, const LevelHeads& given);

}  // namespace moeinf
