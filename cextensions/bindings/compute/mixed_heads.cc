// Queries and keys that convolutions mix, for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/mixed_heads.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::Kernels;
using moeinf::require;
using moeinf::Rows;
using moeinf::size;
using moeinf::times;
using moeinf::Vector;

// seen [tokens + by_channel + by_head - 2, channels], out [heads * tokens, head_dim * by_head].
void window(Kernels& kernels, ConstRows seen, ConstRows taps, Vector bias, std::int64_t head_dim,
            std::int64_t by_head, Rows out) {
  const std::int64_t by_channel = size(taps, 0), channels = size(taps, 1);
  require(by_channel > 0 && by_head > 0, "the convolutions see no tokens");
  require(head_dim > 0 && channels % head_dim == 0, "channels are no whole number of heads");
  require(size(seen, 1) == channels && size(bias, 0) == channels, "there are as many channels everywhere");
  const std::int64_t tokens = size(seen, 0) - (by_channel - 1) - (by_head - 1), heads = channels / head_dim;
  require(tokens > 0, "no token is left behind those that the convolutions see");
  require(has_shape(out, times({heads, tokens}), times({head_dim, by_head})),
          "results are [heads * tokens, head_dim * by_head]");
  const moeinf::HeadWindows given{{heads, 0, head_dim}, tokens,      by_channel,  by_head,
                                  seen.data(),          taps.data(), bias.data(), out.data()};
  const moeinf::GilRelease released;
  moeinf::window_heads(kernels, given);
}

void level(Kernels& kernels, ConstRows products, Vector bias, ConstRows queries, ConstRows keys,
           Vector lengths, Rows out_queries, Rows out_keys) {
  const std::int64_t tokens = size(queries, 0), head_dim = size(products, 1), of_keys = size(keys, 1);
  require(head_dim > 0 && of_keys > 0 && of_keys % head_dim == 0 && size(queries, 1) > 0 &&
              size(queries, 1) % of_keys == 0,
          "heads cannot share keys");
  const std::int64_t num_heads = size(queries, 1) / head_dim, num_kv_heads = of_keys / head_dim;
  const std::int64_t heads = num_heads + num_kv_heads;
  require(has_shape(keys, tokens, of_keys) && has_shape(products, times({heads, tokens}), head_dim),
          "queries, keys or products are of other tokens");
  require(has_shape(bias, heads * head_dim) && has_shape(lengths, heads),
          "each channel has a bias, and each head a length");
  require(has_shape(out_queries, tokens, size(queries, 1)) && has_shape(out_keys, tokens, of_keys),
          "results are of the sizes of queries and keys");
  const moeinf::LevelHeads given{{num_heads, num_kv_heads, head_dim},
                                 tokens,
                                 products.data(),
                                 bias.data(),
                                 queries.data(),
                                 keys.data(),
                                 lengths.data(),
                                 out_queries.data(),
                                 out_keys.data()};
  const moeinf::GilRelease released;
  moeinf::level_heads(kernels, given);
}

}  // namespace

void moeinf::bind_mixed_heads(nb::module_& m) {
  m.def("window_heads", &window, nb::arg("kernels"), nb::arg("seen").noconvert(), nb::arg("taps").noconvert(),
        nb::arg("bias").noconvert(), nb::arg("head_dim"), nb::arg("by_head"), nb::arg("out").noconvert(),
        "Writes out [heads * tokens, head_dim * by_head].");
  m.def("level_heads", &level, nb::arg("kernels"), nb::arg("products").noconvert(),
        nb::arg("bias").noconvert(), nb::arg("queries").noconvert(), nb::arg("keys").noconvert(),
        nb::arg("lengths").noconvert(), nb::arg("out_queries").noconvert(), nb::arg("out_keys").noconvert(),
        "Writes out_queries and out_keys.");
}
