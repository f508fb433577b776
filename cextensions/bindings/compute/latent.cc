// The core of multi-head latent attention for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/latent.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "compute/kept.h"
#include "compute/matrix.h"
#include "compute/pass.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::Bytes;
using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::OptionalVector;
using moeinf::require;
using moeinf::Rows;
using Chosen = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Holds every array it was given, so the addresses stay good.
class LatentLayer {
 public:
  LatentLayer(nb::object kernels, nb::object keys_values, std::int64_t num_heads,
              std::int64_t qk_nope_head_dim, std::int64_t value_dim, std::int64_t rotary_dim,
              bool interleaved, double scale, OptionalVector sinks, std::int64_t window)
      : kernels_object_(kernels),
        matrix_object_(keys_values),
        kernels_(nb::cast<Kernels*>(kernels)),
        keys_values_(nb::cast<const BoundMatrix&>(keys_values).view()),
        shape_{num_heads,
               keys_values_.cols,
               qk_nope_head_dim,
               value_dim,
               rotary_dim / 2,
               moeinf::pairs_of(interleaved),
               static_cast<float>(scale)},
        sinks_(std::move(sinks)) {
    require(moeinf::block_weights(keys_values_.format) == 1,
            "what is multiplied by head is f32, f16 or bf16");
    moeinf::times({num_heads, rotary_dim});
    moeinf::times({window});
    require(num_heads > 0 && qk_nope_head_dim > 0 && value_dim > 0 &&
                keys_values_.rows ==
                    moeinf::times({num_heads, qk_nope_head_dim}) + moeinf::times({num_heads, value_dim}),
            "the rows of the matrix are not those of so many heads");
    require(rotary_dim >= 0 && rotary_dim % 2 == 0, "rotary_dim is odd or negative");
    require(!sinks_ || has_shape(*sinks_, num_heads), "each head has one sink");
    shape_.sinks = moeinf::data_of(sinks_);
    require(window >= 0, "the window is negative");
    shape_.window = window;
  }

  void store(ConstRows rows, Bytes cache, const std::string& format, std::int64_t length, ConstRows cos,
             ConstRows sin) {
    const auto tokens = static_cast<std::int64_t>(rows.shape(0));
    require(has_shape(rows, tokens, shape_.width()), "the rows are of another width than the layer's");
    const moeinf::LatentRows kept = checked(cache, format, length, tokens);
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    const moeinf::GilRelease released;
    moeinf::store_latents(*kernels_, shape_, kept, length, moeinf::rows_of(rows), turns);
  }

  void attend(ConstRows queries, Bytes cache, const std::string& format, std::int64_t length, ConstRows cos,
              ConstRows sin, Rows out) {
    const auto tokens = static_cast<std::int64_t>(queries.shape(0));
    require(has_shape(queries, tokens, shape_.num_heads * shape_.query_dim()) &&
                has_shape(out, tokens, shape_.num_heads * shape_.value_dim),
            "queries or results are of another width than the layer's");
    const moeinf::LatentRows kept = checked(cache, format, length, tokens);
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    const moeinf::GilRelease released;
    moeinf::attend_latents(*kernels_, shape_, keys_values_, kept, length, moeinf::rows_of(queries), turns,
                           moeinf::rows_of(out));
  }

  void attend_chosen(ConstRows queries, Bytes cache, const std::string& format, Chosen chosen, ConstRows cos,
                     ConstRows sin, Rows out) {
    const auto tokens = static_cast<std::int64_t>(queries.shape(0));
    require(has_shape(queries, tokens, shape_.num_heads * shape_.query_dim()) &&
                has_shape(out, tokens, shape_.num_heads * shape_.value_dim),
            "queries or results are of another width than the layer's");
    const moeinf::LatentRows kept = checked(cache, format, 0, 0);
    const auto rows =
        static_cast<std::int64_t>(cache.shape(0) / moeinf::row_bytes(kept.format, shape_.width()));
    require(moeinf::size(chosen, 0) == tokens && moeinf::size(chosen, 1) > 0,
            "each token has a row of what it chose");
    const moeinf::RowSpan<const std::int64_t> positions = moeinf::rows_of(chosen);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t *const of_token = positions.row(t), *const end = of_token + positions.cols;
      const auto* const behind = std::find_if(of_token, end, [](std::int64_t p) { return p < 0; });
      require(behind > of_token && std::all_of(of_token, behind, [=](std::int64_t p) { return p < rows; }) &&
                  std::all_of(behind, end, [](std::int64_t p) { return p == -1; }),
              "a token has chosen rows that are not there, or none");
    }
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    const moeinf::GilRelease released;
    moeinf::attend_chosen_latents(*kernels_, shape_, keys_values_, kept, positions, moeinf::rows_of(queries),
                                  turns, moeinf::rows_of(out));
  }

  // sizes: an object with the attributes of moeinf.types.LatentSizes.
  static std::size_t workspace_bytes(nb::handle sizes, nb::handle pass) {
    moeinf::LatentShape shape{};
    shape.num_heads = moeinf::number_of(sizes, "num_heads");
    require(shape.num_heads > 0, "a layer of latents has no heads");
    shape.rank = moeinf::number_of(sizes, "rank");
    shape.qk_nope_head_dim = moeinf::number_of(sizes, "qk_nope_head_dim");
    shape.value_dim = moeinf::number_of(sizes, "value_dim");
    shape.rotary_pairs = moeinf::number_of(sizes, "rotary_dim") / 2;
    const moeinf::PassShape most = moeinf::pass_of(pass);
    const std::int64_t width =
        std::max({shape.rank, shape.qk_nope_head_dim, shape.value_dim}) + 2 * shape.rotary_pairs;
    moeinf::require_room(most, {moeinf::times({shape.num_heads, width})});
    return moeinf::latent_workspace_bytes(shape, most, moeinf::number_of(sizes, "most_chosen"));
  }

 private:
  moeinf::LatentRows checked(const Bytes& cache, const std::string& format, std::int64_t length,
                             std::int64_t tokens) const {
    const moeinf::Format kind = moeinf::kept_format(format, {shape_.rank, 2 * shape_.rotary_pairs});
    require(moeinf::times({length}) == length && cache.shape(0) / moeinf::row_bytes(kind, shape_.width()) >=
                                                     static_cast<std::size_t>(length + tokens),
            "the cache is too small");
    return {cache.data(), kind};
  }

  nb::object kernels_object_, matrix_object_;
  Kernels* kernels_;
  moeinf::Matrix keys_values_;
  moeinf::LatentShape shape_;
  OptionalVector sinks_;
};

}  // namespace

void moeinf::bind_latent(nb::module_& m) {
  nb::class_<LatentLayer>(m, "LatentLayer", "The core of multi-head latent attention of one layer.")
      .def(nb::init<nb::object, nb::object, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool,
                    double, OptionalVector, std::int64_t>(),
           nb::arg("kernels"), nb::arg("keys_values"), nb::kw_only(), nb::arg("num_heads"),
           nb::arg("qk_nope_head_dim"), nb::arg("value_dim"), nb::arg("rotary_dim"), nb::arg("interleaved"),
           nb::arg("scale"), nb::arg("sinks").noconvert() = nb::none(), nb::arg("window") = 0)
      .def("store", &LatentLayer::store, nb::arg("rows").noconvert(), nb::arg("cache").noconvert(),
           nb::arg("format"), nb::arg("length"), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
           "Writes rows [tokens, rank + rotary_dim], their ends rotated, behind `length` others.")
      .def("attend", &LatentLayer::attend, nb::arg("queries").noconvert(), nb::arg("cache").noconvert(),
           nb::arg("format"), nb::arg("length"), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
           nb::arg("out").noconvert(), "Writes out [tokens, heads * value_dim].")
      .def("attend_chosen", &LatentLayer::attend_chosen, nb::arg("queries").noconvert(),
           nb::arg("cache").noconvert(), nb::arg("format"), nb::arg("chosen").noconvert(),
           nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("out").noconvert(),
           "Writes out [tokens, heads * value_dim].")
      .def_static("workspace_bytes", &LatentLayer::workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
}
