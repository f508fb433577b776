// Self-attention for Python. The GIL is released while anything is computed.
#include "moeinf/compute/layers/attention.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "compute/kept.h"
#include "compute/matrix.h"
#include "compute/pass.h"
#include "gil.h"

namespace nb = nanobind;

namespace {

using moeinf::AttentionShape;
using moeinf::BoundMatrix;
using moeinf::Bytes;
using moeinf::ConstRows;
using moeinf::has_shape;
using moeinf::HeadNorm;
using moeinf::Kernels;
using moeinf::Matrix;
using moeinf::OptionalVector;
using moeinf::require;
using moeinf::Rows;
using Ends = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Kept = std::tuple<Bytes, Bytes, std::string, std::int64_t, std::int64_t>;
using ChosenRows = nb::ndarray<const std::int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// Everything that a layer has in memory, by name; it keeps the arrays alive.
struct AttentionTensors {
  nb::object query, key, value, output;  // BoundMatrix
  OptionalVector norm, norm_bias, query_norm, key_norm, query_bias, key_bias, value_bias, output_bias, sinks,
      output_norm, value_norm;
  nb::object gate;  // BoundMatrix or None
  OptionalVector gate_bias;
};

Matrix view(const nb::object& matrix) { return nb::cast<const BoundMatrix&>(matrix).view(); }

// None where the model has no such tensor.
const float* data_of(const OptionalVector& found, std::int64_t length) {
  if (!found) return nullptr;
  require(has_shape(*found, length), "a norm or bias has the wrong length");
  return found->data();
}

HeadNorm head_norm_named(const std::string& name) {
  if (name == "none") return HeadNorm::kNone;
  if (name == "head") return HeadNorm::kEach;
  if (name == "full") return HeadNorm::kAll;
  if (name == "turned") return HeadNorm::kEachTurned;
  throw std::invalid_argument("head norm is '" + name + "'; it is 'none', 'head', 'full' or 'turned'");
}

// All but the numbers of heads and the hidden size, which follow from the matrices.
AttentionShape shape_of(std::int64_t head_dim, double norm_eps, const std::string& head_norm, double clip,
                        std::int64_t window, std::optional<std::int64_t> rotary_dim, bool interleaved,
                        std::optional<double> scale, double residual, bool gated) {
  require(head_dim > 0 && head_dim <= moeinf::kMaxHeadDim, "head_dim is not positive, or too large");
  AttentionShape shape{};
  shape.head_dim = head_dim;
  shape.norm_eps = shape.front_eps = static_cast<float>(norm_eps);
  shape.head_norm = head_norm_named(head_norm);
  shape.clip = static_cast<float>(clip);
  shape.window = window;
  shape.rotary_pairs = rotary_dim.value_or(head_dim) / 2;
  shape.pairs = moeinf::pairs_of(interleaved);
  shape.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(head_dim))));
  shape.residual = static_cast<float>(residual);
  shape.gated = gated;
  require(2 * shape.rotary_pairs == rotary_dim.value_or(head_dim) && shape.rotary_pairs >= 0 &&
              2 * shape.rotary_pairs <= head_dim,
          "rotary_dim is odd, negative or beyond head_dim");
  require(shape.scale > 0, "the scale of the scores is not positive");
  moeinf::times({window});
  return shape;
}

class AttentionLayer {
 public:
  AttentionLayer(nb::object kernels, AttentionTensors tensors, const AttentionShape& shape)
      : kernels_object_(kernels),
        tensors_(std::move(tensors)),
        kernels_(nb::cast<Kernels*>(kernels)),
        shape_(shape) {
    const AttentionTensors& t = tensors_;
    const Matrix q = view(t.query), k = view(t.key), v = view(t.value), o = view(t.output);
    const std::int64_t head_dim = shape_.head_dim, rows_of_query = shape_.gated ? 2 : 1;
    shape_.hidden = q.cols;
    shape_.num_heads = q.rows / head_dim / rows_of_query;
    shape_.num_kv_heads = k.rows / head_dim;
    require(shape_.num_kv_heads > 0 && shape_.num_heads % shape_.num_kv_heads == 0,
            "heads cannot share keys");
    const std::int64_t queries = shape_.num_heads * head_dim, keys = k.rows;
    const std::int64_t value_dim = v.rows / shape_.num_kv_heads;
    if (value_dim < head_dim) shape_.value_dim = value_dim;
    require(q.rows == queries * rows_of_query && k.cols == q.cols && v.cols == q.cols && value_dim > 0 &&
                v.rows == shape_.num_kv_heads * value_dim && value_dim <= head_dim && keys % head_dim == 0 &&
                o.cols == shape_.num_heads * value_dim && o.rows == q.cols,
            "the matrices of attention do not fit together");
    require(shape_.value_dim == 0 || !t.value_norm, "values that are narrower than keys have no norm");
    const bool full = shape_.head_norm == HeadNorm::kAll;
    weights_.q = q;
    weights_.k = k;
    weights_.v = v;
    weights_.o = o;
    weights_.norm = data_of(t.norm, shape_.hidden);
    weights_.norm_bias = data_of(t.norm_bias, shape_.hidden);
    weights_.output_norm = data_of(t.output_norm, shape_.hidden);
    require(weights_.norm != nullptr || weights_.norm_bias == nullptr, "there is a bias of no norm");
    shape_.gate_apart = !t.gate.is_none();
    if (shape_.gate_apart) {
      weights_.gate = view(t.gate);
      require((weights_.gate.rows == queries || weights_.gate.rows == shape_.num_heads) &&
                  weights_.gate.cols == q.cols && !shape_.gated,
              "the gates of attention do not fit its heads");
    }
    require(shape_.gate_apart || !t.gate_bias, "there is a bias of no gates");
    weights_.gate_bias = data_of(t.gate_bias, shape_.num_heads);
    weights_.q_norm = data_of(t.query_norm, full ? queries : head_dim);
    weights_.k_norm = data_of(t.key_norm, full ? keys : head_dim);
    weights_.v_norm = data_of(t.value_norm, head_dim);
    weights_.q_bias = data_of(t.query_bias, q.rows);
    weights_.k_bias = data_of(t.key_bias, keys);
    weights_.v_bias = data_of(t.value_bias, v.rows);
    weights_.o_bias = data_of(t.output_bias, shape_.hidden);
    weights_.sinks = data_of(t.sinks, shape_.num_heads);
    const bool normed = shape_.head_norm != HeadNorm::kNone;
    require((weights_.q_norm != nullptr) == normed && (weights_.k_norm != nullptr) == normed,
            "head norms are missing");
  }

  void run(Rows x, Bytes keys, Bytes values, const std::string& format, std::int64_t capacity,
           std::int64_t length, ConstRows cos, ConstRows sin, std::optional<Ends> ends,
           std::optional<ChosenRows> chosen) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0));
    require(tokens >= 1, "there are no tokens");
    require(has_shape(x, tokens, shape_.hidden), "x is of another width than the matrices");
    const moeinf::KVView kv = moeinf::kept_view(shape_, keys, values, format, capacity, length, tokens);
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    require(!ends || has_shape(*ends, tokens), "ends are not those of the tokens");
    require(!ends || !chosen, "a token that sees others behind it has no choice");
    // Copies, as what is written may lie in the same memory.
    if (ends) ends_.assign(ends->data(), ends->data() + tokens);
    for (std::int64_t t = 0; ends && t < tokens; ++t) {
      const std::int64_t end = ends_[static_cast<std::size_t>(t)];
      require(end > length + t && end <= length + tokens, "ends lie before a token or behind all");
    }
    const moeinf::ChosenPositions positions =
        chosen ? checked(*chosen, tokens, length) : moeinf::ChosenPositions{};
    const moeinf::GilRelease released;
    moeinf::attend(*kernels_, shape_, weights_, kv, length, turns, moeinf::rows_of(x),
                   ends ? moeinf::Span<const std::int64_t>(ends_) : moeinf::Span<const std::int64_t>(),
                   positions);
  }

  // kept: keys, values, format, capacity and length of each sequence; rows: how many go on with it.
  void run_beside(Rows x, const std::vector<Kept>& kept, const std::vector<std::int64_t>& rows, ConstRows cos,
                  ConstRows sin) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0));
    require(has_shape(x, tokens, shape_.hidden), "x is of another width than the matrices");
    require(kept.size() == rows.size(), "there are as many sequences as numbers of rows");
    stretches_.clear();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& [keys, values, format, capacity, length] = kept[i];
      require(rows[i] >= 1 && rows[i] <= moeinf::kMostBeside, "a sequence has no rows, or too many");
      stretches_.push_back(
          {moeinf::kept_view(shape_, keys, values, format, capacity, length, rows[i]), length, rows[i]});
    }
    const moeinf::Turns turns = moeinf::turns_of(cos, sin, tokens, shape_.rotary_pairs);
    const moeinf::GilRelease released;
    moeinf::attend_beside(*kernels_, shape_, weights_, stretches_, turns, moeinf::rows_of(x));
  }

  // sizes: an object with the attributes of moeinf.types.AttentionSizes.
  static std::size_t workspace_bytes(nb::handle sizes, nb::handle pass) {
    AttentionShape shape{};
    shape.hidden = moeinf::number_of(sizes, "hidden_size");
    shape.num_heads = moeinf::number_of(sizes, "num_heads");
    shape.num_kv_heads = moeinf::number_of(sizes, "num_kv_heads");
    shape.head_dim = moeinf::number_of(sizes, "head_dim");
    shape.window = moeinf::number_of(sizes, "window");
    shape.gated = nb::cast<bool>(sizes.attr("gated"));
    shape.gate_apart = nb::cast<bool>(sizes.attr("gate_apart"));
    shape.ahead = moeinf::number_of(sizes, "ahead");
    shape.sees_all = nb::cast<bool>(sizes.attr("sees_all"));
    shape.most_chosen = moeinf::number_of(sizes, "most_chosen");
    shape.value_dim = moeinf::number_of(sizes, "value_dim");
    const moeinf::PassShape most = moeinf::pass_of(pass);
    require(shape.num_heads > 0 && shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
            "heads cannot share keys");
    const std::int64_t queries = moeinf::times({shape.num_heads, shape.head_dim});
    moeinf::require_room(
        most, {queries, moeinf::times({shape.num_heads, shape.value_dim}), shape.hidden, shape.ahead});
    moeinf::times({queries, std::max(shape.most_chosen, shape.ahead)});
    return moeinf::attention_workspace_bytes(shape, most);
  }

 private:
  // Each of the last tokens attends to itself or what is before it.
  moeinf::ChosenPositions checked(const ChosenRows& chosen, std::int64_t tokens, std::int64_t length) {
    const auto count = static_cast<std::int64_t>(chosen.shape(0)),
               groups = static_cast<std::int64_t>(chosen.shape(1)),
               each = static_cast<std::int64_t>(chosen.shape(2));
    require(count <= tokens && each > 0, "there are more choices than tokens");
    require(groups == 1 || groups == shape_.num_kv_heads, "there is one choice, or one for each key head");
    chosen_.assign(chosen.data(), chosen.data() + chosen.size());
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t* const of_token = chosen_.data() + t * groups * each;
      const std::int64_t own = length + tokens - count + t;
      require(of_token[0] >= 0, "no position is chosen");
      for (std::int64_t group = 0; group < groups; ++group) {
        for (std::int64_t i = 0; i < each; ++i) {
          const std::int64_t position = of_token[group * each + i];
          require((position < 0) == (of_token[i] < 0), "groups of heads choose as many positions");
          if (position < 0) break;
          require(position <= own, "a position is chosen that the token does not see");
        }
      }
    }
    return {chosen_.data(), count, each, groups};
  }

  nb::object kernels_object_;
  AttentionTensors tensors_;
  Kernels* kernels_;
  AttentionShape shape_;
  moeinf::AttentionWeights weights_{};
  std::vector<std::int64_t> ends_, chosen_;  // of the call
  std::vector<moeinf::Stretch> stretches_;
};

void bind_tensors(nb::module_& m) {
  nb::class_<AttentionTensors>(m, "AttentionTensors", "The matrices and vectors of a layer of attention.")
      .def(
          "__init__",
          [](AttentionTensors* self, nb::object query, nb::object key, nb::object value, nb::object output,
             OptionalVector norm, OptionalVector norm_bias, OptionalVector query_norm,
             OptionalVector key_norm, OptionalVector query_bias, OptionalVector key_bias,
             OptionalVector value_bias, OptionalVector output_bias, OptionalVector sinks,
             OptionalVector output_norm, OptionalVector value_norm, nb::object gate,
             OptionalVector gate_bias) {
            new (self)
                AttentionTensors{query,      key,         value,      output,   norm,       norm_bias,
                                 query_norm, key_norm,    query_bias, key_bias, value_bias, output_bias,
                                 sinks,      output_norm, value_norm, gate,     gate_bias};
          },
          nb::kw_only(), nb::arg("query"), nb::arg("key"), nb::arg("value"), nb::arg("output"),
          nb::arg("norm").noconvert() = nb::none(), nb::arg("norm_bias").noconvert() = nb::none(),
          nb::arg("query_norm").noconvert() = nb::none(), nb::arg("key_norm").noconvert() = nb::none(),
          nb::arg("query_bias").noconvert() = nb::none(), nb::arg("key_bias").noconvert() = nb::none(),
          nb::arg("value_bias").noconvert() = nb::none(), nb::arg("output_bias").noconvert() = nb::none(),
          nb::arg("sinks").noconvert() = nb::none(), nb::arg("output_norm").noconvert() = nb::none(),
          nb::arg("value_norm").noconvert() = nb::none(), nb::arg("gate") = nb::none(),
          nb::arg("gate_bias").noconvert() = nb::none());
}

void bind_shape(nb::module_& m) {
  nb::class_<AttentionShape>(m, "AttentionShape", "What attention computes, beside its tensors.")
      .def(
          "__init__",
          [](AttentionShape* self, std::int64_t head_dim, double norm_eps, const std::string& head_norm,
             double clip, std::int64_t window, std::optional<std::int64_t> rotary_dim, bool interleaved,
             std::optional<double> scale, double residual, bool gated, bool chunked, double sharpness,
             std::int64_t sharp_length, std::int64_t sharp_offset, bool replaces, bool softplus_gates,
             bool sharp_power, std::optional<double> front_eps, double cap, bool sees_all) {
            new (self) AttentionShape(shape_of(head_dim, norm_eps, head_norm, clip, window, rotary_dim,
                                               interleaved, scale, residual, gated));
            require(sharp_length > 0 && sharp_offset == moeinf::times({sharp_offset}),
                    "queries are not sharpened by such a length");
            self->chunked = chunked;
            self->sharpness = static_cast<float>(sharpness);
            self->sharp_length = sharp_length;
            self->sharp_offset = sharp_offset;
            self->replaces = replaces;
            self->softplus_gates = softplus_gates;
            self->sharp_power = sharp_power;
            self->front_eps = static_cast<float>(front_eps.value_or(norm_eps));
            require(cap >= 0 && std::isfinite(cap), "the cap of the scores is negative, or no number");
            self->cap = static_cast<float>(cap);
            self->sees_all = sees_all;
          },
          nb::kw_only(), nb::arg("head_dim"), nb::arg("norm_eps"), nb::arg("head_norm") = "none",
          nb::arg("clip") = 0.0, nb::arg("window") = 0, nb::arg("rotary_dim") = nb::none(),
          nb::arg("interleaved") = false, nb::arg("scale") = nb::none(), nb::arg("residual") = 1.0,
          nb::arg("gated") = false, nb::arg("chunked") = false, nb::arg("sharpness") = 0.0,
          nb::arg("sharp_length") = 1, nb::arg("sharp_offset") = 0, nb::arg("replaces") = false,
          nb::arg("softplus_gates") = false, nb::arg("sharp_power") = false,
          nb::arg("front_eps") = nb::none(), nb::arg("cap") = 0.0, nb::arg("sees_all") = false);
}

}  // namespace

void moeinf::bind_attention(nb::module_& m) {
  bind_tensors(m);
  bind_shape(m);
  nb::class_<AttentionLayer>(m, "AttentionLayer", "Self-attention of one layer, norm included.")
      .def(nb::init<nb::object, AttentionTensors, const AttentionShape&>(), nb::arg("kernels"),
           nb::arg("tensors"), nb::arg("shape"))
      .def("run", &AttentionLayer::run, nb::arg("x").noconvert(), nb::arg("keys").noconvert(),
           nb::arg("values").noconvert(), nb::arg("format"), nb::arg("capacity"), nb::arg("length"),
           nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("ends").noconvert() = nb::none(),
           nb::arg("chosen").noconvert() = nb::none(),
           "x [tokens, hidden] += residual * attention(norm(x)); stores the tokens' keys and values.")
      .def("run_beside", &AttentionLayer::run_beside, nb::arg("x").noconvert(), nb::arg("kept").noconvert(),
           nb::arg("rows"), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
           "The same of rows of several sequences, one behind the other.")
      .def_static("workspace_bytes", &AttentionLayer::workspace_bytes, nb::arg("sizes"), nb::arg("shape"));
}
