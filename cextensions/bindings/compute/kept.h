// What is kept of a sequence, and where its tokens stand, as Python gives them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "arrays.h"
#include "moeinf/compute/layers/attention.h"

namespace moeinf {

// The format in which keys and values, or latents, are kept. ValueError unless rows of `widths` numbers are
// whole blocks of it.
inline Format kept_format(const std::string& name, std::initializer_list<std::int64_t> widths) {
  const Format format = format_named(name);
  const int block = block_weights(format);
  require(block == 1 || format == Format::kQ8_0,
          "keys, values and latents are kept as f32, f16, bf16 or q8_0");
  for (const std::int64_t width : widths)
    require(width % block == 0, "heads or latents are no whole number of blocks");
  return format;
}

// Keys and values of a layer. ValueError where `tokens` have no place behind `length` others.
inline KVView kept_view(const AttentionShape& shape, const Bytes& keys, const Bytes& values,
                        const std::string& format, std::int64_t capacity, std::int64_t length,
                        std::int64_t tokens) {
  const Format kind = kept_format(format, {shape.head_dim});
  const auto needed = row_bytes(kind, times({shape.num_kv_heads, capacity, shape.head_dim}));
  require(length >= 0 && length <= capacity - tokens && keys.shape(0) >= needed && values.shape(0) >= needed,
          "the cache is too small");
  return {keys.data(), values.data(), kind, capacity};
}

inline Pairs pairs_of(bool interleaved) { return interleaved ? Pairs::kNeighbours : Pairs::kHalves; }

// ValueError unless each of the tokens has the cosines and sines of its pairs.
inline Turns turns_of(const ConstRows& cos, const ConstRows& sin, std::int64_t tokens, std::int64_t pairs) {
  require(pairs == 0 || (has_shape(cos, tokens, pairs) && has_shape(sin, tokens, pairs)),
          "cos and sin are [tokens, rotary_dim / 2]");
  return {{cos.data(), tokens, pairs}, {sin.data(), tokens, pairs}};
}

}  // namespace moeinf
