// Attention and router steps for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "matrix.h"
#include "moeinf/compute/layers/attention.h"
#include "moeinf/compute/layers/router.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::Bytes;
using moeinf::ConstRows;
using moeinf::Kernels;
using moeinf::require;
using moeinf::Rows;
using moeinf::Vector;
using Ids = nb::ndarray<std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

moeinf::HeadNorm head_norm(const std::string& name) {
  if (name == "none") return moeinf::HeadNorm::kNone;
  if (name == "head") return moeinf::HeadNorm::kEach;
  if (name == "full") return moeinf::HeadNorm::kAll;
  throw std::invalid_argument("head norm is '" + name + "'; it is 'none', 'head' or 'full'");
}

// Holds every array it was given, so the addresses stay good.
class AttentionLayer {
 public:
  AttentionLayer(nb::object kernels, nb::list matrices, Vector norm, nb::list vectors, std::int64_t head_dim,
                 double norm_eps, const std::string& norm_kind, double clip, std::int64_t window,
                 std::optional<std::int64_t> rotary_dim, bool interleaved, std::optional<double> scale,
                 double residual, bool gated, std::optional<Vector> norm_bias, std::optional<Vector> sinks)
      : kernels_object_(kernels),
        matrices_(matrices),
        norm_(norm),
        vectors_(vectors),
        norm_bias_(norm_bias),
        sinks_(sinks),
        kernels_(nb::cast<Kernels*>(kernels)) {
    require(matrices.size() == 4 && vectors.size() == 6, "attention takes 4 matrices and 6 vectors");
    const moeinf::Matrix q = matrix(0), k = matrix(1), v = matrix(2), o = matrix(3);
    require(head_dim > 0 && head_dim <= moeinf::kMaxHeadDim && head_dim % 2 == 0,
            "head_dim is odd or too large");
    shape_.hidden = q.cols;
    shape_.head_dim = head_dim;
    shape_.num_heads = q.rows / head_dim / (gated ? 2 : 1);
    shape_.num_kv_heads = k.rows / head_dim;
    shape_.norm_eps = static_cast<float>(norm_eps);
    shape_.head_norm = head_norm(norm_kind);
    shape_.clip = static_cast<float>(clip);
    shape_.window = window;
    shape_.rotary_pairs = rotary_dim.value_or(head_dim) / 2;
    shape_.interleaved = interleaved;
    shape_.scale = static_cast<float>(scale.value_or(1 / std::sqrt(static_cast<double>(head_dim))));
    shape_.residual = static_cast<float>(residual);
    shape_.gated = gated;
    require(2 * shape_.rotary_pairs == rotary_dim.value_or(head_dim) && shape_.rotary_pairs >= 0 &&
                2 * shape_.rotary_pairs <= head_dim,
            "rotary_dim is odd, negative or beyond head_dim");
    require(shape_.scale > 0, "the scale of the scores is not positive");
    require(shape_.num_kv_heads > 0 && shape_.num_heads % shape_.num_kv_heads == 0,
            "heads cannot share keys");
    const std::int64_t queries = shape_.num_heads * head_dim, keys = k.rows;
    require(q.rows == queries * (gated ? 2 : 1) && k.cols == q.cols && v.cols == q.cols && v.rows == keys &&
                keys % head_dim == 0 && o.cols == queries && o.rows == q.cols &&
                static_cast<std::int64_t>(norm.shape(0)) == q.cols,
            "the matrices of attention do not fit together");
    const bool full = shape_.head_norm == moeinf::HeadNorm::kAll;
    weights_ = {q,
                k,
                v,
                o,
                norm.data(),
                vector(0, full ? queries : head_dim),
                vector(1, full ? keys : head_dim),
                vector(2, q.rows),
                vector(3, keys),
                vector(4, keys),
                vector(5, shape_.hidden),
                data_of(norm_bias_, shape_.hidden),
                data_of(sinks_, shape_.num_heads)};
    require((weights_.q_norm != nullptr) == (shape_.head_norm != moeinf::HeadNorm::kNone),
            "head norms are missing");
  }

  void run(Rows x, Bytes keys, Bytes values, const std::string& format, std::int64_t capacity,
           std::int64_t length, ConstRows cos, ConstRows sin) {
    const auto tokens = static_cast<std::int64_t>(x.shape(0));
    const moeinf::Format kind = moeinf::format_named(format);
    require(moeinf::block_weights(kind) == 1, "keys and values are f32, f16 or bf16");
    const std::size_t needed = moeinf::row_bytes(kind, shape_.num_kv_heads * capacity * shape_.head_dim);
    require(tokens >= 1, "there are no tokens");
    require(static_cast<std::int64_t>(x.shape(1)) == shape_.hidden,
            "x is of another width than the matrices");
    require(
        length >= 0 && length + tokens <= capacity && keys.shape(0) >= needed && values.shape(0) >= needed,
        "the cache is too small");
    const auto pairs = static_cast<std::size_t>(shape_.rotary_pairs);
    require(pairs == 0 || (cos.shape(0) == x.shape(0) && sin.shape(0) == x.shape(0) &&
                           cos.shape(1) == pairs && sin.shape(1) == pairs),
            "cos and sin are [tokens, rotary_dim / 2]");
    const nb::gil_scoped_release released;
    moeinf::attend(*kernels_, shape_, weights_, {keys.data(), values.data(), kind, capacity}, length,
                   cos.data(), sin.data(), x.data(), tokens);
  }

 private:
  moeinf::Matrix matrix(std::size_t i) const { return nb::cast<const BoundMatrix&>(matrices_[i]).view(); }
  const float* vector(std::size_t i, std::int64_t length) const {
    const nb::object item = vectors_[i];
    if (item.is_none()) return nullptr;
    const auto found = nb::cast<Vector>(item, false);
    return data_of(found, length);
  }
  static const float* data_of(const std::optional<Vector>& found, std::int64_t length) {
    if (!found) return nullptr;
    require(static_cast<std::int64_t>(found->shape(0)) == length, "a norm or bias has the wrong length");
    return found->data();
  }

  nb::object kernels_object_;
  nb::list matrices_;
  Vector norm_;
  nb::list vectors_;
  std::optional<Vector> norm_bias_, sinks_;
  Kernels* kernels_;
  moeinf::AttentionShape shape_{};
  moeinf::AttentionWeights weights_{};
};

class RouterLayer {
 public:
  RouterLayer(nb::object kernels, nb::object gate, Vector norm, double norm_eps, std::int64_t top_k,
              bool normalise)
      : kernels_object_(kernels), gate_(gate), norm_(norm), kernels_(nb::cast<Kernels*>(kernels)) {
    const moeinf::Matrix matrix = nb::cast<const BoundMatrix&>(gate).view();
    require(static_cast<std::int64_t>(norm.shape(0)) == matrix.cols,
            "the norm is of another width than the router");
    require(top_k >= 1 && top_k <= matrix.rows, "top_k is beyond the number of experts");
    router_ = {norm.data(), static_cast<float>(norm_eps), matrix, top_k, normalise};
  }

  void run(ConstRows x, Rows hidden, Ids ids, Rows weights) {
    const std::size_t tokens = x.shape(0), k = static_cast<std::size_t>(router_.top_k);
    require(static_cast<std::int64_t>(x.shape(1)) == router_.gate.cols && hidden.shape(0) == tokens &&
                hidden.shape(1) == x.shape(1) && ids.shape(0) == tokens && ids.shape(1) == k &&
                weights.shape(0) == tokens && weights.shape(1) == k,
            "the router's arrays are [tokens, hidden] and [tokens, top_k]");
    const nb::gil_scoped_release released;
    moeinf::route(*kernels_, router_, x.data(), static_cast<std::int64_t>(tokens), hidden.data(), ids.data(),
                  weights.data());
  }

 private:
  nb::object kernels_object_, gate_;
  Vector norm_;
  Kernels* kernels_;
  moeinf::RouterWeights router_{};
};

void norm_rows(Kernels& kernels, ConstRows x, Vector weight, double eps, Rows out) {
  require(weight.shape(0) == x.shape(1) && out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1),
          "rms_norm's arrays are of different widths");
  const nb::gil_scoped_release released;
  moeinf::rms_norm(kernels, x.data(), weight.data(), static_cast<float>(eps),
                   static_cast<std::int64_t>(x.shape(0)), static_cast<std::int64_t>(x.shape(1)), out.data());
}

void layer_norm_rows(Kernels& kernels, ConstRows x, Vector weight, Vector bias, double eps, Rows out) {
  require(weight.shape(0) == x.shape(1) && bias.shape(0) == x.shape(1) && out.shape(0) == x.shape(0) &&
              out.shape(1) == x.shape(1),
          "layer_norm's arrays are of different widths");
  const nb::gil_scoped_release released;
  moeinf::layer_norm(kernels, x.data(), weight.data(), bias.data(), static_cast<float>(eps),
                     static_cast<std::int64_t>(x.shape(0)), static_cast<std::int64_t>(x.shape(1)),
                     out.data());
}

}  // namespace

void moeinf::bind_decoder(nb::module_& m) {
  nb::class_<AttentionLayer>(m, "AttentionLayer", "Self-attention of one layer, norm included.")
      .def(nb::init<nb::object, nb::list, Vector, nb::list, std::int64_t, double, const std::string&, double,
                    std::int64_t, std::optional<std::int64_t>, bool, std::optional<double>, double, bool,
                    std::optional<Vector>, std::optional<Vector>>(),
           nb::arg("kernels"), nb::arg("matrices"), nb::arg("norm").noconvert(), nb::arg("vectors"),
           nb::arg("head_dim"), nb::arg("norm_eps"), nb::arg("head_norm"), nb::arg("clip"), nb::arg("window"),
           nb::kw_only(), nb::arg("rotary_dim") = nb::none(), nb::arg("interleaved") = false,
           nb::arg("scale") = nb::none(), nb::arg("residual") = 1.0, nb::arg("gated") = false,
           nb::arg("norm_bias").noconvert() = nb::none(), nb::arg("sinks").noconvert() = nb::none())
      .def("run", &AttentionLayer::run, nb::arg("x").noconvert(), nb::arg("keys").noconvert(),
           nb::arg("values").noconvert(), nb::arg("format"), nb::arg("capacity"), nb::arg("length"),
           nb::arg("cos").noconvert(), nb::arg("sin").noconvert(),
           "x [tokens, hidden] += residual * attention(norm(x)); stores the tokens' keys and values.");
  nb::class_<RouterLayer>(m, "RouterLayer", "Norm and softmax router of one MoE layer.")
      .def(nb::init<nb::object, nb::object, Vector, double, std::int64_t, bool>(), nb::arg("kernels"),
           nb::arg("gate"), nb::arg("norm").noconvert(), nb::arg("norm_eps"), nb::arg("top_k"),
           nb::arg("normalise"))
      .def("run", &RouterLayer::run, nb::arg("x").noconvert(), nb::arg("hidden").noconvert(),
           nb::arg("ids").noconvert(), nb::arg("weights").noconvert(),
           "Writes norm(x), the chosen experts, largest weight first, and their weights.");
  m.def("rms_norm", &norm_rows, nb::arg("kernels"), nb::arg("x").noconvert(), nb::arg("weight").noconvert(),
        nb::arg("eps"), nb::arg("out").noconvert());
  m.def("layer_norm", &layer_norm_rows, nb::arg("kernels"), nb::arg("x").noconvert(),
        nb::arg("weight").noconvert(), nb::arg("bias").noconvert(), nb::arg("eps"),
        nb::arg("out").noconvert());
}
