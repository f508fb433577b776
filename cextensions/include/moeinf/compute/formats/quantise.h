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

// The same of neighbouring columns of a matrix, one after the other: each weight is rounded to the nearest
// code to itself and what the errors of the columns in front of it ask of it, by the scales that `quantise`
// chooses for its block. E being weights less what they become, weight k aims at weights[k] + asked[k] + the
// sum of E[j] * upper[j][k] over the columns j < k of this call. With products of inputs H = U D U^T, U upper
// with a diagonal of 1, upper = U, and E U of the columns in front of this call as `asked`, that is the order
// of GPTQ (arXiv 2210.17323) in the form of LDLQ (arXiv 2307.13304), and the error is the sum of D[k] * (what
// k aims at less what it becomes)^2: so importance, which is not empty here, may be D. weights, asked and
// errors, to which E is written, are [rows, cols], upper [cols, cols]. Throws as quantise, for cols beyond
// 256, and for mxfp4, whose codes it does not know.
void quantise_in_turn(Format format, RowSpan<const float> weights, RowSpan<const float> asked,
                      RowSpan<const float> upper, Span<const float> importance, RowSpan<float> errors,
                      unsigned char* out);

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
