// Streams of hyper-connections and scaled sums, for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/streams.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstdint>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::OptionalRows;
using moeinf::require;
using moeinf::Rows;
using moeinf::Vector;

// Of x [tokens, count * hidden], and numbers [tokens, count].
moeinf::StreamsShape shape_of(std::int64_t tokens, std::int64_t width, ConstRows numbers) {
  const std::int64_t count = moeinf::size(numbers, 1);
  require(count > 0 && count <= moeinf::kMostStreams, "there are no streams, or more than 64");
  require(width > 0 && width % count == 0 && moeinf::size(numbers, 0) == tokens,
          "streams and numbers do not fit");
  return {tokens, count, width / count};
}

void weigh(Kernels& kernels, ConstRows x, ConstRows shares, Rows out) {
  const moeinf::StreamsShape shape = shape_of(moeinf::size(x, 0), moeinf::size(x, 1), shares);
  require(has_shape(out, shape.tokens, shape.hidden), "results are [tokens, hidden]");
  const moeinf::GilRelease released;
  moeinf::weigh_streams(kernels, shape, x.data(), shares.data(), out.data());
}

void mix(Kernels& kernels, Rows x, ConstRows added, ConstRows after, OptionalRows mixing) {
  const moeinf::StreamsShape shape = shape_of(moeinf::size(x, 0), moeinf::size(x, 1), after);
  require(has_shape(added, shape.tokens, shape.hidden), "what is added is [tokens, hidden]");
  require(!mixing || has_shape(*mixing, shape.tokens, shape.count * shape.count),
          "mixing is [tokens, streams * streams]");
  const moeinf::GilRelease released;
  moeinf::mix_streams(kernels, shape, x.data(), added.data(), after.data(),
                      mixing ? mixing->data() : nullptr);
}

void add(Kernels& kernels, Rows x, ConstRows added, Vector by, Vector keep, Vector shift) {
  const std::int64_t rows = moeinf::size(x, 0), width = moeinf::size(x, 1);
  require(has_shape(added, rows, width), "what is added is of the same size");
  require(has_shape(by, width) && has_shape(keep, width) && has_shape(shift, width),
          "there is a scale and a shift for each column");
  const moeinf::GilRelease released;
  moeinf::add_scaled(kernels, {rows, width, x.data(), added.data(), by.data(), keep.data(), shift.data()});
}

}  // namespace

void moeinf::bind_streams(nb::module_& m) {
  m.def("weigh_streams", &weigh, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("shares").noconvert(),
        nb::arg("out").noconvert(), "Writes out [tokens, hidden].");
  m.def("mix_streams", &mix, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("added").noconvert(),
        nb::arg("after").noconvert(), nb::arg("mixing").noconvert() = nb::none(), "Writes x.");
  m.def("add_scaled", &add, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("added").noconvert(),
        nb::arg("by").noconvert(), nb::arg("keep").noconvert(), nb::arg("shift").noconvert(), "Writes x.");
}
