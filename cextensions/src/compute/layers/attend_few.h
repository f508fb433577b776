// Attention of a few tokens, each of them read by itself.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

// Arguments as of attend_many. What a token gives depends neither on the other tokens nor on the number of
// threads.
void attend_few(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                std::int64_t length, const float* query, float* mixed, std::int64_t tokens);

}  // namespace moeinf
