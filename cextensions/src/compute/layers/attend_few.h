// Attention of a few tokens, each of them read by itself.
#pragma once

#include <array>

#include "attend_many.h"
#include "moeinf/compute/layers/attention.h"

namespace moeinf {

constexpr std::int64_t kFewAttending = 8;  // tokens of a pass that attend one by one

// Where a token lies in the cache of its sequence.
struct Place {
  const KVView* kv;
  std::int64_t position;
};
// Of each token of the stretches, which stay where they are; at most most_at_once.
struct Places {
  explicit Places(Span<const Stretch> stretches);
  Span<const Place> part(std::int64_t first, std::int64_t count) const {
    return {of.data() + first, static_cast<std::size_t>(count)};
  }
  std::array<Place, kMostPatches> of;
};

// Arguments as of attend_many; the tokens may be of several sequences. What a token gives depends neither on
// the other tokens nor on the number of threads.
void attend_few(Kernels& kernels, const AttentionShape& shape, const float* sinks, Span<const Place> places,
                const float* query, float* mixed, const OfQueries& own = {});
// Into how many tasks that is cut: 16 threads have work from 4096 positions on, even at one key/value head.
std::int64_t few_tasks(const AttentionShape& shape, std::int64_t length, std::int64_t tokens);
std::size_t few_workspace_bytes(const AttentionShape& shape, const PassShape& pass);

}  // namespace moeinf
