#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "moeinf/cache/slot_table.h"
#include "moeinf/policy/substitutes.h"

using moeinf::kAbsent;
using moeinf::kLoading;
using moeinf::kResident;
using moeinf::Substituted;

namespace {

using Ids = std::vector<std::int64_t>;
using Weights = std::vector<float>;
using States = std::vector<std::uint8_t>;

// Of tokens that use two experts, with two spares each.
Substituted substituted(const States& states, const Ids& ids, const Weights& weights, const Ids& spare_ids,
                        const Weights& spare_weights, double most_lost, bool keeps_sum = true) {
  const auto rows = static_cast<std::int64_t>(ids.size() / 2);
  return moeinf::substitute(
      states, 1,
      {{ids.data(), rows, 2}, weights.data(), {spare_ids.data(), rows, 2}, spare_weights.data(), keeps_sum},
      most_lost);
}

}  // namespace

TEST(the_best_spare_in_memory_stands_in_for_what_would_be_read) {
  const States states = {kResident, kAbsent, kAbsent, kResident};
  const Substituted made = substituted(states, {0, 1}, {0.75f, 0.25f}, {2, 3}, {0.2f, 0.125f}, 0.25, false);
  CHECK(made.ids == Ids({0, 3}) && made.weights == Weights({0.75f, 0.125f}));
  CHECK(made.instead == 1 && made.left_out == 0);
  const Substituted kept = substituted(states, {0, 1}, {0.75f, 0.25f}, {2, 3}, {0.2f, 0.125f}, 0.2, false);
  CHECK(kept.ids == Ids({0, 1}) && kept.weights == Weights({0.75f, 0.25f}) && kept.instead == 0);
}

TEST(without_a_spare_the_expert_is_left_out_and_weights_keep_their_sum) {
  const States states = {kResident, kAbsent, kAbsent, kLoading};
  const Substituted made = substituted(states, {0, 1}, {0.75f, 0.25f}, {2, 3}, {0.2f, 0.125f}, 0.25);
  CHECK(made.ids == Ids({0, 0}) && made.weights == Weights({1.0f, 0.0f}));
  CHECK(made.instead == 0 && made.left_out == 1);
}

TEST(what_one_token_needs_is_there_for_all) {
  const States states = {kResident, kAbsent, kResident, kAbsent};
  const Ids ids = {0, 1, 1, 2};  // the first could do without expert 1, the second cannot
  const Substituted made =
      substituted(states, ids, {0.9f, 0.1f, 0.6f, 0.4f}, {3, 3, 3, 3}, {0, 0, 0, 0}, 0.2);
  CHECK(made.ids == ids && made.instead + made.left_out == 0);
}

TEST(weights_that_are_no_numbers_stay_as_they_are) {
  const States states(4, kAbsent);
  const Substituted made = substituted(states, {0, 1}, {NAN, 0.5f}, {2, 3}, {0, 0}, 0.9);
  CHECK(made.ids == Ids({0, 1}) && std::isnan(made.weights[0]));
  CHECK(throws<std::invalid_argument>(
      [&states] { substituted(states, {0, 4}, {0.5f, 0.5f}, {2, 3}, {0, 0}, 0.9); }));
}

TEST(a_token_keeps_one_of_its_experts_though_shares_round_to_less_than_the_whole) {
  const States states(4, kAbsent);
  const Weights thirds = {1.0f / 3, 1.0f / 3};
  const Substituted made = substituted(states, {0, 1}, thirds, {2, 3}, {0, 0}, 1, false);
  CHECK(made.ids == Ids({1, 1}) && made.left_out == 1);
}

TEST(an_expert_in_slices_is_there_only_as_a_whole) {
  const States states = {kResident, kAbsent, kResident, kResident, kResident, kLoading};  // two slices each
  const Ids ids = {0, 2};
  const Weights weights = {0.25f, 0.75f}, spare_weight = {0.25f};
  const Ids spare = {1};
  const Substituted made = moeinf::substitute(
      states, 2, {{ids.data(), 1, 2}, weights.data(), {spare.data(), 1, 1}, spare_weight.data(), true}, 0.25);
  CHECK(made.ids == Ids({1, 2}) && made.weights == weights);
}
