// Attention of a few tokens, each of them read by itself.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

constexpr std::int64_t kFewAttending = 8;  // tokens of a pass that attend one by one

// Arguments as of attend_many. What a token gives depends neither on the other tokens nor on the number of
// threads.
void attend_few(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                const OfQueries& own = {});
// Into how many tasks that is cut: 16 threads have work from 4096 positions on, even at one key/value head.
std::int64_t few_tasks(const AttentionShape& shape, std::int64_t length, std::int64_t tokens);
std::size_t few_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
