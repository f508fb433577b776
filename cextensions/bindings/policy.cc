// What an eviction policy learns, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "arrays.h"
#include "bindings.h"
#include "moeinf/policy/use_model.h"

namespace nb = nanobind;

namespace {

using moeinf::require;
using moeinf::UseModel;
using Ids = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<nb::numpy, const double, nb::ndim<2>>;

void observe(UseModel& model, std::int64_t layer, const Ids& ids) {
  require(layer >= 0 && layer < model.num_layers(), "there is no such layer");
  require(ids.shape(0) > 0 && static_cast<std::int64_t>(ids.shape(1)) == model.top_k(),
          "the routing is [tokens, top_k]");
  for (std::size_t i = 0; i < ids.size(); ++i)
    require(ids.data()[i] >= 0 && ids.data()[i] < model.num_experts(), "there is no such expert");
  model.observe(layer, ids.data(), static_cast<std::int64_t>(ids.shape(0)));
}

Table table(UseModel& model, const double* data) {
  const auto rows = static_cast<std::size_t>(model.num_layers());
  const auto columns = static_cast<std::size_t>(model.num_experts());
  return Table(data, {rows, columns}, nb::find(model));  // the array keeps the model alive
}

}  // namespace

void moeinf::bind_policy(nb::module_& m) {
  nb::class_<UseModel>(m, "UseModel")
      .def(nb::init<std::int64_t, std::int64_t, std::int64_t>(), nb::arg("num_layers"),
           nb::arg("num_experts"), nb::arg("top_k"))
      .def("observe", &observe, nb::arg("layer"), nb::arg("ids"))
      .def_prop_ro("no_use", [](UseModel& model) { return table(model, model.no_use()); })
      .def_prop_ro("wait", [](UseModel& model) { return table(model, model.wait()); })
      .def_static("num_bytes", &UseModel::num_bytes, nb::arg("num_layers"), nb::arg("num_experts"));
}
