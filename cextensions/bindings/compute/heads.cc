// Attention of heads that a model makes itself, for Python. The GIL is released while anything is computed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "compute/kept.h"
#include "gil.h"
#include "moeinf/compute/layers/attention.h"
#include "moeinf/compute/layers/shared_rows.h"
#include "moeinf/compute/layers/turn_heads.h"

namespace nb = nanobind;

namespace {

using moeinf::Bytes;
using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::OptionalRows;
using moeinf::require;
using moeinf::Rows;

class HeadsLayer {
 public:
  HeadsLayer(nb::object kernels, std::int64_t num_heads, std::int64_t num_kv_heads, std::int64_t head_dim,
             std::int64_t window, std::int64_t rotary_dim, bool interleaved, double scale,
             OptionalRows profiles)
      : kernels_object_(kernels), kernels_(nb::cast<Kernels*>(kernels)), profiles_(std::move(profiles)) {
    moeinf::times({num_heads, head_dim, num_kv_heads});
    moeinf::times({window});
    require(num_kv_heads > 0 && num_heads > 0 && num_heads % num_kv_heads == 0, "heads cannot share keys");
    require(head_dim > 0 && head_dim <= moeinf::kMaxHeadDim && head_dim % 2 == 0,
            "head_dim is odd or too large");
    require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim,
            "rotary_dim is odd, negative or beyond head_dim");
    require(scale > 0 && window >= 0, "the scale of the scores is not positive, or the window negative");
    shape_.num_heads = num_heads;
    shape_.num_kv_heads = num_kv_heads;
    shape_.head_dim = head_dim;
    shape_.window = window;
    shape_.rotary_pairs = rotary_dim / 2;
    shape_.pairs = moeinf::pairs_of(interleaved);
    shape_.scale = static_cast<float>(scale);
  }

  void run(Rows queries, Rows keys, ConstRows values, Bytes kept_keys, Bytes kept_values,
           const std::string& format, std::int64_t capacity, std::int64_t length, ConstRows cos,
           ConstRows sin, Rows out, OptionalRows relative, OptionalRows sinks) {
    const auto tokens = static_cast<std::int64_t>(queries.shape(0));
    const std::int64_t of_queries = shape_.num_heads * shape_.head_dim,
                       of_keys = shape_.num_kv_heads * shape_.head_dim;
    require(tokens > 0 && has_shape(queries, tokens, of_queries) && has_shape(out, tokens, of_queries) &&
                has_shape(keys, tokens, of_keys) && has_shape(values, tokens, of_keys),
            "queries, keys, values or results are of another width than the layer's");
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    require(relative.has_value() == profiles_.has_value(), "states and profiles of distances go together");
    require(!sinks || has_shape(*sinks, tokens, shape_.num_heads), "each head of each token has one sink");
    moeinf::GivenHeads heads{queries.data(), keys.data(), values.data(), {}};
    if (relative) {
      const auto width = static_cast<std::int64_t>(profiles_->shape(0));
      require(has_shape(*relative, tokens, shape_.num_heads * width), "states are [tokens, heads * width]");
      heads.own.relative = {relative->data(), profiles_->data(), width,
                            static_cast<std::int64_t>(profiles_->shape(1))};
    }
    if (sinks) heads.own.sinks = sinks->data();
    const moeinf::KVView kv =
        moeinf::kept_view(shape_, kept_keys, kept_values, format, capacity, length, tokens);
    const moeinf::GilRelease released;
    moeinf::attend_given(*kernels_, shape_, heads, kv, length, turns, moeinf::rows_of(out));
  }

 private:
  nb::object kernels_object_;
  Kernels* kernels_;
  OptionalRows profiles_;
  moeinf::AttentionShape shape_{};
};

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Quadruples = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Whether first.. and so many behind it are rows of an array of so many.
bool within(std::int64_t first, std::int64_t count, std::int64_t rows) {
  return first >= 0 && count >= 0 && first <= rows && count <= rows - first;
}

void give_shared_rows(Kernels& kernels, ConstRows queries, ConstRows window, ConstRows others,
                      Quadruples seen, Numbers picked, double scale, moeinf::Vector sinks, Rows out) {
  const std::int64_t tokens = moeinf::size(queries, 0), head_dim = moeinf::size(window, 1),
                     num_heads = moeinf::size(sinks, 0), num_others = moeinf::size(others, 0);
  const std::int64_t width = moeinf::times({num_heads, head_dim});
  require(
      num_heads > 0 && head_dim > 0 && head_dim <= moeinf::kMaxHeadDim && moeinf::size(others, 1) >= head_dim,
      "rows are of no width, or of too large a one");
  require(has_shape(queries, tokens, width) && has_shape(out, tokens, width) && has_shape(seen, tokens, 4),
          "queries, results or what is seen are of other sizes than rows and sinks say");
  require(scale > 0, "the scale of the scores is not positive");
  for (std::size_t i = 0; i < picked.shape(0); ++i)
    require(picked.data()[i] >= 0 && picked.data()[i] < num_others, "a row is picked that is not there");
  std::vector<moeinf::SeenRows> rows(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::int64_t *const s = seen.data() + t * 4, first = s[0], count = s[1], at = s[2], behind = s[3];
    require(within(first, count, moeinf::size(window, 0)) &&
                within(at < 0 ? 0 : at, behind, at < 0 ? num_others : moeinf::size(picked, 0)) &&
                count + behind > 0,
            "a token sees rows that are not there, or none");
    rows[static_cast<std::size_t>(t)] = {first, count, at < 0 ? nullptr : picked.data() + at, behind};
  }
  const moeinf::SharedRowsShape shape{num_heads, head_dim, static_cast<float>(scale), sinks.data()};
  const moeinf::GilRelease released;
  moeinf::attend_shared_rows(kernels, shape, window.data(), moeinf::rows_of(others), rows, queries.data(),
                             out.data());
}

void turn(Kernels& kernels, ConstRows x, ConstRows cos, ConstRows sin, std::int64_t head_dim,
          std::int64_t first, bool interleaved, Rows out) {
  const std::int64_t tokens = moeinf::size(x, 0), width = moeinf::size(x, 1), pairs = moeinf::size(cos, 1);
  require(head_dim > 0 && width % head_dim == 0, "x is no whole number of heads");
  require(within(first, moeinf::times({2, pairs}), head_dim), "what is turned lies beyond a head");
  require(has_shape(cos, tokens, pairs) && has_shape(sin, tokens, pairs) && has_shape(out, tokens, width),
          "angles or results are of other sizes than x");
  const moeinf::TurnedShape shape{tokens, width / head_dim, head_dim, first, pairs, interleaved};
  const moeinf::GilRelease released;
  moeinf::turn_heads(kernels, shape, x.data(), cos.data(), sin.data(), out.data());
}

}  // namespace

void moeinf::bind_heads(nb::module_& m) {
  m.def("turn_heads", &turn, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("cos").noconvert(),
        nb::arg("sin").noconvert(), nb::arg("head_dim"), nb::arg("first"), nb::arg("interleaved"),
        nb::arg("out").noconvert(), "Writes out [tokens, heads * head_dim].");
  m.def("attend_shared_rows", &give_shared_rows, nb::arg("kernels"), nb::arg("queries").noconvert(),
        nb::arg("window").noconvert(), nb::arg("others").noconvert(), nb::arg("seen").noconvert(),
        nb::arg("picked").noconvert(), nb::arg("scale"), nb::arg("sinks").noconvert(),
        nb::arg("out").noconvert(), "Writes out [tokens, heads * head_dim].");
  nb::class_<HeadsLayer>(m, "HeadsLayer", "Attention of heads that a model makes itself.")
      .def(nb::init<nb::object, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool,
                    double, OptionalRows>(),
           nb::arg("kernels"), nb::kw_only(), nb::arg("num_heads"), nb::arg("num_kv_heads"),
           nb::arg("head_dim"), nb::arg("window"), nb::arg("rotary_dim"), nb::arg("interleaved"),
           nb::arg("scale"), nb::arg("profiles").noconvert() = nb::none())
      .def("run", &HeadsLayer::run, nb::arg("queries").noconvert(), nb::arg("keys").noconvert(),
           nb::arg("values").noconvert(), nb::arg("kept_keys").noconvert(),
           nb::arg("kept_values").noconvert(), nb::arg("format"), nb::arg("capacity"), nb::arg("length"),
           nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("out").noconvert(),
           nb::arg("relative").noconvert() = nb::none(), nb::arg("sinks").noconvert() = nb::none(),
           "Writes out [tokens, heads * head_dim]; stores keys and values behind `length` others.");
}
