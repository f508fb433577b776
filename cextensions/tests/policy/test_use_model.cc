#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moeinf/policy/next_use.h"
#include "moeinf/policy/use_model.h"

using moeinf::UseModel;

namespace {

constexpr std::int64_t kLayers = 3, kExperts = 6, kTopK = 2;

// Token t uses (t, t + 1) in layer 0, and what follows from it in the others, all modulo kExperts.
std::vector<std::int64_t> ids_of(std::int64_t token, std::int64_t layer) {
  const std::int64_t first = (token + 2 * layer) % kExperts;
  return {first, (first + 1) % kExperts};
}

}  // namespace

TEST(an_order_that_repeats_is_learned_by_the_pairs) {
  UseModel model(kLayers, kExperts, kTopK);
  for (std::int64_t token = 0; token < 600; ++token)
    for (std::int64_t layer = 0; layer < kLayers; ++layer)
      model.observe(layer, ids_of(token, layer).data(), 1);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const std::vector<std::int64_t> next = ids_of(600, layer);
    for (std::int64_t j = 0; j < kExperts; ++j) {
      const bool comes = j == next[0] || j == next[1];
      CHECK(comes ? model.no_use()[layer * kExperts + j] < 0.2 : model.no_use()[layer * kExperts + j] > 0.8);
    }
  }
}

TEST(passes_of_any_number_of_tokens_leave_finite_numbers) {
  UseModel model(kLayers, kExperts, kTopK);
  std::int64_t token = 0;
  for (const std::int64_t tokens : {1, 5, 1, 1, 2, 12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40, 1}) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::int64_t> ids;
      for (std::int64_t i = 0; i < tokens; ++i)
        for (const std::int64_t id : ids_of(token + i, layer)) ids.push_back(id);
      model.observe(layer, ids.data(), tokens);
    }
    token += tokens;
  }
  for (std::int64_t i = 0; i < kLayers * kExperts; ++i) {
    CHECK(model.no_use()[i] > 0 && model.no_use()[i] < 1);
    CHECK(std::isfinite(model.wait()[i]) && model.wait()[i] > 0);
  }
}

TEST(scores_of_no_model_are_refused) {
  const std::vector<double> table(6, 0.5);
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const auto made = [&table](std::int64_t layers, std::int64_t encoder_layers, std::int64_t next_source) {
    return [=, &table] {
      moeinf::NextUseScores(table.data(), table.data(), layers, 2, encoder_layers, next_source);
    };
  };
  for (const auto& call :
       {made(0, 0, 1), made(most, 0, 1), made(3, 4, 1), made(3, -1, 1), made(3, 1, -1), made(3, 1, most)})
    CHECK(throws<std::invalid_argument>(call));
  made(3, 1, 1000)();
}
