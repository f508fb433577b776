// Attention of many tokens: scores and mixing as matrix products over blocks of queries.
#pragma once

#include "moeinf/compute/layers/attention.h"

namespace moeinf {

// Of a call: bounds the memory of what attention holds of each. Where each sees all, what a call does for all
// of these counts more.
constexpr std::int64_t kMostTokens = 128, kMostPatches = 512;
inline std::int64_t most_at_once(const AttentionShape& shape) {
  return shape.sees_all ? kMostPatches : kMostTokens;
}

// mixed, query: [tokens, num_heads, head_dim]; the tokens are at positions length.. of the cache, already
// stored there. sinks [num_heads] may be null. At most most_at_once; what a token gives does not depend on
// the others. ends: as `attend` has them, of these tokens; all that they see is stored. own: of these
// queries; its sinks count where `sinks` is null.
void attend_many(Kernels& kernels, const AttentionShape& shape, const float* sinks, const KVView& kv,
                 std::int64_t length, const float* query, float* mixed, std::int64_t tokens,
                 const std::int64_t* ends, const OfQueries& own = {});
std::size_t many_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
