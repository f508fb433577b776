// The plain reading of one block of each format that is only read: weights as floats, each product rounded by
// itself.
#pragma once

#include <cstdint>

#include "moeinf/compute/formats/formats.h"

namespace moeinf {

// out [block_weights(format)], for any format.
void expand_block(Format format, const unsigned char* block, float* out);

void expand_q4_1(const unsigned char* block, float* out);
void expand_q5_0(const unsigned char* block, float* out);
void expand_q5_1(const unsigned char* block, float* out);
void expand_q2_k(const unsigned char* block, float* out);
void expand_q3_k(const unsigned char* block, float* out);
void expand_q5_k(const unsigned char* block, float* out);
void expand_q6_k(const unsigned char* block, float* out);
void expand_iq4_xs(const unsigned char* block, float* out);
void expand_iq3_xxs(const unsigned char* block, float* out);
void expand_iq3_s(const unsigned char* block, float* out);
void expand_iq2_xxs(const unsigned char* block, float* out);
void expand_iq2_xs(const unsigned char* block, float* out);
void expand_iq2_s(const unsigned char* block, float* out);
void expand_iq1_s(const unsigned char* block, float* out);
void expand_iq1_m(const unsigned char* block, float* out);
void expand_tq1_0(const unsigned char* block, float* out);
void expand_tq2_0(const unsigned char* block, float* out);
void expand_nvfp4(const unsigned char* block, float* out);

// Of sub-block s of 32, from the 12 packed bytes of a Q4_K or Q5_K block: those of sub-blocks 0-3 are the low
// 6 bits of their bytes; those of 4-7 a nibble, and the 2 bits above the 6 of an earlier one.
void scale_and_min_k4(const std::uint8_t* packed, int sub_block, int* scale, int* min);

// The float16 scale of an IQ1_M block, which lies in the top nibbles of its last four words.
std::uint16_t scale_of_iq1_m(const unsigned char* block);

}  // namespace moeinf
