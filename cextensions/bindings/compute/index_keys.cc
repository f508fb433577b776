// Index keys and the choice of the best of them, for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/index_keys.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cstdint>

#include "arrays.h"
#include "bindings.h"
#include "compute/pass.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::OptionalRows;
using moeinf::require;
using moeinf::Rows;
using Keys = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;  // they may be columns of wider rows
using Counts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Chosen = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Of heads [tokens, num_heads * head_dim]; how many heads there are, the keys say, which are as wide as one.
moeinf::IndexQueries queries_of(ConstRows heads, const OptionalRows& weights, const Keys& keys, Counts seen) {
  const std::int64_t tokens = moeinf::size(heads, 0), dim = moeinf::size(keys, 1);
  require(keys.stride(1) == 1 && keys.stride(0) >= dim, "keys are no rows");
  require(dim > 0 && moeinf::size(heads, 1) > 0 && moeinf::size(heads, 1) % dim == 0,
          "queries are no whole number of heads as wide as keys");
  const std::int64_t num_heads = moeinf::size(heads, 1) / dim;
  require(!weights || has_shape(*weights, tokens, num_heads), "each head of each token has one weight");
  require(has_shape(seen, tokens), "each token says how many keys it sees");
  for (std::int64_t t = 0; t < tokens; ++t)
    require(seen.data()[t] >= 0 && seen.data()[t] <= moeinf::size(keys, 0),
            "a token sees keys that are not there");
  return {moeinf::rows_of(heads), moeinf::data_of(weights), num_heads};
}

moeinf::IndexKeys keys_of(const Keys& keys) { return {keys.data(), moeinf::size(keys, 0), keys.stride(0)}; }

void score(Kernels& kernels, ConstRows heads, OptionalRows weights, const Keys& keys, Counts seen,
           Rows scores) {
  const moeinf::IndexQueries queries = queries_of(heads, weights, keys, seen);
  const std::int64_t tokens = moeinf::size(heads, 0);
  require(moeinf::size(scores, 0) == tokens, "each token has a row of scores");
  for (std::int64_t t = 0; t < tokens; ++t)
    require(seen.data()[t] <= moeinf::size(scores, 1), "a token sees more keys than it has scores");
  const moeinf::GilRelease released;
  moeinf::score_keys(kernels, queries, keys_of(keys), seen.data(), moeinf::rows_of(scores));
}

void choose(Kernels& kernels, ConstRows heads, OptionalRows weights, const Keys& keys, Counts seen,
            Chosen chosen) {
  const moeinf::IndexQueries queries = queries_of(heads, weights, keys, seen);
  require(moeinf::size(chosen, 0) == moeinf::size(heads, 0) && moeinf::size(chosen, 1) > 0,
          "each token has a row of what it chooses");
  const moeinf::GilRelease released;
  moeinf::choose_keys(kernels, queries, keys_of(keys), seen.data(), moeinf::rows_of(chosen));
}

void weigh_blocks(Kernels& kernels, ConstRows heads, const Keys& keys, Counts seen, std::int64_t block,
                  Rows worth) {
  const moeinf::IndexQueries queries = queries_of(heads, {}, keys, seen);
  require(block > 0, "a block has no keys");
  require(moeinf::size(worth, 0) == moeinf::times({moeinf::size(heads, 0), queries.num_heads}),
          "each head of each token has a row of what blocks are worth");
  for (std::int64_t t = 0; t < moeinf::size(heads, 0); ++t)
    require((seen.data()[t] + block - 1) / block <= moeinf::size(worth, 1),
            "a token sees more blocks than it has room");
  const moeinf::GilRelease released;
  moeinf::score_blocks(kernels, queries, keys_of(keys), seen.data(), block, moeinf::rows_of(worth));
}

void pick_best(Kernels& kernels, ConstRows scores, Counts seen, Chosen chosen) {
  const std::int64_t rows = moeinf::size(scores, 0);
  require(has_shape(seen, rows) && moeinf::size(chosen, 0) == rows && moeinf::size(chosen, 1) > 0,
          "each row says how many scores it has, and has room for what is chosen");
  for (std::int64_t row = 0; row < rows; ++row)
    require(seen.data()[row] >= 0 && seen.data()[row] <= moeinf::size(scores, 1),
            "a row has scores that are not there");
  const moeinf::GilRelease released;
  moeinf::choose_best(kernels, moeinf::rows_of(scores), seen.data(), moeinf::rows_of(chosen));
}

// sizes: an object with the attributes of moeinf.types.IndexSizes.
std::size_t workspace_bytes(nb::handle sizes, nb::handle pass) {
  const moeinf::PassShape most = moeinf::pass_of(pass);
  const std::int64_t num_heads = moeinf::number_of(sizes, "num_heads"),
                     dim = moeinf::number_of(sizes, "head_dim");
  moeinf::require_room(most, {moeinf::times({num_heads, dim})});
  moeinf::times({most.positions, most.num_threads});
  return moeinf::index_workspace_bytes(num_heads, dim, most.positions, most.num_threads);
}

}  // namespace

void moeinf::bind_index_keys(nb::module_& m) {
  m.def("score_keys", &score, nb::arg("kernels"), nb::arg("heads").noconvert(),
        nb::arg("weights").noconvert().none(), nb::arg("keys").noconvert(), nb::arg("seen").noconvert(),
        nb::arg("scores").noconvert(), "Writes scores [tokens, keys].");
  m.def("choose_keys", &choose, nb::arg("kernels"), nb::arg("heads").noconvert(),
        nb::arg("weights").noconvert().none(), nb::arg("keys").noconvert(), nb::arg("seen").noconvert(),
        nb::arg("chosen").noconvert(), "Writes chosen [tokens, most].");
  m.def("score_blocks", &weigh_blocks, nb::arg("kernels"), nb::arg("heads").noconvert(),
        nb::arg("keys").noconvert(), nb::arg("seen").noconvert(), nb::arg("block"),
        nb::arg("worth").noconvert(), "Writes worth [tokens * heads, blocks].");
  m.def("choose_best", &pick_best, nb::arg("kernels"), nb::arg("scores").noconvert(),
        nb::arg("seen").noconvert(), nb::arg("chosen").noconvert(), "Writes chosen [rows, most].");
  m.def("index_workspace_bytes", &workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
}
