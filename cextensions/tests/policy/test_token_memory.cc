#include <cstdint>
#include <vector>

#include "check.h"
#include "moeinf/policy/token_memory.h"

using moeinf::TokenMemory;

namespace {

constexpr std::int64_t kLayers = 2, kExperts = 8, kTopK = 2;

// Token t of a text that repeats after 7 tokens, in which no expert tells alone what follows.
std::vector<std::int64_t> ids_of(std::int64_t token, std::int64_t layer) {
  const std::int64_t first = (token % 7 * (layer + 3) + layer) % kExperts;
  return {first, (first + 1 + token % 7 % 3) % kExperts};
}

}  // namespace

TEST(what_followed_before_is_told_where_a_text_repeats) {
  TokenMemory memory(kLayers, kExperts, kTopK);
  std::vector<float> next(kExperts), soon(kExperts);
  for (std::int64_t token = 0; token < 3 * TokenMemory::kMostTokens; ++token) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      memory.observe(layer, ids_of(token, layer).data(), 1, next.data(), soon.data());
      if (token < 21 || layer < kLayers - 1) continue;  // before the last layer has run, tokens may be alike
      const std::vector<std::int64_t> comes = ids_of(token + 1, layer);
      for (std::int64_t j = 0; j < kExperts; ++j) CHECK((next[j] > 0.9F) == (j == comes[0] || j == comes[1]));
    }
  }
}

TEST(passes_longer_than_the_memory_leave_shares) {
  TokenMemory memory(kLayers, kExperts, kTopK);
  std::vector<float> next(kExperts), soon(kExperts);
  std::int64_t token = 0;
  for (const std::int64_t tokens : {1, 1, 5, 1, 1, 3000, 1, 1, 2048, 1, 2047, 1}) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::int64_t> ids;
      for (std::int64_t i = 0; i < tokens; ++i)
        for (const std::int64_t id : ids_of(token + i, layer)) ids.push_back(id);
      memory.observe(layer, ids.data(), tokens, next.data(), soon.data());
      for (std::int64_t j = 0; j < kExperts; ++j) CHECK(next[j] >= 0 && next[j] < 1.001F && soon[j] < 4.001F);
    }
    token += tokens;
  }
}
