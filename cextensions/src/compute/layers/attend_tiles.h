// Attention of many tokens by the loops that an instruction set has for queries which share rows.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

// Whether these loops take such attention: of all positions from the first on, with keys and values of bf16.
// That depends neither on where a call begins nor on how many tokens it has.
bool attends_by_tiles(const Kernels& kernels, const AttentionShape& shape, Format kept, const OfQueries& own);

// The same as attend_many.
void attend_tiles(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                  std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                  const std::int64_t* ends, const OfQueries& own);
std::size_t tiles_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
