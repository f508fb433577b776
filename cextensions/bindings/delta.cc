// Gated DeltaNet for Python.
#include "moeinf/compute/layers/delta.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <vector>

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

template <typename Array>
std::int64_t size(const Array& array, std::size_t dimension) {
  return static_cast<std::int64_t>(array.shape(dimension));
}

// Holds every array it was given, so the addresses stay good.
class DeltaLayer {
 public:
  DeltaLayer(nb::object kernels, nb::list projections, nb::object output, std::optional<Vector> norm,
             ConstRows taps, Vector decay, Vector bias, Vector q_norm, Vector k_norm, Vector head_norm,
             std::int64_t num_key_heads, double norm_eps, double unit_eps, bool sigmoid_gates, bool replaces)
      : kernels_object_(kernels),
        projections_(projections),
        output_(output),
        norm_(norm),
        taps_(taps),
        decay_(decay),
        bias_(bias),
        q_norm_(q_norm),
        k_norm_(k_norm),
        head_norm_(head_norm),
        kernels_(nb::cast<Kernels*>(kernels)) {
    const std::int64_t num_value_heads = size(decay, 0);
    require(num_key_heads > 0 && num_value_heads > 0 && num_value_heads % num_key_heads == 0,
            "value heads cannot share keys");
    const moeinf::Matrix out = nb::cast<const BoundMatrix&>(output).view();
    require(!norm || size(*norm, 0) == out.rows, "the norm and the output of DeltaNet do not fit together");
    shape_ = {out.rows,
              num_key_heads,
              num_value_heads,
              size(q_norm, 0),
              size(head_norm, 0),
              size(taps, 0),
              static_cast<float>(norm_eps),
              static_cast<float>(unit_eps),
              sigmoid_gates,
              replaces};
    require(shape_.key_dim > 0 && shape_.value_dim > 0 && shape_.kernel >= 2 &&
                size(taps, 1) == shape_.channels() && size(bias, 0) == num_value_heads &&
                size(k_norm, 0) == shape_.key_dim,
            "the vectors of DeltaNet do not fit together");
    const bool stacked = projections.size() == 2;
    const std::int64_t values = shape_.values();
    const std::vector<std::int64_t> rows =
        stacked ? std::vector<std::int64_t>{shape_.channels() + values, 2 * num_value_heads}
                : std::vector<std::int64_t>{shape_.channels(), values, num_value_heads, num_value_heads};
    require(projections.size() == rows.size(), "DeltaNet has 2 projections or 4");
    std::vector<moeinf::Matrix> matrices;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      matrices.push_back(nb::cast<const BoundMatrix&>(projections[i]).view());
      require(matrices[i].rows == rows[i] && matrices[i].cols == shape_.hidden,
              "a projection of DeltaNet has the wrong shape");
    }
    require(out.cols == values, "the output of DeltaNet has the wrong shape");
    weights_ = {matrices,      out,           norm ? norm->data() : nullptr,
                taps.data(),   decay.data(),  bias.data(),
                q_norm.data(), k_norm.data(), head_norm.data()};
  }

  void run(Rows x, ConstRows conv, nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu> heads,
           Rows new_conv, Heads new_heads) {
    require(size(x, 0) >= 1, "there are no tokens");
    require(size(x, 1) == shape_.hidden, "x is of another width than the matrices");
    require(size(conv, 0) == shape_.kernel - 1 && size(conv, 1) == shape_.channels() &&
                size(new_conv, 0) == shape_.kernel - 1 && size(new_conv, 1) == shape_.channels(),
            "what the convolution has seen is [kernel - 1, channels]");
    for (std::size_t i = 0; i < 3; ++i) {
      const std::int64_t expected[] = {shape_.num_value_heads, shape_.key_dim, shape_.value_dim};
      require(size(heads, i) == expected[i] && size(new_heads, i) == expected[i],
              "a state is [value heads, key_dim, value_dim]");
    }
    const moeinf::GilRelease released;
    moeinf::delta_net(*kernels_, shape_, weights_,
                      {conv.data(), heads.data(), new_conv.data(), new_heads.data()}, x.data(), size(x, 0));
  }

  // sizes: an object with the attributes of moeinf.types.DeltaSizes.
  static std::size_t workspace_bytes(nb::handle sizes, nb::handle pass) {
    moeinf::DeltaShape shape{};
    shape.hidden = moeinf::number_of(sizes, "hidden_size");
    shape.num_key_heads = moeinf::number_of(sizes, "num_key_heads");
    shape.num_value_heads = moeinf::number_of(sizes, "num_value_heads");
    shape.key_dim = moeinf::number_of(sizes, "key_dim");
    shape.value_dim = moeinf::number_of(sizes, "value_dim");
    const moeinf::PassShape most = moeinf::pass_of(pass);
    require(shape.num_key_heads > 0, "value heads cannot share keys");
    moeinf::require_room(most, {shape.hidden, moeinf::times({shape.num_key_heads, shape.key_dim}),
                                moeinf::times({shape.num_value_heads, shape.value_dim})});
    return moeinf::delta_workspace_bytes(shape, most);
  }

 private:
  nb::object kernels_object_;
  nb::list projections_;
  nb::object output_;
  std::optional<Vector> norm_;
  ConstRows taps_;
  Vector decay_, bias_, q_norm_, k_norm_, head_norm_;
  Kernels* kernels_;
  moeinf::DeltaShape shape_{};
  moeinf::DeltaWeights weights_{};
};

using ConstHeads = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

void run_channel_delta(Kernels& kernels, ConstHeads queries, ConstHeads keys, ConstHeads values,
                       ConstHeads decays, ConstRows rates, ConstHeads state, Heads new_state, Heads out) {
  const std::int64_t tokens = size(queries, 0), heads = size(queries, 1), dim = size(queries, 2);
  require(tokens >= 1 && heads >= 1 && dim >= 1, "there are no tokens, or no heads");
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t by_token[] = {tokens, heads, dim}, by_head[] = {heads, dim, dim},
                       outputs[] = {heads, tokens, dim};
    require(size(keys, i) == by_token[i] && size(values, i) == by_token[i] && size(decays, i) == by_token[i],
            "queries, keys, values and decays are [tokens, heads, dim]");
    require(size(state, i) == by_head[i] && size(new_state, i) == by_head[i], "a state is [heads, dim, dim]");
    require(size(out, i) == outputs[i], "outputs are [heads, tokens, dim]");
  }
  require(size(rates, 0) == tokens && size(rates, 1) == heads, "rates are [tokens, heads]");
  const moeinf::GilRelease released;
  moeinf::channel_delta(kernels, {tokens, heads, dim, queries.data(), keys.data(), values.data(),
                                  decays.data(), rates.data(), state.data(), new_state.data(), out.data()});
}

}  // namespace

void moeinf::bind_delta(nb::module_& m) {
  nb::class_<DeltaLayer>(m, "DeltaLayer", "Gated DeltaNet of one layer, norm included.")
      .def(nb::init<nb::object, nb::list, nb::object, std::optional<Vector>, ConstRows, Vector, Vector,
                    Vector, Vector, Vector, std::int64_t, double, double, bool, bool>(),
           nb::arg("kernels"), nb::arg("projections"), nb::arg("output"), nb::kw_only(),
           nb::arg("norm").noconvert().none(), nb::arg("taps").noconvert(), nb::arg("decay").noconvert(),
           nb::arg("bias").noconvert(), nb::arg("q_norm").noconvert(), nb::arg("k_norm").noconvert(),
           nb::arg("head_norm").noconvert(), nb::arg("num_key_heads"), nb::arg("norm_eps"),
           nb::arg("unit_eps"), nb::arg("sigmoid_gates") = false, nb::arg("replaces") = false)
      .def("run", &DeltaLayer::run, nb::arg("x").noconvert(), nb::arg("conv").noconvert(),
           nb::arg("heads").noconvert(), nb::arg("new_conv").noconvert(), nb::arg("new_heads").noconvert(),
           "x [tokens, hidden] += delta_net(norm(x)); writes the states that the tokens leave.")
      .def_static("workspace_bytes", &DeltaLayer::workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
  m.def("channel_delta", &run_channel_delta, nb::arg("kernels"), nb::arg("queries").noconvert(),
        nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("decays").noconvert(),
        nb::arg("rates").noconvert(), nb::arg("state").noconvert(), nb::arg("new_state").noconvert(),
        nb::arg("out").noconvert(),
        "The recurrence of DeltaNet with a decay for each channel of the keys; writes new_state and out.");
}
