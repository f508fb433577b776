// Mamba-2 for Python.
#include "moeinf/compute/layers/mamba.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"
#include "matrix.h"
#include "pass.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::ConstRows;
using moeinf::Kernels;
using moeinf::require;
using moeinf::Rows;
using moeinf::Vector;
using Heads = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using ConstHeads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <typename Array>
std::int64_t size(const Array& array, std::size_t dimension) {
  return static_cast<std::int64_t>(array.shape(dimension));
}

// Holds every array it was given, so the addresses stay good.
class MambaLayer {
 public:
  MambaLayer(nb::object kernels, nb::object input, nb::object output, Vector norm, ConstRows taps,
             Vector conv_bias, Vector decay, Vector bias, Vector skip, Vector gate_norm,
             std::int64_t num_groups, double norm_eps, double residual)
      : kernels_object_(kernels),
        input_(input),
        output_(output),
        norm_(norm),
        taps_(taps),
        conv_bias_(conv_bias),
        decay_(decay),
        bias_(bias),
        skip_(skip),
        gate_norm_(gate_norm),
        kernels_(nb::cast<Kernels*>(kernels)) {
    const std::int64_t num_heads = size(decay, 0), inner = size(gate_norm, 0);
    require(num_groups > 0 && num_heads > 0 && num_heads % num_groups == 0 && inner % num_heads == 0,
            "heads cannot share keys");
    const std::int64_t keys = size(taps, 1) - inner;
    require(keys > 0 && keys % (2 * num_groups) == 0 && inner > 0 && size(taps, 0) >= 2 &&
                size(conv_bias, 0) == size(taps, 1) && size(bias, 0) == num_heads &&
                size(skip, 0) == num_heads,
            "the vectors of Mamba do not fit together");
    shape_ = {size(norm, 0),
              num_heads,
              inner / num_heads,
              num_groups,
              keys / (2 * num_groups),
              size(taps, 0),
              static_cast<float>(norm_eps),
              static_cast<float>(residual)};
    const moeinf::Matrix in = nb::cast<const BoundMatrix&>(input).view(),
                         out = nb::cast<const BoundMatrix&>(output).view();
    require(in.rows == shape_.projected() && in.cols == shape_.hidden,
            "the input of Mamba has the wrong shape");
    require(out.rows == shape_.hidden && out.cols == inner, "the output of Mamba has the wrong shape");
    weights_ = {in,           out,         norm.data(), taps.data(),     conv_bias.data(),
                decay.data(), bias.data(), skip.data(), gate_norm.data()};
  }

  void run(Rows x, ConstRows conv, ConstHeads heads, Rows new_conv, Heads new_heads) {
    require(size(x, 0) >= 1, "there are no tokens");
    require(size(x, 1) == shape_.hidden, "x is of another width than the matrices");
    require(size(conv, 0) == shape_.kernel - 1 && size(conv, 1) == shape_.channels() &&
                size(new_conv, 0) == shape_.kernel - 1 && size(new_conv, 1) == shape_.channels(),
            "what the convolution has seen is [kernel - 1, channels]");
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t expected[] = {shape_.num_heads, shape_.state_size, shape_.head_dim};
      require(size(heads, i) == expected[i] && size(new_heads, i) == expected[i],
              "a state is [heads, state_size, head_dim]");
    }
    const moeinf::GilRelease released;
    moeinf::mamba(*kernels_, shape_, weights_, {conv.data(), heads.data(), new_conv.data(), new_heads.data()},
                  x.data(), size(x, 0));
  }

  // sizes: an object with the attributes of moeinf.types.MambaSizes.
  static std::size_t workspace_bytes(nb::handle sizes, nb::handle pass) {
    moeinf::MambaShape shape{};
    shape.hidden = moeinf::number_of(sizes, "hidden_size");
    shape.num_heads = moeinf::number_of(sizes, "num_heads");
    shape.head_dim = moeinf::number_of(sizes, "head_dim");
    shape.num_groups = moeinf::number_of(sizes, "num_groups");
    shape.state_size = moeinf::number_of(sizes, "state_size");
    const moeinf::PassShape most = moeinf::pass_of(pass);
    require(shape.num_groups > 0, "heads cannot share keys");
    moeinf::require_room(most, {shape.hidden, moeinf::times({shape.num_heads, shape.head_dim}),
                                moeinf::times({shape.num_groups, shape.state_size})});
    return moeinf::mamba_workspace_bytes(shape, most);
  }

 private:
  nb::object kernels_object_, input_, output_;
  Vector norm_;
  ConstRows taps_;
  Vector conv_bias_, decay_, bias_, skip_, gate_norm_;
  Kernels* kernels_;
  moeinf::MambaShape shape_{};
  moeinf::MambaWeights weights_{};
};

void run_scan(Kernels& kernels, ConstHeads queries, ConstHeads keys, ConstHeads values, ConstRows decays,
              ConstHeads state, Heads new_state, Heads out) {
  const std::int64_t tokens = size(queries, 0), heads = size(queries, 1), dim = size(queries, 2);
  require(tokens >= 1 && heads >= 1 && dim >= 1, "there are no tokens, or no heads");
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t by_token[] = {tokens, heads, dim}, by_head[] = {heads, tokens, dim},
                       states[] = {heads, dim, dim};
    require(size(keys, i) == by_token[i], "queries and keys are [tokens, heads, dim]");
    require(size(values, i) == by_head[i] && size(out, i) == by_head[i],
            "values and outputs are [heads, tokens, dim]");
    require(size(state, i) == states[i] && size(new_state, i) == states[i], "a state is [heads, dim, dim]");
  }
  require(size(decays, 0) == heads && size(decays, 1) == tokens, "decays are [heads, tokens]");
  const moeinf::GilRelease released;
  moeinf::scan(kernels, {tokens, heads, dim, queries.data(), keys.data(), values.data(), decays.data(),
                         state.data(), new_state.data(), out.data()});
}

}  // namespace

void moeinf::bind_mamba(nb::module_& m) {
  nb::class_<MambaLayer>(m, "MambaLayer", "Mamba-2 of one layer, norm included.")
      .def(nb::init<nb::object, nb::object, nb::object, Vector, ConstRows, Vector, Vector, Vector, Vector,
                    Vector, std::int64_t, double, double>(),
           nb::arg("kernels"), nb::arg("input"), nb::arg("output"), nb::kw_only(),
           nb::arg("norm").noconvert(), nb::arg("taps").noconvert(), nb::arg("conv_bias").noconvert(),
           nb::arg("decay").noconvert(), nb::arg("bias").noconvert(), nb::arg("skip").noconvert(),
           nb::arg("gate_norm").noconvert(), nb::arg("num_groups"), nb::arg("norm_eps"), nb::arg("residual"))
      .def("run", &MambaLayer::run, nb::arg("x").noconvert(), nb::arg("conv").noconvert(),
           nb::arg("heads").noconvert(), nb::arg("new_conv").noconvert(), nb::arg("new_heads").noconvert(),
           "x [tokens, hidden] += residual * mamba(norm(x)); writes the states that the tokens leave.")
      .def_static("workspace_bytes", &MambaLayer::workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
  m.def("scan", &run_scan, nb::arg("kernels"), nb::arg("queries").noconvert(), nb::arg("keys").noconvert(),
        nb::arg("values").noconvert(), nb::arg("decays").noconvert(), nb::arg("state").noconvert(),
        nb::arg("new_state").noconvert(), nb::arg("out").noconvert(),
        "The recurrence of Mamba-2 where each head has its own keys and queries; writes new_state and out.");
}
