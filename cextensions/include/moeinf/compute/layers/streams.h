// How what a layer adds meets hidden states: hyper-connections of several streams, and sums that are scaled
// by number.
#pragma once

#include <cstdint>

#include "moeinf/compute/kernels.h"

namespace moeinf {

constexpr std::int64_t kMostStreams = 64;

struct StreamsShape {
  std::int64_t tokens, count, hidden;
};

// x [tokens, count, hidden], shares [tokens, count] -> out [tokens, hidden], the sum over the streams of
// share * x. What a token gets depends on no other token, nor on the threads; sums are made in the order of
// the streams.
void weigh_streams(Kernels& kernels, const StreamsShape& shape, const float* x, const float* shares,
                   float* out);

// x_i <- after_i added + sum over j of mixing[j, i] x_j, of each token: added [tokens, hidden], after
// [tokens, count], mixing [tokens, count, count]; null: each stream keeps what it is.
void mix_streams(Kernels& kernels, const StreamsShape& shape, float* x, const float* added,
                 const float* after, const float* mixing);

// x <- added * by + x * keep + shift, of vectors [width]; x, added [rows, width].
struct ScaledSum {
  std::int64_t rows, width;
  float* x;
  const float *added, *by, *keep, *shift;
};

void add_scaled(Kernels& kernels, const ScaledSum& sum);

}  // namespace moeinf
