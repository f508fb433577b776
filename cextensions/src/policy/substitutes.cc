#include "moeinf/policy/substitutes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "moeinf/cache/slot_table.h"

namespace moeinf {
namespace {

enum class Place : std::uint8_t { kAbsent, kComing, kHere };

class Substitution {
 public:
  Substitution(Span<const std::uint8_t> states, std::int64_t slices, const Choice& choice, double most_lost)
      : choice_(choice), most_lost_(most_lost), columns_(static_cast<std::size_t>(choice.ids.cols)) {
    find_places(states, slices);
    for (const RowSpan<const std::int64_t>& ids : {choice.ids, choice.spare_ids})
      for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids.data[i] < 0 || static_cast<std::size_t>(ids.data[i]) >= places_.size())
          throw std::invalid_argument("there is no such expert");
    made_.ids.assign(choice.ids.data, choice.ids.data + choice.ids.size());
    made_.weights.assign(choice.weights, choice.weights + choice.ids.size());
  }

  Substituted run() {
    if (choice_.ids.rows > 1) {
      std::vector<std::int64_t> needed;
      for (std::int64_t row = 0; row < choice_.ids.rows; ++row) {
        give_up(row);
        for (const std::size_t column : missing_) needed.push_back(ids_of(row)[column]);
      }
      for (const std::int64_t id : needed) place(id) = Place::kHere;
    }
    for (std::int64_t row = 0; row < choice_.ids.rows; ++row) {
      give_up(row);
      if (!given_up_.empty()) write(row);
    }
    return std::move(made_);
  }

 private:
  struct GivenUp {
    std::size_t column;
    std::int64_t spare;  // its column; -1: nothing stands in
  };

  void find_places(Span<const std::uint8_t> states, std::int64_t slices) {
    places_.assign(states.size() / static_cast<std::size_t>(slices), Place::kHere);
    for (std::size_t i = 0; i < states.size(); ++i) {
      Place& found = places_[i / static_cast<std::size_t>(slices)];
      if (states[i] == kAbsent) found = Place::kAbsent;
      if (states[i] == kLoading) found = std::min(found, Place::kComing);
    }
  }

  Place& place(std::int64_t id) { return places_[static_cast<std::size_t>(id)]; }
  const std::int64_t* ids_of(std::int64_t row) const { return choice_.ids.data + row * choice_.ids.cols; }
  const float* weights_of(std::int64_t row) const { return choice_.weights + row * choice_.ids.cols; }

  // Finds what a token gives up, and leaves in missing_ what has to be read for it.
  void give_up(std::int64_t row) {
    const std::int64_t* ids = ids_of(row);
    const float* weights = weights_of(row);
    given_up_.clear();
    missing_.clear();
    total_ = 0;
    for (std::size_t column = 0; column < columns_; ++column) {
      total_ += static_cast<double>(weights[column]);
      if (place(ids[column]) == Place::kAbsent) missing_.push_back(column);
    }
    if (!(std::isfinite(total_) && total_ > 0)) return;
    std::sort(missing_.begin(), missing_.end(), [weights](std::size_t one, std::size_t other) {
      return weights[one] != weights[other] ? weights[one] < weights[other] : one < other;
    });
    double lost = 0;
    std::int64_t next = 0;  // of the spares
    std::size_t kept = columns_;
    for (const std::size_t column : missing_) {
      lost += static_cast<double>(weights[column]) / total_;
      next = usable(row, next);
      const bool found = next < choice_.spare_ids.cols;
      if (!found && --kept == 0) break;  // shares may round to less than the whole
      if (!(lost <= most_lost_)) break;
      given_up_.push_back({column, found ? next++ : -1});
    }
    missing_.erase(missing_.begin(), missing_.begin() + static_cast<std::ptrdiff_t>(given_up_.size()));
  }

  float spare_weight(std::int64_t row, std::int64_t column) const {
    return choice_.spare_weights[row * choice_.spare_ids.cols + column];
  }
  std::int64_t spare_id(std::int64_t row, std::int64_t column) const {
    return choice_.spare_ids.data[row * choice_.spare_ids.cols + column];
  }

  // The first spare from `next` on that lies in memory, and that the token does not use already.
  std::int64_t usable(std::int64_t row, std::int64_t next) {
    const std::int64_t* ids = ids_of(row);
    for (; next < choice_.spare_ids.cols; ++next) {
      const std::int64_t id = spare_id(row, next);
      if (place(id) == Place::kHere && std::find(ids, ids + columns_, id) == ids + columns_) break;
    }
    return next;
  }

  void write(std::int64_t row) {
    std::int64_t* ids = made_.ids.data() + row * choice_.ids.cols;
    float* weights = made_.weights.data() + row * choice_.ids.cols;
    for (const GivenUp& each : given_up_) {
      const bool found = each.spare >= 0;
      ids[each.column] = found ? spare_id(row, each.spare) : -1;
      weights[each.column] = found ? spare_weight(row, each.spare) : 0;
      ++(found ? made_.instead : made_.left_out);
    }
    std::size_t heaviest = columns_;
    double kept = 0;
    for (std::size_t column = 0; column < columns_; ++column) {
      kept += static_cast<double>(weights[column]);
      if (ids[column] >= 0 && (heaviest == columns_ || weights[column] > weights[heaviest]))
        heaviest = column;
    }
    for (std::size_t column = 0; column < columns_; ++column) {
      if (ids[column] < 0) ids[column] = ids[heaviest];
      if (choice_.keeps_sum && kept > 0)
        weights[column] = static_cast<float>(static_cast<double>(weights[column]) * (total_ / kept));
    }
  }

  const Choice& choice_;
  double most_lost_;
  std::size_t columns_;
  std::vector<Place> places_;  // of each expert
  // Of the token at hand: columns that have to be read, what is given up, and the sum of its weights.
  std::vector<std::size_t> missing_;
  std::vector<GivenUp> given_up_;
  double total_ = 0;
  Substituted made_;
};

}  // namespace

Substituted substitute(Span<const std::uint8_t> states, std::int64_t slices, const Choice& choice,
                       double most_lost) {
  return Substitution(states, slices, choice, most_lost).run();
}

}  // namespace moeinf
