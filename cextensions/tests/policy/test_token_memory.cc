#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moeinf/lowest.h"
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

TEST(passes_that_are_told_in_part_and_in_any_order_leave_shares) {
  TokenMemory memory(kLayers, kExperts, kTopK);
  std::vector<float> next(kExperts), soon(kExperts);
  std::mt19937 random(1);
  for (int visit = 0; visit < 6000; ++visit) {
    const std::int64_t tokens = random() % 4 != 0 ? 1 : 1 + random() % 300, layer = random() % kLayers;
    if (random() % 20 == 0) memory.restart();
    std::vector<std::int64_t> ids;
    for (std::int64_t i = 0; i < tokens; ++i)
      for (const std::int64_t id : ids_of(visit + i, layer)) ids.push_back(id);
    memory.observe(layer, ids.data(), tokens, next.data(), soon.data());
    for (std::int64_t j = 0; j < kExperts; ++j) CHECK(next[j] >= 0 && next[j] < 1.001F && soon[j] < 4.001F);
  }
}

TEST(a_memory_of_no_model_and_a_routing_of_no_layer_are_refused) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& sizes :
       {std::vector<std::int64_t>{0, 8, 2}, {2, 0, 1}, {2, 8, 0}, {2, 8, 9}, {-1, 8, 2}, {most, most, 1}})
    CHECK(throws<std::invalid_argument>([&sizes] { TokenMemory(sizes[0], sizes[1], sizes[2]); }));
  TokenMemory memory(kLayers, kExperts, kTopK);
  std::vector<float> rows(kExperts);
  const std::vector<std::int64_t> ids = ids_of(0, 0);
  for (const std::int64_t layer : {std::int64_t{-1}, kLayers, most})
    CHECK(throws<std::invalid_argument>(
        [&] { memory.observe(layer, ids.data(), 1, rows.data(), rows.data()); }));
  CHECK(throws<std::invalid_argument>([&] { memory.observe(0, ids.data(), 0, rows.data(), rows.data()); }));
}

TEST(scores_that_are_no_numbers_are_found_first_and_infinite_ones_last) {
  const double none = std::numeric_limits<double>::quiet_NaN(),
               most = std::numeric_limits<double>::infinity();
  const std::vector<double> scores = {most, none, 2, -most, none, 1, most};
  const std::vector<std::uint8_t> states(scores.size(), 1);
  const auto found = [&](std::size_t wanted) {
    return moeinf::lowest(
        scores.data(), states.data(), scores.size(), 1, [](std::int64_t) { return false; }, wanted);
  };
  using Indices = std::vector<std::int64_t>;
  CHECK((found(9) == Indices{1, 3, 4, 5, 2, 0, 6}) && (found(2) == Indices{1, 3}) && found(0).empty());
}
