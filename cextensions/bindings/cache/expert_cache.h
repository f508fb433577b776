// moeinf._native.SlotTable and ExpertCache: the cache of experts with the arrays, policy and counters of
// Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "moeinf/cache/expert_cache.h"
#include "moeinf/cache/slot_table.h"
#include "policy/next_use_scores.h"

namespace moeinf {

template <typename T>
using Written = nanobind::ndarray<T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using WrittenStates = Written<std::uint8_t>;
using WrittenOffsets = Written<std::int64_t>;

using SizeClasses =
    nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The table with the arrays that it writes into.
class BoundSlotTable {
 public:
  BoundSlotTable(std::int64_t first_offset, std::vector<std::int64_t> class_bytes,
                 const SizeClasses& of_slots, const SizeClasses& of_keys, WrittenStates states,
                 WrittenOffsets offsets)
      : states_(std::move(states)),
        offsets_(std::move(offsets)),
        table_(first_offset, {std::move(class_bytes), copied(of_slots), copied(of_keys)}, states_, offsets_) {
  }

  SlotTable& core() { return table_; }

 private:
  static std::vector<std::uint8_t> copied(const SizeClasses& classes) {
    return {classes.data(), classes.data() + classes.shape(0)};
  }

  WrittenStates states_;
  WrittenOffsets offsets_;
  SlotTable table_;
};

// The cache with the policy that scores for it, and the counters that it counts into.
class BoundExpertCache {
 public:
  // policy: has keep_scores(layer), a float64 a key; as `native`, where it has it, NextUseScores of the same.
  // stats: moeinf.runtime.cache.stats.CacheStats.
  BoundExpertCache(BoundSlotTable& table, std::int64_t num_layers, std::int64_t num_experts,
                   nanobind::object policy, nanobind::object stats);
  BoundExpertCache(const BoundExpertCache&) = delete;  // the core holds on to this

  ExpertCache& core() { return cache_; }
  const nanobind::object& stats() const { return stats_; }
  // Adds to the counters what was counted since the last call.
  void flush();

 private:
  using Scores = nanobind::ndarray<const double, nanobind::c_contig, nanobind::device::cpu>;

  const double* scores(std::int64_t layer);
  void add(const char* name, std::int64_t& count);  // which is 0 afterwards

  nanobind::object policy_;
  nanobind::object native_object_;  // of the policy, or none
  BoundNextUseScores* native_;      // that, or null
  nanobind::object stats_;
  Scores last_;  // keeps the scores where they are until the next
  ExpertCache cache_;
};

}  // namespace moeinf
