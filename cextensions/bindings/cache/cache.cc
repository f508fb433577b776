// The table of slots and the cache of experts for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "cache/expert_cache.h"
#include "policy/next_use_scores.h"
#include "vectors.h"

namespace nb = nanobind;
using moeinf::BoundExpertCache;
using moeinf::BoundSlotTable;
using moeinf::ExpertCache;
using moeinf::Keys;
using moeinf::SlotTable;

namespace {

using Counts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple as_tuple(ExpertCache::Groups groups) {
  return nb::make_tuple(std::move(groups.absent), std::move(groups.loading), std::move(groups.resident));
}

nb::tuple begin_layer(BoundExpertCache& cache, std::int64_t layer, const Keys& keys, const Counts& counts,
                      bool many) {
  // Of experts in slices a count is of all slices.
  if (counts.size() > 0 && keys.size() % counts.size() != 0)
    throw std::invalid_argument("counts are one for each expert");
  const std::vector<std::int64_t> of_each(counts.data(), counts.data() + counts.size());
  for (const std::int64_t count : of_each) moeinf::times({count});
  ExpertCache::Groups groups =
      cache.core().begin_layer(layer, keys, of_each, many ? moeinf::Tokens::kMany : moeinf::Tokens::kOne);
  cache.flush();
  return as_tuple(std::move(groups));
}

Keys make_room(BoundExpertCache& cache, const Keys& keys, const Keys& also_held, bool at_any_cost) {
  const auto leaving = at_any_cost ? moeinf::Leaving::kReservedToo : moeinf::Leaving::kUnreserved;
  Keys chosen = cache.core().make_room(keys, leaving, also_held);
  cache.flush();
  return chosen;
}

std::int64_t release(BoundExpertCache& cache, const Keys& keys) {
  const std::int64_t wasted = cache.core().release(keys);
  cache.flush();
  return wasted;
}

void take_over(BoundExpertCache& cache, const Numbers& numbers) { cache.core().renumber(numbers); }

std::vector<std::int64_t> by_class(const SlotTable& table,
                                   std::int64_t (SlotTable::*count)(std::size_t) const) {
  std::vector<std::int64_t> counts;
  for (std::size_t each = 0; each < table.num_classes(); ++each) counts.push_back((table.*count)(each));
  return counts;
}

void bind_table(nb::module_& m) {
  nb::class_<BoundSlotTable>(m, "SlotTable")
      .def(nb::init<std::int64_t, std::vector<std::int64_t>, const moeinf::SizeClasses&,
                    const moeinf::SizeClasses&, moeinf::WrittenStates, moeinf::WrittenOffsets>(),
           nb::arg("first_offset"), nb::arg("class_bytes"), nb::arg("of_slots"), nb::arg("of_keys"),
           nb::arg("states").noconvert(), nb::arg("offsets").noconvert())
      .def_prop_ro("num_slots", [](BoundSlotTable& table) { return table.core().num_slots(); })
      .def_prop_ro("num_free", [](BoundSlotTable& table) { return table.core().num_free(); })
      .def_prop_ro("num_resident", [](BoundSlotTable& table) { return table.core().num_resident(); })
      .def_prop_ro("num_loading", [](BoundSlotTable& table) { return table.core().num_loading(); })
      .def_prop_ro("total_experts", [](BoundSlotTable& table) { return table.core().total_experts(); })
      .def_prop_ro("all_resident", [](BoundSlotTable& table) { return table.core().all_resident(); })
      .def_prop_ro("end_offset", [](BoundSlotTable& table) { return table.core().end_offset(); })
      .def_prop_ro("num_classes", [](BoundSlotTable& table) { return table.core().num_classes(); })
      .def("slots_by_class",
           [](BoundSlotTable& table) { return by_class(table.core(), &SlotTable::slots_of); })
      .def("free_by_class", [](BoundSlotTable& table) { return by_class(table.core(), &SlotTable::free_of); })
      .def("free_offsets", [](BoundSlotTable& table) { return table.core().free_offsets(); })
      .def(
          "assign", [](BoundSlotTable& table, const Keys& keys) { return table.core().assign(keys); },
          nb::arg("keys"))
      .def(
          "land", [](BoundSlotTable& table, const Keys& keys) { table.core().land(keys); }, nb::arg("keys"))
      .def("loading", [](BoundSlotTable& table) { return table.core().loading(); })
      .def(
          "limit", [](BoundSlotTable& table, std::int64_t slots) { table.core().limit(slots); },
          nb::arg("num_slots"))
      .def("count", [](BoundSlotTable& table) { table.core().count(); });
}

void bind_expert_cache(nb::module_& m) {
  using Cache = BoundExpertCache;
  nb::class_<Cache>(m, "ExpertCache")
      .def(nb::init<BoundSlotTable&, std::int64_t, std::int64_t, nb::object, nb::object>(), nb::arg("table"),
           nb::arg("num_layers"), nb::arg("num_experts"), nb::arg("policy"), nb::arg("stats"),
           nb::keep_alive<1, 2>())
      .def_prop_ro("layer", [](Cache& cache) { return cache.core().layer(); })
      .def_prop_ro("num_pinned", [](Cache& cache) { return cache.core().pinned().size(); })
      .def_prop_ro("num_reserved", [](Cache& cache) { return cache.core().reserved().size(); })
      .def("pinned", [](Cache& cache) { return cache.core().pinned().ascending(); })
      .def("reserved", [](Cache& cache) { return cache.core().reserved().ascending(); })
      .def("unused", [](Cache& cache) { return cache.core().unused().ascending(); })
      .def(
          "by_state", [](Cache& cache, const Keys& keys) { return as_tuple(cache.core().by_state(keys)); },
          nb::arg("keys"))
      .def("begin_layer", &begin_layer, nb::arg("layer"), nb::arg("keys"), nb::arg("counts"), nb::kw_only(),
           nb::arg("many"))
      .def("end_reservations", [](Cache& cache) { return cache.core().end_reservations(); })
      .def(
          "share", [](Cache& cache, bool shared) { cache.core().share(shared); }, nb::arg("shared"))
      .def(
          "pin", [](Cache& cache, const Keys& keys) { cache.core().pin(keys); }, nb::arg("keys"))
      .def(
          "unpin", [](Cache& cache, const Keys& keys) { cache.core().unpin(keys); }, nb::arg("keys"))
      .def(
          "reserve",
          [](Cache& cache, const Keys& keys, bool prefetched) {
            prefetched ? cache.core().reserve_prefetched(keys) : cache.core().reserve(keys);
          },
          nb::arg("keys"), nb::kw_only(), nb::arg("prefetched"))
      .def("let_go", [](Cache& cache) { cache.core().let_go(); })
      .def("make_room", &make_room, nb::arg("keys"), nb::kw_only(), nb::arg("also_held") = Keys(),
           nb::arg("at_any_cost") = false)
      .def("release", &release, nb::arg("keys"))
      .def("take_over", &take_over, nb::arg("numbers"));
}

}  // namespace

moeinf::BoundExpertCache::BoundExpertCache(BoundSlotTable& table, std::int64_t num_layers,
                                           std::int64_t num_experts, nb::object policy, nb::object stats)
    : policy_(std::move(policy)),
      native_object_(nb::getattr(policy_, "native", nb::none())),
      native_(nb::cast<BoundNextUseScores*>(native_object_)),
      stats_(std::move(stats)),
      cache_(table.core(), num_layers, num_experts, [this](std::int64_t layer) { return scores(layer); }) {
  if (native_ != nullptr &&
      (native_->core().num_layers() != num_layers || native_->core().num_experts() != num_experts))
    throw std::invalid_argument("the policy's scores are of another model");
}

const double* moeinf::BoundExpertCache::scores(std::int64_t layer) {
  if (native_ != nullptr) return native_->core().keep_scores(layer);
  last_ = nb::cast<Scores>(policy_.attr("keep_scores")(layer));
  if (last_.size() != cache_.table().num_keys()) throw std::invalid_argument("scores are one a key");
  return last_.data();
}

void moeinf::BoundExpertCache::add(const char* name, std::int64_t& count) {
  if (count != 0) stats_.attr(name) = stats_.attr(name) + nb::int_(count);
  count = 0;
}

void moeinf::BoundExpertCache::flush() {
  CacheCounts& counts = cache_.counts();
  add("hits", counts.hits);
  add("misses", counts.misses);
  add("late_hits", counts.late_hits);
  add("prefetches", counts.prefetches);
  add("prefetches_used", counts.prefetches_used);
  add("prefetches_wasted", counts.prefetches_wasted);
  add("demand_reads", counts.demand_reads);
  add("demand_bytes", counts.demand_bytes);
  add("prefetch_bytes", counts.prefetch_bytes);
}

void moeinf::bind_cache(nb::module_& m) {
  bind_table(m);
  bind_expert_cache(m);
}
