// Layers with a state of fixed size, gated DeltaNet and Mamba-2, and recurrences alone, for Python. The GIL
// is released while anything is computed.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "compute/matrix.h"
#include "compute/pass.h"
#include "gil.h"
#include "moeinf/compute/layers/delta.h"
#include "moeinf/compute/layers/mamba.h"
#include "vectors.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::ConstHeads;
using moeinf::ConstRows;
using moeinf::DeltaShape;
using moeinf::DeltaWeights;
using moeinf::has_shape;
using moeinf::Heads;
using moeinf::Kernels;
using moeinf::MambaShape;
using moeinf::MambaWeights;
using moeinf::Matrix;
using moeinf::OptionalVector;
using moeinf::RecurrentStretch;
using moeinf::require;
using moeinf::Rows;
using moeinf::size;
using moeinf::Vector;

// Everything that the addresses of a layer point into.
struct Kept {
  nb::object kernels;
  std::vector<nb::object> matrices;
  std::vector<Vector> vectors;
  ConstRows taps;
};

// What a sequence has left, and room for what it leaves: conv, heads, new_conv, new_heads.
using States = std::tuple<ConstRows, ConstHeads, Rows, Heads>;

template <class Shape, class Weights>
class Layer {
 public:
  using Run = void (*)(Kernels&, const Shape&, const Weights&, moeinf::Span<const RecurrentStretch>,
                       moeinf::RowSpan<float> x);

  Layer(Kept kept, const Shape& shape, Weights weights, Run run)
      : kept_(std::move(kept)),
        kernels_(nb::cast<Kernels*>(kept_.kernels)),
        shape_(shape),
        weights_(std::move(weights)),
        run_(run) {}

  // states: of each sequence; rows: how many go on with it.
  void run(Rows x, const std::vector<States>& states, const std::vector<std::int64_t>& rows) {
    const std::int64_t tokens = size(x, 0);
    require(tokens >= 1, "there are no tokens");
    require(size(x, 1) == shape_.hidden, "x is of another width than the matrices");
    require(states.size() == rows.size(), "there are as many sequences as numbers of rows");
    std::int64_t first = 0;
    stretches_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      require(rows[i] >= 1 && rows[i] <= tokens - first, "a sequence has no rows, or too many");
      stretches_.push_back(stretch(states[i], first, rows[i]));
      first += rows[i];
    }
    require(first == tokens, "the rows are not those of the sequences");
    const moeinf::GilRelease released;
    run_(*kernels_, shape_, weights_, stretches_, moeinf::rows_of(x));
  }

 private:
  RecurrentStretch stretch(const States& states, std::int64_t first, std::int64_t count) const {
    const auto& [conv, heads, new_conv, new_heads] = states;
    const std::int64_t before = shape_.kernel - 1, channels = shape_.channels();
    const auto [num_heads, key_dim, value_dim] = shape_.state();
    require(has_shape(conv, before, channels) && has_shape(new_conv, before, channels),
            "what the convolution has seen is [kernel - 1, channels]");
    require(has_shape(heads, num_heads, key_dim, value_dim) &&
                has_shape(new_heads, num_heads, key_dim, value_dim),
            "a state is [heads, key_dim, value_dim]");
    return {{conv.data(), heads.data(), new_conv.data(), new_heads.data()}, first, count};
  }

  Kept kept_;
  Kernels* kernels_;
  Shape shape_;
  Weights weights_;
  Run run_;
  std::vector<RecurrentStretch> stretches_;  // of the call at hand
};
using DeltaLayer = Layer<DeltaShape, DeltaWeights>;
using MambaLayer = Layer<MambaShape, MambaWeights>;

Matrix view(const nb::object& matrix) { return nb::cast<const BoundMatrix&>(matrix).view(); }

void make_delta(DeltaLayer* made, nb::object kernels, std::vector<nb::object> projections, nb::object output,
                OptionalVector norm, ConstRows taps, Vector decay, Vector bias, Vector q_norm, Vector k_norm,
                Vector head_norm, std::int64_t num_key_heads, double norm_eps, double unit_eps,
                bool sigmoid_gates, bool replaces) {
  const std::int64_t value_heads = size(decay, 0);
  require(num_key_heads > 0 && value_heads > 0 && value_heads % num_key_heads == 0,
          "value heads cannot share keys");
  DeltaWeights w{};
  w.output = view(output);
  const DeltaShape s = {w.output.rows,
                        num_key_heads,
                        value_heads,
                        size(q_norm, 0),
                        size(head_norm, 0),
                        size(taps, 0),
                        static_cast<float>(norm_eps),
                        static_cast<float>(unit_eps),
                        sigmoid_gates,
                        replaces};
  require(!norm || has_shape(*norm, s.hidden), "the norm and the output of DeltaNet do not fit together");
  require(s.key_dim > 0 && s.value_dim > 0 && s.kernel >= 2 && size(taps, 1) == s.channels() &&
              has_shape(bias, value_heads) && has_shape(k_norm, s.key_dim),
          "the vectors of DeltaNet do not fit together");
  require(w.output.cols == s.values(), "the output of DeltaNet has the wrong shape");
  std::vector<std::int64_t> rows = {s.channels(), s.values(), value_heads, value_heads};
  if (projections.size() == 2) rows = {s.channels() + s.values(), 2 * value_heads};
  require(projections.size() == rows.size(), "DeltaNet has 2 projections or 4");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    w.projections.push_back(view(projections[i]));
    require(w.projections[i].rows == rows[i] && w.projections[i].cols == s.hidden,
            "a projection of DeltaNet has the wrong shape");
  }
  w.norm = moeinf::data_of(norm);
  w.taps = taps.data();
  w.decay = decay.data();
  w.bias = bias.data();
  w.q_norm = q_norm.data();
  w.k_norm = k_norm.data();
  w.head_norm = head_norm.data();
  std::vector<Vector> vectors = {decay, bias, q_norm, k_norm, head_norm};
  if (norm) vectors.push_back(*norm);
  projections.push_back(output);
  new (made) DeltaLayer({kernels, projections, vectors, taps}, s, w, moeinf::delta_net);
}

void make_mamba(MambaLayer* made, nb::object kernels, nb::object input, nb::object output, Vector norm,
                ConstRows taps, Vector conv_bias, Vector decay, Vector bias, Vector skip, Vector gate_norm,
                OptionalVector in_bias, OptionalVector out_bias, std::int64_t num_groups, double norm_eps,
                double residual) {
  const std::int64_t heads = size(decay, 0), inner = size(gate_norm, 0), keys = size(taps, 1) - inner;
  require(num_groups > 0 && heads > 0 && heads % num_groups == 0 && inner % heads == 0,
          "heads cannot share keys");
  require(keys > 0 && keys % (2 * num_groups) == 0 && inner > 0 && size(taps, 0) >= 2 &&
              has_shape(conv_bias, size(taps, 1)) && has_shape(bias, heads) && has_shape(skip, heads),
          "the vectors of Mamba do not fit together");
  const MambaShape s = {size(norm, 0),
                        heads,
                        inner / heads,
                        num_groups,
                        keys / (2 * num_groups),
                        size(taps, 0),
                        static_cast<float>(norm_eps),
                        static_cast<float>(residual)};
  const Matrix in = view(input), out = view(output);
  require(in.rows == s.projected() && in.cols == s.hidden, "the input of Mamba has the wrong shape");
  require(out.rows == s.hidden && out.cols == inner, "the output of Mamba has the wrong shape");
  require((!in_bias || has_shape(*in_bias, in.rows)) && (!out_bias || has_shape(*out_bias, out.rows)),
          "the biases of Mamba have the wrong shape");
  std::vector<Vector> vectors = {norm, conv_bias, decay, bias, skip, gate_norm};
  for (const OptionalVector& each : {in_bias, out_bias}) {
    if (each) vectors.push_back(*each);
  }
  new (made) MambaLayer({kernels, {input, output}, vectors, taps}, s,
                        {in, out, norm.data(), taps.data(), conv_bias.data(), decay.data(), bias.data(),
                         skip.data(), gate_norm.data(), moeinf::data_of(in_bias), moeinf::data_of(out_bias)},
                        moeinf::mamba);
}

// sizes: an object with the attributes of moeinf.types.DeltaSizes.
std::size_t delta_bytes(nb::handle sizes, nb::handle pass) {
  DeltaShape shape{};
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

// sizes: an object with the attributes of moeinf.types.MambaSizes.
std::size_t mamba_bytes(nb::handle sizes, nb::handle pass) {
  MambaShape shape{};
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

// Sizes of a recurrence alone: [tokens, heads, dim].
struct Sizes {
  std::int64_t tokens, heads, dim;

  explicit Sizes(const ConstHeads& queries)
      : tokens(size(queries, 0)), heads(size(queries, 1)), dim(size(queries, 2)) {
    require(tokens >= 1 && heads >= 1 && dim >= 1, "there are no tokens, or no heads");
  }
  bool by_token(const ConstHeads& array) const { return has_shape(array, tokens, heads, dim); }
  template <class Array>
  bool by_head(const Array& array) const {
    return has_shape(array, heads, tokens, dim);
  }
  void require_states(const ConstHeads& state, const Heads& new_state) const {
    require(has_shape(state, heads, dim, dim) && has_shape(new_state, heads, dim, dim),
            "a state is [heads, dim, dim]");
  }
};

void run_channel_delta(Kernels& kernels, ConstHeads queries, ConstHeads keys, ConstHeads values,
                       ConstHeads decays, ConstRows rates, ConstHeads state, Heads new_state, Heads out) {
  const Sizes s(queries);
  require(s.by_token(keys) && s.by_token(values) && s.by_token(decays),
          "queries, keys, values and decays are [tokens, heads, dim]");
  s.require_states(state, new_state);
  require(s.by_head(out), "outputs are [heads, tokens, dim]");
  require(has_shape(rates, s.tokens, s.heads), "rates are [tokens, heads]");
  const moeinf::GilRelease released;
  moeinf::channel_delta(kernels, {s.tokens, s.heads, s.dim, queries.data(), keys.data(), values.data(),
                                  decays.data(), rates.data(), state.data(), new_state.data(), out.data()});
}

void run_scan(Kernels& kernels, ConstHeads queries, ConstHeads keys, ConstHeads values, ConstRows decays,
              ConstHeads state, Heads new_state, Heads out) {
  const Sizes s(queries);
  require(s.by_token(keys), "queries and keys are [tokens, heads, dim]");
  require(s.by_head(values) && s.by_head(out), "values and outputs are [heads, tokens, dim]");
  s.require_states(state, new_state);
  require(has_shape(decays, s.heads, s.tokens), "decays are [heads, tokens]");
  const moeinf::GilRelease released;
  moeinf::scan(kernels, {s.tokens, s.heads, s.dim, queries.data(), keys.data(), values.data(), decays.data(),
                         state.data(), new_state.data(), out.data()});
}

// projected [tokens, others + channels]: gates are its last columns.
void run_channel_scan(Kernels& kernels, ConstRows steps, ConstRows values, ConstRows keys, ConstRows queries,
                      ConstRows projected, ConstRows rates, Vector skip, ConstRows state, Rows new_state,
                      Rows out) {
  const std::int64_t tokens = size(steps, 0), channels = size(steps, 1), states = size(keys, 1);
  require(tokens >= 1 && channels >= 1 && states >= 1, "there are no tokens, no channels or no states");
  require(has_shape(values, tokens, channels) && has_shape(out, tokens, channels),
          "steps, values and outputs are [tokens, channels]");
  require(has_shape(keys, tokens, states) && has_shape(queries, tokens, states),
          "keys and queries are [tokens, state_size]");
  require(size(projected, 0) == tokens && size(projected, 1) >= channels,
          "what is projected has a row for each token, which ends with its gates");
  require(has_shape(rates, states, channels) && has_shape(state, states, channels) &&
              has_shape(new_state, states, channels),
          "rates and a state are [state_size, channels]");
  require(size(skip, 0) == channels, "there is a skip for each channel");
  const std::int64_t stride = size(projected, 1);
  const moeinf::GilRelease released;
  moeinf::channel_scan(kernels, {steps.data(), values.data(), keys.data(), queries.data(),
                                 projected.data() + stride - channels, stride, rates.data(), skip.data(),
                                 tokens, channels, states, state.data(), new_state.data(), out.data()});
}

template <class BoundLayer>
void bind_run(nb::class_<BoundLayer>& layer, std::size_t (*workspace_bytes)(nb::handle, nb::handle)) {
  layer
      .def("run", &BoundLayer::run, nb::arg("x").noconvert(), nb::arg("states").noconvert(), nb::arg("rows"),
           "x [tokens, hidden] += the layer of it; writes the states that the tokens of each sequence leave.")
      .def_static("workspace_bytes", workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
}

}  // namespace

void moeinf::bind_recurrent(nb::module_& m) {
  nb::class_<DeltaLayer> delta(m, "DeltaLayer", "Gated DeltaNet of one layer, norm included.");
  delta.def("__init__", &make_delta, nb::arg("kernels"), nb::arg("projections"), nb::arg("output"),
            nb::kw_only(), nb::arg("norm").noconvert().none(), nb::arg("taps").noconvert(),
            nb::arg("decay").noconvert(), nb::arg("bias").noconvert(), nb::arg("q_norm").noconvert(),
            nb::arg("k_norm").noconvert(), nb::arg("head_norm").noconvert(), nb::arg("num_key_heads"),
            nb::arg("norm_eps"), nb::arg("unit_eps"), nb::arg("sigmoid_gates") = false,
            nb::arg("replaces") = false);
  bind_run(delta, &delta_bytes);
  nb::class_<MambaLayer> mamba(m, "MambaLayer", "Mamba-2 of one layer, norm included.");
  mamba.def("__init__", &make_mamba, nb::arg("kernels"), nb::arg("input"), nb::arg("output"), nb::kw_only(),
            nb::arg("norm").noconvert(), nb::arg("taps").noconvert(), nb::arg("conv_bias").noconvert(),
            nb::arg("decay").noconvert(), nb::arg("bias").noconvert(), nb::arg("skip").noconvert(),
            nb::arg("gate_norm").noconvert(), nb::arg("in_bias").noconvert().none(),
            nb::arg("out_bias").noconvert().none(), nb::arg("num_groups"), nb::arg("norm_eps"),
            nb::arg("residual"));
  bind_run(mamba, &mamba_bytes);
  m.def("channel_delta", &run_channel_delta, nb::arg("kernels"), nb::arg("queries").noconvert(),
        nb::arg("keys").noconvert(), nb::arg("values").noconvert(), nb::arg("decays").noconvert(),
        nb::arg("rates").noconvert(), nb::arg("state").noconvert(), nb::arg("new_state").noconvert(),
        nb::arg("out").noconvert(),
        "The recurrence of DeltaNet with a decay for each channel of the keys; writes new_state and out.");
  m.def("scan", &run_scan, nb::arg("kernels"), nb::arg("queries").noconvert(), nb::arg("keys").noconvert(),
        nb::arg("values").noconvert(), nb::arg("decays").noconvert(), nb::arg("state").noconvert(),
        nb::arg("new_state").noconvert(), nb::arg("out").noconvert(),
        "The recurrence of Mamba-2 with keys and queries for each head; writes new_state and out.");
  m.def("channel_scan", &run_channel_scan, nb::arg("kernels"), nb::arg("steps").noconvert(),
        nb::arg("values").noconvert(), nb::arg("keys").noconvert(), nb::arg("queries").noconvert(),
        nb::arg("projected").noconvert(), nb::arg("rates").noconvert(), nb::arg("skip").noconvert(),
        nb::arg("state").noconvert(), nb::arg("new_state").noconvert(), nb::arg("out").noconvert(),
        "The recurrence of Mamba, gates included; writes new_state and out.");
}
