// The draw of a token. tests/unit/sampling compares it with a plain twin.
#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "check.h"
#include "moeinf/sampling/draw.h"

using namespace moeinf;

TEST(every_instruction_set_draws_the_same_token) {
  std::mt19937 numbers(3);
  for (const float spread : {0.0f, 0.5f, 4.0f}) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> scores(5003);
    for (float& score : scores) score = normal(numbers);
    for (const Draw& draw : {Draw{1, 1, 0, 0.7}, Draw{0.6f, 0.9f, 0, 0.2}, Draw{1, 0.4f, 0.01f, 0.999}}) {
      std::set<std::int64_t> drawn;
      for (const std::string& isa : available_isas()) {
        drawn.insert(draw_token(ops_for(isa), scores.data(), static_cast<std::int64_t>(scores.size()), draw));
      }
      CHECK(drawn.size() == 1);
    }
  }
}

TEST(one_score_is_drawn_whatever_is_asked_for) {
  const float score = -3;
  for (const Draw& draw : {Draw{1, 0, 0, 0}, Draw{1e-30f, 0.5f, 1, 0.99}}) {
    CHECK(draw_token(ops_for(""), &score, 1, draw) == 0);
  }
}
