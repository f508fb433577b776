// The router of a MoE layer, and norms, for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/router.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "arrays.h"
#include "bindings.h"
#include "compute/matrix.h"
#include "compute/pass.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::require;
using moeinf::Rows;
using moeinf::size;
using moeinf::Vector;
using Ids = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

class RouterLayer {
 public:
  RouterLayer(nb::object kernels, nb::object gate, moeinf::OptionalVector norm, double norm_eps,
              std::int64_t top_k, bool normalise)
      : kernels_object_(kernels), gate_(gate), norm_(norm), kernels_(nb::cast<Kernels*>(kernels)) {
    const moeinf::Matrix matrix = nb::cast<const BoundMatrix&>(gate).view();
    require(!norm || has_shape(*norm, matrix.cols), "the norm is of another width than the router");
    require(top_k >= 1 && top_k <= matrix.rows, "top_k is beyond the number of experts");
    router_ = {moeinf::data_of(norm_), static_cast<float>(norm_eps), matrix, top_k, normalise};
  }

  void run(ConstRows x, Rows hidden, Ids ids, Rows weights, std::optional<Ids> spare_ids,
           std::optional<Rows> spare_weights) {
    const std::int64_t tokens = size(x, 0), k = router_.top_k, width = router_.gate.cols;
    const std::int64_t count = spare_ids ? size(*spare_ids, 1) : 0;
    require(spare_ids.has_value() == spare_weights.has_value() && count <= router_.gate.rows - k &&
                (!spare_ids ||
                 (has_shape(*spare_ids, tokens, count) && has_shape(*spare_weights, tokens, count))),
            "the router's spares are [tokens, number], of the experts that are not chosen");
    require(has_shape(x, tokens, width) && has_shape(hidden, tokens, width) && has_shape(ids, tokens, k) &&
                has_shape(weights, tokens, k),
            "the router's arrays are [tokens, hidden] and [tokens, top_k]");
    const moeinf::GilRelease released;
    moeinf::route(*kernels_, router_, moeinf::rows_of(x), hidden.data(), ids.data(), weights.data(),
                  {count, moeinf::data_of(spare_ids), moeinf::data_of(spare_weights)});
  }

  static std::size_t workspace_bytes(std::int64_t hidden, std::int64_t num_experts, nb::handle pass) {
    const moeinf::PassShape most = moeinf::pass_of(pass);
    moeinf::require_room(most, {hidden, num_experts});
    return moeinf::router_workspace_bytes(hidden, num_experts, most);
  }

 private:
  nb::object kernels_object_, gate_;
  moeinf::OptionalVector norm_;
  Kernels* kernels_;
  moeinf::RouterWeights router_{};
};

void norm_rows(Kernels& kernels, ConstRows x, Vector weight, double eps, Rows out) {
  const std::int64_t tokens = size(x, 0), width = size(x, 1);
  require(width > 0 && has_shape(weight, width) && has_shape(out, tokens, width),
          "rms_norm's arrays are of different widths");
  const moeinf::GilRelease released;
  moeinf::rms_norm(kernels, moeinf::rows_of(x), weight.data(), static_cast<float>(eps), out.data());
}

bool all_finite(const nb::ndarray<const float, nb::c_contig, nb::device::cpu>& numbers) {
  return std::all_of(numbers.data(), numbers.data() + numbers.size(),
                     [](float number) { return std::isfinite(number); });
}

void layer_norm_rows(Kernels& kernels, ConstRows x, Vector weight, Vector bias, double eps, Rows out) {
  const std::int64_t tokens = size(x, 0), width = size(x, 1);
  require(width > 0 && has_shape(weight, width) && has_shape(bias, width) && has_shape(out, tokens, width),
          "layer_norm's arrays are of different widths");
  const moeinf::GilRelease released;
  moeinf::layer_norm(kernels, moeinf::rows_of(x), weight.data(), bias.data(), static_cast<float>(eps),
                     out.data());
}

}  // namespace

void moeinf::bind_router(nb::module_& m) {
  nb::class_<RouterLayer>(m, "RouterLayer", "Norm and softmax router of one MoE layer.")
      .def(nb::init<nb::object, nb::object, moeinf::OptionalVector, double, std::int64_t, bool>(),
           nb::arg("kernels"), nb::arg("gate"), nb::arg("norm").noconvert().none(), nb::arg("norm_eps"),
           nb::arg("top_k"), nb::arg("normalise"))
      .def("run", &RouterLayer::run, nb::arg("x").noconvert(), nb::arg("hidden").noconvert(),
           nb::arg("ids").noconvert(), nb::arg("weights").noconvert(),
           nb::arg("spare_ids").noconvert().none() = nb::none(),
           nb::arg("spare_weights").noconvert().none() = nb::none(),
           "Writes norm(x), the chosen experts, largest weight first, and their weights; and the same of "
           "those "
           "that come behind them.")
      .def_static("workspace_bytes", &RouterLayer::workspace_bytes, nb::arg("hidden"), nb::arg("num_experts"),
                  nb::arg("shape"));
  m.def("rms_norm", &norm_rows, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
        nb::arg("eps"), nb::arg("out").noconvert());
  m.def("all_finite", &all_finite, nb::arg("numbers"));
  m.def("layer_norm", &layer_norm_rows, nb::arg("kernels"), nb::arg("x").noconvert(),
        nb::arg("weight").noconvert(), nb::arg("bias").noconvert(), nb::arg("eps"),
        nb::arg("out").noconvert());
}
