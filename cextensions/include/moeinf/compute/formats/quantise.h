// Between floats and blocks: what pull and its checks need. None of it is on the way of a token.
#pragma once

#include <cstdint>

#include "moeinf/compute/formats/formats.h"
#include "moeinf/span.h"

namespace moeinf {

constexpr float kLargestWeight = 65504.0f;  // float16's: so every scale is finite, and no search overflows

// Blocks of `format` (a quantised one) for a matrix [rows, cols] of f32, f16 or bf16, into out[rows *
// row_bytes]. The bytes depend on nothing but the weights of their own block and the importance of its
// columns: same on every machine, however rows are split. importance [cols]: what an error in each column
// costs beside the others, such as the mean square of what it is multiplied with; empty where all cost the
// same. q8_0 and mxfp4 search for nothing, and do not depend on it. Throws std::invalid_argument: rows that
// are no whole number of blocks, formats that it cannot go between, a weight that is NaN, infinite or beyond
// kLargestWeight, other than one importance for each column, and one that is not above 0 and at most that.
void quantise(Format format, const unsigned char* source, Format source_format, std::int64_t rows,
              std::int64_t cols, unsigned char* out, Span<const float> importance = {});

// out [rows, cols] from any format, each product rounded by itself (no fused multiply-add), as gguf-py does.
void dequantise(const Matrix& matrix, float* out);

// Index, counted through all rows, of the first block whose scale (or minimum) is NaN or infinite; -1 if
// there is none. Formats without blocks have no scales.
std::int64_t first_bad_scale(const Matrix& matrix);

// Blocks as gpt-oss publishes them (16 bytes: weight 2i in the low nibble of byte i, 2i + 1 in the high one;
// scales in an array of their own) as BlockMXFP4, without loss.
void repack_mxfp4(const unsigned char* nibbles, const unsigned char* scales, std::int64_t num_blocks,
                  BlockMXFP4* out);

}  // namespace moeinf
