// The points of a grid as a tree, with a level for each weight of a point: the nearest is found without
// trying all of them, as what is further off by its first weights alone is left out.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "grids.h"
#include "lanes.h"

namespace moeinf {

// Word and kCount are those of the grid, of whose values its points have kValues.
template <class Word, int kCount, int kValues>
class GridTree {
 public:
  static constexpr int kDims = sizeof(Word);

  // unit: of the grid's values, so that those of the tree are the multiples of a scale that weights become.
  GridTree(const Grid<Word, kCount>& grid, float unit) {
    for (int v = 0; v < kValues; ++v) values_[v] = unit * static_cast<float>(grid.values[v]);
    for (int v = 0; v + 1 < kValues; ++v) borders_[v] = (values_[v] + values_[v + 1]) / 2;
    steps_[0] = 1;
    for (int k = 1; k < kDims; ++k) steps_[k] = static_cast<float>(kValues) * steps_[k - 1];
    std::uint16_t sorted[kCount];
    for (int i = 0; i < kCount; ++i) {
      sorted[i] = static_cast<std::uint16_t>(i);
      for (int k = 0; k < kDims; ++k) {
        const auto value = static_cast<unsigned char>(grid.points[i] >> (8 * k) & 255);
        const auto* const found = std::find(grid.values, grid.values + kValues, value);
        codes_[i][k] = static_cast<std::uint8_t>(found - grid.values);
        points_[i][k] = values_[codes_[i][k]];
      }
    }
    std::sort(sorted, sorted + kCount, [this](int a, int b) {
      return std::lexicographical_compare(codes_[a], codes_[a] + kDims, codes_[b], codes_[b] + kDims);
    });
    grow(0, sorted, sorted + kCount, 0);
    float alike[kDims];
    std::fill_n(alike, kDims, 1.0f);
    for (int cell = 0; cell < kCells; ++cell) {
      float middle[kDims];
      for (int k = 0, left = cell; k < kDims; ++k, left /= kValues) middle[k] = values_[left % kValues];
      near_[cell] = 0;
      const int found = nearest(middle, 1, alike, 0);
      const bool same = std::equal(middle, middle + kDims, points_[found]);
      near_[cell] = static_cast<std::uint16_t>(same ? found | kSame : found);
    }
  }

  // What the weights of a point become, as multiples of the scale.
  const float* point(int index) const { return points_[index]; }

  // Of magnitudes, in units of 1 / inverse, the point of the least squared error, weighed by `importance`.
  // guess: a point that may be near.
  int nearest(const float* magnitudes, float inverse, const float* importance, int guess) const {
    using namespace lanes;
    Search search;
    Floats above = splat(0);  // how many cells lie below each weight's value, as whole floats
    for (int start = 0; start < kDims; start += kLanes) {
      const Floats x = floats_at(magnitudes + start) * inverse;
      const Ints step = reinterpret_cast<Ints>(floats_at(steps_ + start));
      for (const float border : borders_) above += reinterpret_cast<Floats>((x > splat(border)) & step);
      std::memcpy(search.x + start, &x, sizeof x);
    }
    const int cell = static_cast<int>((above[0] + above[1]) + (above[2] + above[3]));
    if (near_[cell] & kSame) return near_[cell] & ~kSame;
    for (int k = 0, left = cell; k < kDims; ++k, left /= kValues) {
      search.code[k] = left % kValues;
      for (int v = 0; v < kPadded; v += kLanes) {
        const Floats off = splat(search.x[k]) - floats_at(values_ + v), cost = importance[k] * off * off;
        std::memcpy(search.cost[k] + v, &cost, sizeof cost);
      }
    }
    search.found = near_[cell];
    search.least = 0;
    float guessed = 0;
    for (int k = 0; k < kDims; ++k) {
      search.least += search.cost[k][codes_[search.found][k]];
      guessed += search.cost[k][codes_[guess][k]];
    }
    if (guessed < search.least) {
      search.least = guessed;
      search.found = guess;
    }
    search.rest[kDims] = 0;
    for (int k = kDims - 1; k >= 0; --k) search.rest[k] = search.rest[k + 1] + search.cost[k][search.code[k]];
    descend<0>(0, 0, &search);
    return search.found;
  }

  // Weights that are rounded in turn, in units of the scale: weight k aims at aims[k] plus lost[j] *
  // owed[j][k] of those before it, lost being `weights` less what they become, of either sign. An error of
  // what they aim at costs `importance`. parity: of the number of negative ones; kAny where it may be either.
  struct InTurn {
    float weights[kDims], aims[kDims], owed[kDims][kDims], importance[kDims];
    int parity;
  };
  static constexpr int kAny = -1;

  // The point of the least cost; bits of `signs` are set where its weights are negative. Where none costs
  // less than `limit`, that is its cost.
  struct Chosen {
    int index = 0;
    unsigned signs = 0;
    float cost = 0;
  };
  Chosen nearest_in_turn(const InTurn& turn, float limit) const {
    TurnSearch search{turn, {}, 0, {0, 0, limit}};
    descend_in_turn<0>(0, 0, &search);
    return search.best;
  }

 private:
  static constexpr int cells() {
    int count = 1;
    for (int k = 0; k < kDims; ++k) count *= kValues;
    return count;
  }
  static constexpr int kCells = cells(), kSame = 0x8000;
  static constexpr int kPadded = (kValues + lanes::kLanes - 1) / lanes::kLanes * lanes::kLanes;

  struct Node {
    std::uint16_t children[kValues];  // 0: none; of the last level points, plus 1
  };

  struct Search {
    float x[kDims];
    float cost[kDims][kPadded];  // of each value
    int code[kDims];             // of the nearest value to each weight
    float rest[kDims + 1];       // the least that the weights from here on cost
    float least;
    int found;
  };

  struct TurnSearch {
    const InTurn& turn;
    float lost[kDims];
    unsigned signs;
    Chosen best;
  };

  // A node of points in order, which agree in the first `level` codes, behind `count` others. Returns how
  // many there are with it and all below it.
  int grow(int level, const std::uint16_t* first, const std::uint16_t* last, int count) {
    const int node = count++;
    while (first < last) {
      const int code = codes_[*first][level];
      const auto* next = first;
      while (next < last && codes_[*next][level] == code) ++next;
      nodes_[node].children[code] = static_cast<std::uint16_t>(level == kDims - 1 ? *first + 1 : count);
      if (level < kDims - 1) count = grow(level + 1, first, next, count);
      first = next;
    }
    return count;
  }

  // Numbers from the nearest outwards, as long as `visit` wants more: first ... last, of which `nearest` is
  // the nearest. cost: of a number, in the order that they have on each side; visit(number, cost).
  template <class Cost, class Visit>
  static void outwards(int first, int nearest, int last, Cost cost, Visit visit) {
    int below = nearest - 1, above = nearest;
    float cost_below = below >= first ? cost(below) : HUGE_VALF, cost_above = cost(above);
    for (;;) {
      const bool up = cost_above <= cost_below;
      if (!visit(up ? above : below, up ? cost_above : cost_below)) return;
      if (up) {
        cost_above = ++above <= last ? cost(above) : HUGE_VALF;
      } else {
        cost_below = --below >= first ? cost(below) : HUGE_VALF;
      }
    }
  }

  template <int kLevel>
  void descend(int node, float so_far, Search* search) const {
    if constexpr (kLevel == kDims) {
      search->least = so_far;
      search->found = node - 1;
    } else {
      const auto cost = [&](int code) { return so_far + search->cost[kLevel][code]; };
      outwards(0, search->code[kLevel], kValues - 1, cost, [&](int code, float sum) {
        if (!(sum + search->rest[kLevel + 1] < search->least)) return false;
        const int child = nodes_[node].children[code];
        if (child != 0) descend<kLevel + 1>(child, sum, search);
        return true;
      });
    }
  }

  template <int kLevel>
  void descend_in_turn(int node, float so_far, TurnSearch* search) const {
    if constexpr (kLevel == kDims) {
      search->best = {node - 1, search->signs, so_far};
    } else {
      const InTurn& turn = search->turn;
      float x = turn.aims[kLevel];
      for (int k = 0; k < kLevel; ++k) x += search->lost[k] * turn.owed[k][kLevel];
      const unsigned signs = search->signs;
      // Values of both signs lie on one line: -kValues is the least of all, kValues - 1 the largest.
      const auto value = [&](int number) { return number < 0 ? -values_[-1 - number] : values_[number]; };
      const auto cost = [&](int number) {
        const float off = x - value(number);
        return so_far + turn.importance[kLevel] * off * off;
      };
      int code = 0;
      for (const float border : borders_) code += std::fabs(x) > border;
      outwards(-kValues, x < 0 ? -1 - code : code, kValues - 1, cost, [&](int number, float sum) {
        if (!(sum < search->best.cost)) return false;
        const int child = nodes_[node].children[number < 0 ? -1 - number : number];
        if (child == 0) return true;
        search->signs = signs | (number < 0 ? 1u << kLevel : 0u);
        if (kLevel == kDims - 1 && turn.parity != kAny && __builtin_parity(search->signs) != turn.parity)
          return true;
        search->lost[kLevel] = turn.weights[kLevel] - value(number);
        descend_in_turn<kLevel + 1>(child, sum, search);
        return true;
      });
    }
  }

  float values_[kPadded] = {}, borders_[kValues - 1];
  float steps_[kDims];  // between cells that differ by one value of a weight
  float points_[kCount][kDims];
  std::uint8_t codes_[kCount][kDims];
  Node nodes_[kCount * (kDims - 1) + 1] = {};
  // By the nearest values to the weights of a point, the point that is nearest to these; kSame: is these.
  std::uint16_t near_[kCells];
};

}  // namespace moeinf
