// Choices: of a token by its scores, of experts instead of others, and what a trained network says of them.
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "check.h"
#include "fuzz/targets.h"
#include "moeinf/cache/slot_table.h"
#include "moeinf/policy/substitutes.h"
#include "moeinf/policy/tuned_use.h"
#include "moeinf/sampling/draw.h"

namespace moeinf::fuzz {
namespace {

constexpr double kBorder = 1e-5;  // of the sum of all weights: borders of a draw are that near

// Whether a draw may have ended so, by sums in float64.
void check_drawn(const std::vector<float>& scores, const Draw& draw, std::int64_t drawn) {
  CHECK(drawn >= 0 && static_cast<std::size_t>(drawn) < scores.size());
  const float largest = *std::max_element(scores.begin(), scores.end()),
              own = scores[static_cast<std::size_t>(drawn)];
  CHECK(std::isfinite(own));
  const double temperature = std::max<double>(static_cast<double>(draw.temperature), 1e-30);
  const auto weight = [&](float score) {
    return std::exp((static_cast<double>(score) - largest) / temperature);
  };
  double total = 0, above = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    total += weight(scores[i]);
    const bool likelier = scores[i] > own || (scores[i] == own && static_cast<std::int64_t>(i) < drawn);
    if (likelier) above += weight(scores[i]);
  }
  CHECK(above <= (static_cast<double>(draw.top_p) + kBorder) * total);
  CHECK(weight(own) >= static_cast<double>(draw.min_p) * (1 - 1e-3) - 1e-30);
}

}  // namespace

// How a token is drawn, then its scores: halves of 16 bits would be too alike, so bytes stand for eighths.
void draws(Input input) {
  static const std::vector<std::string> isas = available_isas();
  constexpr float kSpecial[] = {0,
                                -0.0f,
                                1e-45f,
                                1e30f,
                                std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::lowest(),
                                -std::numeric_limits<float>::infinity(),
                                std::numeric_limits<float>::quiet_NaN()};
  const auto how = input.number<std::uint8_t>();
  const auto share = [&input] { return static_cast<float>(input.number<std::uint8_t>()) / 250.0f; };
  Draw draw{8 * share(), how & 1 ? share() : 1, how & 2 ? share() : 0, 0};
  draw.uniform = static_cast<double>(input.number<std::uint16_t>()) / 65535.0;
  if (how & 4) draw.temperature = input.number<float>();
  if (how & 8) draw.top_p = input.number<float>();
  std::vector<float> scores;
  if (how & 16) {
    scores = input.numbers<float>(400);
  } else {
    for (const std::int8_t each : input.numbers<std::int8_t>(1600))
      scores.push_back(each < -120 ? kSpecial[each + 128] : static_cast<float>(each) / 8);
  }
  const std::string& other = isas[input.below(isas.size())];
  std::int64_t first = -1;
  for (const std::string& isa : {isas.back(), other}) {
    std::int64_t drawn = 0;
    try {
      drawn = draw_token(ops_for(isa), scores, draw);
    } catch (const std::invalid_argument&) {
      CHECK(first == -1);
      const bool sound = !scores.empty() && draw.temperature >= 0 && std::isfinite(draw.temperature) &&
                         draw.top_p >= 0 && draw.min_p <= 1 &&
                         std::none_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); }) &&
                         std::isfinite(*std::max_element(scores.begin(), scores.end()));
      CHECK(!sound);
      return;
    }
    CHECK(first == -1 || first == drawn);
    first = drawn;
  }
  check_drawn(scores, draw, first);
}

// How many experts, slices and tokens; then states, ids and weights.
void stand_ins(Input input) {
  const std::size_t experts = 2 + input.below(14), slices = 1 + input.below(3), tokens = 1 + input.below(4);
  const std::size_t top_k = 1 + input.below(std::min<std::size_t>(4, experts - 1));
  const std::size_t spares = input.below(experts - top_k + 1);
  const double most_lost = std::min(static_cast<double>(input.number<std::uint8_t>()) / 200, 1 - 0x1p-53);
  const bool keeps_sum = input.below(2) == 1;
  std::vector<std::uint8_t> states(experts * slices);
  for (std::uint8_t& state : states) state = static_cast<std::uint8_t>(input.below(3));
  std::vector<std::int64_t> ids, spare_ids;
  std::vector<float> weights, spare_weights;
  bool sound = true;
  for (std::size_t token = 0; token < tokens; ++token) {
    std::vector<std::int64_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = 0; i < top_k + spares; ++i) {
      std::swap(order[i], order[i + input.below(experts - i)]);
      const auto byte = input.number<std::uint8_t>();
      const float weight =
          byte == 255 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(byte) / 100;
      (i < top_k ? ids : spare_ids).push_back(order[i]);
      (i < top_k ? weights : spare_weights).push_back(weight);
    }
  }
  if (input.below(64) == 63) {
    ids[input.below(ids.size())] = input.number<std::int64_t>();
    sound = std::all_of(ids.begin(), ids.end(),
                        [&](std::int64_t id) { return id >= 0 && id < static_cast<std::int64_t>(experts); });
  }
  const Choice choice = {
      {ids.data(), static_cast<std::int64_t>(tokens), static_cast<std::int64_t>(top_k)},
      weights.data(),
      {spare_ids.data(), static_cast<std::int64_t>(tokens), static_cast<std::int64_t>(spares)},
      spare_weights.data(),
      keeps_sum};
  Substituted made;
  try {
    made = substitute(states, static_cast<std::int64_t>(slices), choice, most_lost);
  } catch (const std::invalid_argument&) {
    CHECK(!sound);
    return;
  }
  CHECK(sound && made.ids.size() == ids.size() && made.weights.size() == weights.size());
  std::int64_t changed = 0;
  for (std::size_t token = 0; token < tokens; ++token) {
    double before = 0, after = 0, lost = 0;
    for (std::size_t at = token * top_k; at < (token + 1) * top_k; ++at) {
      CHECK(made.ids[at] >= 0 && made.ids[at] < static_cast<std::int64_t>(experts));
      before += static_cast<double>(weights[at]);
      after += static_cast<double>(made.weights[at]);
      if (made.ids[at] == ids[at]) continue;
      ++changed;
      lost += static_cast<double>(weights[at]);
      const auto* const of = &states[static_cast<std::size_t>(ids[at]) * slices];
      CHECK(std::find(of, of + slices, kAbsent) != of + slices);  // nobody gives up what is there
    }
    if (!(std::isfinite(before) && before > 0)) {
      CHECK(std::equal(ids.begin() + static_cast<std::ptrdiff_t>(token * top_k),
                       ids.begin() + static_cast<std::ptrdiff_t>((token + 1) * top_k),
                       made.ids.begin() + static_cast<std::ptrdiff_t>(token * top_k)));
      continue;
    }
    CHECK(lost <= most_lost * before * (1 + 1e-9) + 1e-12);
    if (keeps_sum && after > 0) CHECK(std::fabs(after - before) <= 1e-5 * before);
  }
  CHECK(changed <= made.instead + made.left_out);
}

// The sizes of a network, its weights, and then what tokens are routed to: probabilities come out.
void networks(Input input) {
  const auto layers = static_cast<std::int64_t>(1 + input.below(3)),
             experts = static_cast<std::int64_t>(2 + input.below(5));
  const auto top_k = static_cast<std::int64_t>(
      1 + input.below(static_cast<std::size_t>(std::min<std::int64_t>(3, experts))));
  const auto width = static_cast<std::int64_t>(input.below(5));
  const bool as_they_are = input.below(2) == 1;
  const auto many = [&](std::int64_t count) {
    std::vector<float> weights(static_cast<std::size_t>(count));
    for (float& weight : weights) {
      const auto byte = static_cast<float>(input.number<std::int8_t>());
      weight = as_they_are && byte == -128 ? input.number<float>() : byte * std::fabs(byte) * 0.6f;
    }
    return weights;
  };
  TunedWeights weights = {width,
                          many(layers * experts * width),
                          many(layers * experts * width),
                          many(4 * width * width),
                          many(layers * width),
                          many(width * width),
                          many(layers * width * 2 * experts),
                          many(layers * 2 * experts),
                          many(layers * UseEvidence::kRows * 2)};
  try {
    TunedUse use(layers, experts, top_k, std::move(weights));
    for (std::int64_t pass = 0; pass < 12 && input.left() > 0; ++pass) {
      const auto tokens = static_cast<std::int64_t>(1 + input.below(10));
      if (tokens == 9) use.restart();
      for (std::int64_t layer = 0; layer < layers; ++layer) {
        std::vector<std::int64_t> ids;
        for (std::int64_t token = 0; token < tokens; ++token) {
          const auto first = static_cast<std::int64_t>(input.below(static_cast<std::size_t>(experts)));
          for (std::int64_t i = 0; i < top_k; ++i) ids.push_back((first + i) % experts);
        }
        use.observe(layer, ids.data(), tokens);
      }
    }
    for (std::int64_t i = 0; i < layers * experts; ++i) {
      CHECK(use.no_use()[i] >= 0 && use.no_use()[i] <= 1);
      CHECK(std::isfinite(use.wait()[i]) && use.wait()[i] >= 0);
    }
  } catch (const std::invalid_argument&) {
    CHECK(as_they_are);
  }
}

}  // namespace moeinf::fuzz
