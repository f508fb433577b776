// Attention of many tokens: scores and mixing as matrix products over blocks of queries.
#pragma once

#include "moeinf/kernels/attention.h"

namespace moeinf {

// mixed, query: [tokens, num_heads, head_dim]; the tokens are at positions length.. of the cache, already stored there.
// sinks [num_heads] may be null.
void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens);

}  // namespace moeinf
