// The draw of a token. tests/unit/sampling compares it with a plain twin.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <stdexcept>
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
        drawn.insert(draw_token(ops_for(isa), scores, draw));
      }
      CHECK(drawn.size() == 1);
    }
  }
}

TEST(one_score_is_drawn_whatever_is_asked_for) {
  const float score = -3;
  for (const Draw& draw : {Draw{1, 0, 0, 0}, Draw{1e-30f, 0.5f, 1, 0.99}}) {
    CHECK(draw_token(ops_for(""), {&score, 1}, draw) == 0);
  }
}

TEST(any_float_leads_to_a_score_that_may_be_drawn_or_to_an_error) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kMost = std::numeric_limits<float>::max();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> found = {0, -0.0f, 1, -1, 40, kMost, -kMost, 1e-45f, -kInfinity, kInfinity, nan};
  const std::vector<float> numbers = {0, 1e-45f, 1e-30f, 0.5f, 1, 1e30f, kMost, kInfinity, -1, nan};
  std::mt19937 random(5);
  const auto one_of = [&](const std::vector<float>& of) { return of[random() % of.size()]; };
  int num_drawn = 0, num_refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::vector<float> scores(round % 7 == 0 ? 1500 : random() % 40);
    const std::size_t kinds = 3 + random() % (found.size() - 2);  // of some rounds, none that is refused
    for (float& score : scores) score = found[random() % kinds];
    const Draw draw{one_of(numbers), one_of(numbers), one_of(numbers), one_of(numbers)};
    try {
      const std::int64_t drawn = draw_token(ops_for(""), scores, draw);
      CHECK(drawn >= 0 && drawn < static_cast<std::int64_t>(scores.size()));
      CHECK(std::isfinite(scores[static_cast<std::size_t>(drawn)]));
      ++num_drawn;
    } catch (const std::invalid_argument&) {
      ++num_refused;
    }
  }
  CHECK(num_drawn > 300 && num_refused > 300);
}
