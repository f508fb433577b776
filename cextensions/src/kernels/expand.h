// Quantised weights as bf16: what is multiplied with many activations.
#pragma once

template <class Block>
void expand_row(const unsigned char* p, std::int64_t cols, unsigned char* out) {
  const Block block;
  for (std::int64_t c = 0; c < cols; c += kInt8Block, p += Block::kBlockBytes) block.expand(p, out + 2 * c);
}

inline void expand_q4k_row(const unsigned char* p, std::int64_t cols, unsigned char* out) {
  for (std::int64_t c = 0; c < cols; c += 256, p += 144) {
    const SubBlocks sub = load_sub_blocks(p);
    UNROLL for (int pair = 0; pair < 4; ++pair)
        expand_pair(sub, pair, p + 16 + 32 * pair, out + 2 * (c + 64 * pair));
  }
}

// out[0, cols) = weights of the blocks from p on.
inline void expand_row_of(Format format, const unsigned char* p, std::int64_t cols, unsigned char* out) {
  switch (format) {
    case Format::kQ8_0:
      return expand_row<Q8_0>(p, cols, out);
    case Format::kQ4_0:
      return expand_row<Q4_0>(p, cols, out);
    case Format::kIQ4_NL:
      return expand_row<IQ4_NL>(p, cols, out);
    case Format::kMXFP4:
      return expand_row<MXFP4>(p, cols, out);
    default:
      return expand_q4k_row(p, cols, out);
  }
}
