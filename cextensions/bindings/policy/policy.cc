// What an eviction policy learns, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"
#include "moeinf/policy/prefetch_rank.h"
#include "moeinf/policy/replayed_hits.h"
#include "moeinf/policy/substitutes.h"
#include "moeinf/policy/tuned_use.h"
#include "moeinf/policy/use_model.h"
#include "policy/next_use_scores.h"
#include "vectors.h"

namespace nb = nanobind;

namespace {

using moeinf::require;
using moeinf::UseModel;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<nb::numpy, const double, nb::ndim<2>>;

template <typename Model>
void observe(Model& model, std::int64_t layer, const Ids& ids) {
  require(layer >= 0 && layer < model.num_layers(), "there is no such layer");
  require(ids.shape(0) > 0 && static_cast<std::int64_t>(ids.shape(1)) == model.top_k(),
          "the routing is [tokens, top_k]");
  for (std::size_t i = 0; i < ids.size(); ++i)
    require(ids.data()[i] >= 0 && ids.data()[i] < model.num_experts(), "there is no such expert");
  model.observe(layer, ids.data(), static_cast<std::int64_t>(ids.shape(0)));
}

// The array keeps its owner alive.
template <typename Model>
Table table(const Model& model, const double* data, const nb::handle& owner) {
  const auto rows = static_cast<std::size_t>(model.num_layers());
  const auto columns = static_cast<std::size_t>(model.num_experts());
  return Table(data, {rows, columns}, owner);
}
template <typename Model>
Table table(Model& model, const double* data) {
  return table(model, data, nb::find(model));
}

using Weights = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

std::vector<float> copied(const Weights& weights) {
  return {weights.data(), weights.data() + weights.size()};
}

void make_tuned(moeinf::TunedUse* made, std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k,
                std::int64_t width, const Weights& token, const Weights& own, const Weights& contexts,
                const Weights& bias, const Weights& hidden, const Weights& head, const Weights& head_bias,
                const Weights& direct) {
  require(width > 0, "the network has no width");
  moeinf::TunedWeights weights{width,         copied(token),  copied(own),  copied(contexts),
                               copied(bias),  copied(hidden), copied(head), copied(head_bias),
                               copied(direct)};
  new (made) moeinf::TunedUse(num_layers, num_experts, top_k, std::move(weights));
}

nb::ndarray<nb::numpy, const float, nb::ndim<2>> rows(moeinf::UseEvidence& evidence) {
  const auto columns = static_cast<std::size_t>(evidence.num_experts());
  return {evidence.rows(), {moeinf::UseEvidence::kRows, columns}, nb::find(evidence)};
}

void make_next_use(moeinf::BoundNextUseScores* made, const moeinf::UseTable& no_use,
                   const moeinf::UseTable& wait, std::int64_t encoder_layers, std::int64_t next_source) {
  require(no_use.shape(0) == wait.shape(0) && no_use.shape(1) == wait.shape(1) && no_use.size() > 0,
          "no_use and wait are [layers, experts]");
  require(encoder_layers >= 0 && encoder_layers <= static_cast<std::int64_t>(wait.shape(0)),
          "the encoder has no so many layers");
  moeinf::times({next_source, static_cast<std::int64_t>(wait.shape(0))});
  new (made) moeinf::BoundNextUseScores(no_use, wait, encoder_layers, next_source);
}

using Likelihood = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple ranked(const Likelihood& likelihood, std::int64_t num_layers, double eps, const States& states,
                 std::uint8_t absent, std::int64_t first_key, double at_least, std::int64_t count) {
  require(likelihood.shape(1) > 0, "the likelihoods are of no experts");
  require(first_key >= 0 && likelihood.size() + static_cast<std::size_t>(first_key) <= states.size(),
          "the likelihoods are of more layers than there are");
  moeinf::RankedPrefetches ranked = moeinf::rank_prefetches(
      likelihood.data(), static_cast<std::int64_t>(likelihood.shape(0)),
      static_cast<std::int64_t>(likelihood.shape(1)), num_layers, eps, states.data(), absent, first_key,
      at_least, static_cast<std::size_t>(std::max<std::int64_t>(0, count)));
  return nb::make_tuple(std::move(ranked.keys), std::move(ranked.priorities));
}

using Keys = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple replayed(const Keys& keys, const Keys& sizes, const Keys& resident, std::int64_t num_slots) {
  require(num_slots > 0, "a cache has a slot at least");
  std::vector<std::size_t> ends{0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = sizes.data()[i];
    require(size >= 0 && static_cast<std::size_t>(size) <= keys.size() - ends.back(),
            "the visits have more keys than there are");
    ends.push_back(ends.back() + static_cast<std::size_t>(size));
  }
  require(ends.back() == keys.size(), "the visits have fewer keys than there are");
  moeinf::ReplayedHits hits;
  {
    const moeinf::GilRelease released;
    hits = moeinf::replayed_hits(keys.data(), ends, resident.data(), resident.size(),
                                 static_cast<std::size_t>(num_slots));
  }
  return nb::make_tuple(hits.lru, hits.belady);
}

using Chosen = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

nb::tuple substituted(const States& states, std::int64_t slices, const Chosen& ids,
                      const moeinf::Rows& weights, const std::optional<Ids>& spare_ids,
                      const moeinf::OptionalRows& spare_weights, bool keeps_sum, double most_lost) {
  const std::int64_t tokens = moeinf::size(ids, 0), top_k = moeinf::size(ids, 1);
  require(slices > 0 && states.size() % static_cast<std::size_t>(slices) == 0,
          "experts have as many slices each");
  require(top_k > 0 && moeinf::has_shape(weights, tokens, top_k), "the routing is [tokens, top_k]");
  require(spare_ids.has_value() == spare_weights.has_value() &&
              (!spare_ids || (moeinf::size(*spare_ids, 0) == tokens &&
                              moeinf::has_shape(*spare_weights, tokens, moeinf::size(*spare_ids, 1)))),
          "the spares are [tokens, number]");
  require(most_lost >= 0 && most_lost < 1, "most_lost is a share, below 1");
  const moeinf::RowSpan<const std::int64_t> spares =
      spare_ids ? moeinf::rows_of(*spare_ids) : moeinf::RowSpan<const std::int64_t>{nullptr, tokens, 0};
  const moeinf::Substituted made = moeinf::substitute(
      {states.data(), states.size()}, slices,
      {moeinf::rows_of(ids), weights.data(), spares, moeinf::data_of(spare_weights), keeps_sum}, most_lost);
  std::copy(made.ids.begin(), made.ids.end(), ids.data());
  std::copy(made.weights.begin(), made.weights.end(), weights.data());
  return nb::make_tuple(made.instead, made.left_out);
}

}  // namespace

void moeinf::bind_policy(nb::module_& m) {
  m.def("rank_prefetches", &ranked, nb::arg("likelihood"), nb::kw_only(), nb::arg("num_layers"),
        nb::arg("eps"), nb::arg("states").noconvert(), nb::arg("absent"), nb::arg("first_key"),
        nb::arg("at_least"), nb::arg("count"),
        "Absent experts of the layers ahead, likeliest first: keys and priorities.");
  m.def("replayed_hits", &replayed, nb::arg("keys").noconvert(), nb::arg("sizes").noconvert(),
        nb::arg("resident").noconvert(), nb::arg("num_slots"),
        "Hits of LRU, and of the best possible cache, of a routing that has run.");
  m.def("substitute", &substituted, nb::arg("states").noconvert(), nb::arg("slices"),
        nb::arg("ids").noconvert(), nb::arg("weights").noconvert(), nb::arg("spare_ids").noconvert().none(),
        nb::arg("spare_weights").noconvert().none(), nb::kw_only(), nb::arg("keeps_sum"),
        nb::arg("most_lost"), "Changes a routing, so that fewer of its experts have to be read.");
  nb::class_<UseModel>(m, "UseModel")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), nb::arg("num_layers"),
           nb::arg("num_experts"), nb::arg("top_k"))
      .def("observe", &observe<UseModel>, nb::arg("layer"), nb::arg("ids"))
      .def("restart", &UseModel::restart)
      .def_prop_ro("no_use", [](UseModel& model) { return table(model, model.no_use()); })
      .def_prop_ro("wait", [](UseModel& model) { return table(model, model.wait()); })
      .def_static(
          "num_bytes",
          [](std::int64_t num_layers, std::int64_t num_experts) {
            moeinf::times({num_layers, num_experts, num_experts});
            return UseModel::num_bytes(num_layers, num_experts);
          },
          nb::arg("num_layers"), nb::arg("num_experts"));
  nb::class_<BoundNextUseScores>(m, "NextUseScores")
      .def("__init__", &make_next_use, nb::arg("no_use").noconvert(), nb::arg("wait").noconvert(),
           nb::kw_only(), nb::arg("encoder_layers"), nb::arg("next_source"))
      .def(
          "observed",
          [](BoundNextUseScores& scores, std::int64_t num_tokens) {
            scores.core().observed(moeinf::times({num_tokens}));
          },
          nb::arg("num_tokens"))
      .def(
          "keep_scores",
          [](BoundNextUseScores& scores, std::int64_t layer) {
            return table(scores.core(), scores.core().keep_scores(layer), nb::find(scores));
          },
          nb::arg("layer"));
  nb::class_<UseEvidence>(m, "UseEvidence")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), nb::arg("num_layers"),
           nb::arg("num_experts"), nb::arg("top_k"))
      .def("observe", &observe<UseEvidence>, nb::arg("layer"), nb::arg("ids"))
      .def("restart", &UseEvidence::restart)
      .def_prop_ro("rows", &rows);
  nb::class_<TunedUse>(m, "TunedUse")
      .def("__init__", &make_tuned, nb::arg("num_layers"), nb::arg("num_experts"), nb::arg("top_k"),
           nb::arg("width"), nb::kw_only(), nb::arg("token"), nb::arg("own"), nb::arg("contexts"),
           nb::arg("bias"), nb::arg("hidden"), nb::arg("head"), nb::arg("head_bias"), nb::arg("direct"))
      .def("observe", &observe<TunedUse>, nb::arg("layer"), nb::arg("ids"))
      .def("restart", &TunedUse::restart)
      .def_prop_ro("no_use", [](TunedUse& model) { return table(model, model.no_use()); })
      .def_prop_ro("wait", [](TunedUse& model) { return table(model, model.wait()); })
      .def_static(
          "num_bytes",
          [](std::int64_t num_layers, std::int64_t num_experts, std::int64_t top_k) {
            moeinf::times({num_layers, num_experts, std::max(num_experts, top_k)});
            return TunedUse::num_bytes(num_layers, num_experts, top_k);
          },
          nb::arg("num_layers"), nb::arg("num_experts"), nb::arg("top_k"));
}
