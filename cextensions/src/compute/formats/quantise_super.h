// Super-blocks: 256 weights in groups, whose scales (and minima) are whole numbers of few bits, times one or
// two of the whole block. The search spans both levels.
#pragma once

#include "moeinf/compute/formats/formats.h"

namespace moeinf {

// weights: 256 finite ones of at most kLargestWeight; columns: what an error in each costs, or null where all
// cost the same. Writes block_bytes of the format.
void encode_q2_k(const float* weights, const float* columns, unsigned char* out);
void encode_q3_k(const float* weights, const float* columns, unsigned char* out);
void encode_q4_k(const float* weights, const float* columns, unsigned char* out);
void encode_q5_k(const float* weights, const float* columns, unsigned char* out);
void encode_q6_k(const float* weights, const float* columns, unsigned char* out);
void encode_iq4_xs(const float* weights, const float* columns, unsigned char* out);
void encode_iq3_s(const float* weights, const float* columns, unsigned char* out);
void encode_iq3_xxs(const float* weights, const float* columns, unsigned char* out);
void encode_iq2_s(const float* weights, const float* columns, unsigned char* out);
void encode_iq2_xs(const float* weights, const float* columns, unsigned char* out);
void encode_iq2_xxs(const float* weights, const float* columns, unsigned char* out);

}  // namespace moeinf
