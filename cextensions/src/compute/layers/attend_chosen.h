// Attention of tokens to positions that were chosen for each of them.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

// query, mixed: [chosen.tokens, num_heads, head_dim]. Keys and values of the positions are put side by side,
// and attended to as those of a short sequence: what a token gives depends on no other token, nor on the
// threads.
void attend_chosen(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                   const ChosenPositions& chosen, const float* query, float* mixed);
std::size_t chosen_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
