// Attention of many tokens: scores and mixing as matrix products over blocks of queries.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

constexpr std::int64_t kMostTokens = 128;  // of a call: bounds the memory of what attention holds of each

// mixed, query: [tokens, num_heads, head_dim]; the tokens are at positions length.. of the cache, already
// stored there. sinks [num_heads] may be null. At most kMostTokens; what a token gives does not depend on the
// others. ends: as `attend` has them, of these tokens; all that they see is stored. own: of these queries;
// its sinks count where `sinks` is null.
void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                 const std::int64_t* ends, const OfQueries& own = {});
std::size_t many_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
