// The draw of a token, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <limits>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "moeinf/sampling/draw.h"

namespace nb = nanobind;

namespace moeinf {

void bind_sampling(nb::module_& m) {
  using Scores = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def(
      "draw_token",
      [](const Scores& scores, double temperature, float top_p, float min_p, double uniform,
         const std::string& isa) {
        constexpr double kMost = std::numeric_limits<float>::max();
        require(temperature > 0 && temperature <= kMost, "the temperature is no finite number above 0");
        return draw_token(ops_for(isa), scores, {static_cast<float>(temperature), top_p, min_p, uniform});
      },
      nb::arg("scores").noconvert(), nb::arg("temperature"), nb::arg("top_p"), nb::arg("min_p"),
      nb::arg("uniform"), nb::kw_only(), nb::arg("isa") = "",
      "The index of the score that `uniform`, from 0 to 1, falls on. Raises ValueError.");
}

}  // namespace moeinf
