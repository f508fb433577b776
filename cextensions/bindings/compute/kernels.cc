// Threads, dense products and routed experts for Python. The GIL is released while anything is computed.
#include "moeinf/compute/kernels.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "compute/matrix.h"
#include "compute/pass.h"
#include "gil.h"
#include "moeinf/compute/layers/experts.h"
#include "vectors.h"

namespace nb = nanobind;

namespace {

using moeinf::BoundMatrix;
using moeinf::Kernels;
template <typename T, int Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;
using Floats = Array<const float, 2>;
using FloatsOut = Array<float, 2>;
using Ids = Array<const std::int64_t, 2>;
using Column = Array<const std::int64_t, 1>;
// Format, rows, cols, offset; of a part that is read with the rest of its file's blocks also start and step;
// and of one with a scale for each expert these.
using Part = nb::tuple;
using Parts = std::map<std::string, Part>;

template <typename T>
void require_shape(const char* name, const Array<T, 2>& array, std::int64_t rows, std::int64_t cols) {
  if (array.shape(0) == static_cast<std::size_t>(rows) && array.shape(1) == static_cast<std::size_t>(cols))
    return;
  throw std::invalid_argument(std::string(name) + " is [" + std::to_string(array.shape(0)) + ", " +
                              std::to_string(array.shape(1)) + "], not [" + std::to_string(rows) + ", " +
                              std::to_string(cols) + "]");
}

nb::object to_numpy(const std::vector<std::int64_t>& values) {
  auto* copy = new std::int64_t[values.size()];
  nb::capsule owner(copy, [](void* p) noexcept { delete[] static_cast<std::int64_t*>(p); });
  std::copy(values.begin(), values.end(), copy);
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(copy, {values.size()}, owner));
}

void require_span(std::int64_t num_bytes, int repeats) {
  moeinf::require(num_bytes >= 0 && repeats <= 1000, "num_bytes is negative, or there are too many repeats");
}

double read_rate(Kernels& kernels, std::int64_t num_bytes, int repeats) {
  require_span(num_bytes, repeats);
  const moeinf::GilRelease released;
  return moeinf::memory_read_rate(kernels.pool(), static_cast<std::size_t>(num_bytes), repeats);
}

std::vector<std::pair<double, double>> product_rates(Kernels& kernels, const BoundMatrix& w,
                                                     std::int64_t num_x, std::int64_t num_bytes,
                                                     int repeats) {
  require_span(num_bytes, repeats);
  const moeinf::GilRelease released;
  std::vector<std::pair<double, double>> pairs;
  for (const moeinf::ReadRates& each :
       moeinf::product_read_rates(kernels, w.view(), num_x, static_cast<std::size_t>(num_bytes), repeats))
    pairs.emplace_back(each.plain, each.product);
  return pairs;
}

std::vector<double> cached_rates(Kernels& kernels, const BoundMatrix& w, std::int64_t num_x, int repeats) {
  require_span(0, repeats);
  const moeinf::GilRelease released;
  return moeinf::cached_product_rates(kernels, w.view(), num_x, repeats);
}

moeinf::Activation activation_named(const std::string& name) {
  if (name == "silu") return moeinf::Activation::kSilu;
  if (name == "gelu") return moeinf::Activation::kGelu;
  if (name == "gelu_tanh") return moeinf::Activation::kGeluTanh;
  if (name == "quick_gelu") return moeinf::Activation::kQuickGelu;
  if (name == "relu") return moeinf::Activation::kRelu;
  if (name == "relu2") return moeinf::Activation::kSquaredRelu;
  if (name == "swiglu_clamped") return moeinf::Activation::kSwigluClamped;
  if (name == "silu_clamped") return moeinf::Activation::kSiluClamped;
  if (name == "clamped_silu") return moeinf::Activation::kClampedSilu;
  if (name == "softcapped") return moeinf::Activation::kSoftcapped;
  throw std::invalid_argument("activation is '" + name +
                              "'; it is 'silu', 'gelu', 'gelu_tanh', 'quick_gelu', 'relu', 'relu2', "
                              "'swiglu_clamped', 'silu_clamped', 'clamped_silu' or 'softcapped'");
}

void linear(Kernels& kernels, const Floats& x, const BoundMatrix& w, const FloatsOut& y,
            const std::optional<Array<const float, 1>>& bias, const std::optional<std::string>& activation) {
  const moeinf::Matrix matrix = w.view();
  const auto num_x = static_cast<std::int64_t>(x.shape(0));
  require_shape("x", x, num_x, matrix.cols);
  require_shape("y", y, num_x, matrix.rows);
  moeinf::require(!bias || bias->shape(0) == static_cast<std::size_t>(matrix.rows),
                  "the bias has another number than the matrix has rows");
  moeinf::Finish finish;
  if (bias) finish.bias = bias->data();
  if (activation) finish.activation = activation_named(*activation);
  moeinf::require(!finish.activation || *finish.activation <= moeinf::Activation::kSquaredRelu,
                  "the activation has limits");
  const moeinf::GilRelease released;
  kernels.linear(matrix, moeinf::rows_of(x), y.data(), finish);
}

void watch(Kernels& kernels, const BoundMatrix& w, const Array<float, 1>& sums) {
  moeinf::require(sums.shape(0) == static_cast<std::size_t>(w.view().cols),
                  "there is not one sum for each column");
  kernels.watch(w.view(), sums.data());
}

moeinf::ExpertPart part_of(const Part& part) {
  if (part.size() != 4 && part.size() != 6 && part.size() != 7)
    throw std::invalid_argument("a part has 4 values, 6 or 7");
  const auto number = [&](std::size_t i) { return nb::cast<std::int64_t>(part[i]); };
  const std::int64_t start = part.size() > 4 ? number(4) : 0, step = part.size() > 4 ? number(5) : 0;
  std::shared_ptr<const std::vector<float>> scales;
  if (part.size() == 7) scales = std::make_shared<std::vector<float>>(nb::cast<std::vector<float>>(part[6]));
  moeinf::require(start >= 0 && step >= 0, "a part begins before its block");
  moeinf::times({number(1), number(2)});
  const moeinf::Format format = moeinf::format_named(nb::cast<std::string>(part[0]));
  moeinf::require(number(1) > 0 && number(2) > 0 && number(2) % moeinf::block_weights(format) == 0,
                  "a part has rows of a whole number of blocks");
  moeinf::times({number(3)});
  return {format, number(1), number(2), static_cast<std::size_t>(number(3)), start, step, std::move(scales)};
}

// Holds the memory and the kernels that it works with.
class BoundExpertKernel {
 public:
  // form: None, or an object with the attributes of moeinf.types.ExpertForm, or one for each layer, which
  // have the same parts.
  BoundExpertKernel(nb::object kernels, BoundMatrix::Memory memory,
                    const std::vector<std::vector<Parts>>& layers, nb::object form)
      : kernels_(kernels),
        memory_(memory),
        kernel_(make(nb::cast<Kernels&>(kernels), memory, layers, form)) {}
  BoundExpertKernel(nb::object kernels, BoundMatrix::Memory memory, const std::vector<Parts>& layers,
                    nb::object form)
      : BoundExpertKernel(std::move(kernels), std::move(memory), in_one_slice(layers), std::move(form)) {}
  BoundExpertKernel(nb::object kernels, BoundMatrix::Memory memory, const Parts& parts, nb::object form)
      : BoundExpertKernel(std::move(kernels), std::move(memory), std::vector<Parts>{parts}, std::move(form)) {
  }

  nb::tuple begin(const Floats& hidden, const Ids& ids, const Floats& weights, std::int64_t layer) {
    const auto num_tokens = static_cast<std::int64_t>(hidden.shape(0));
    const auto top_k = static_cast<std::int64_t>(ids.shape(1));
    require_shape("hidden", hidden, num_tokens, kernel_.hidden_size());
    require_shape("ids", ids, num_tokens, top_k);
    require_shape("weights", weights, num_tokens, top_k);
    {
      const moeinf::GilRelease released;
      kernel_.begin(moeinf::rows_of(hidden), moeinf::rows_of(ids), weights.data(), layer);
    }
    return nb::make_tuple(to_numpy(kernel_.experts()), to_numpy(kernel_.counts()));
  }

  void compute(const Column& experts, const Column& offsets) {
    const moeinf::GilRelease released;
    kernel_.compute(experts, offsets);
  }

  void put(const Column& experts, const Floats& rows) {
    require_shape("rows", rows, static_cast<std::int64_t>(rows.shape(0)), kernel_.hidden_size());
    const moeinf::GilRelease released;
    kernel_.put(experts, moeinf::rows_of(rows));
  }

  void get(const Column& experts, const FloatsOut& rows) {
    require_shape("rows", rows, static_cast<std::int64_t>(rows.shape(0)), kernel_.hidden_size());
    // A copy, as the rows may lie in the same memory.
    const std::vector<std::int64_t> own(experts.data(), experts.data() + experts.shape(0));
    const moeinf::GilRelease released;
    kernel_.get(own, moeinf::rows_of(rows));
  }

  void watch(std::int64_t layer, const FloatsOut& inputs, const FloatsOut& acts,
             const Array<std::int64_t, 1>& counts) {
    moeinf::require(counts.shape(0) == inputs.shape(0), "there is not one count for each expert");
    kernel_.watch(layer, {moeinf::rows_of(inputs), moeinf::rows_of(acts), counts.data()});
  }

  void norm_outputs(std::int64_t layer, const Array<const float, 1>& scale, float eps) {
    kernel_.norm_outputs(layer, {scale.data(), scale.data() + scale.size()}, eps);
  }

  void acts(const FloatsOut& out) {
    const moeinf::GilRelease released;
    kernel_.acts(moeinf::rows_of(out));
  }

  std::size_t scratch_bytes() const { return kernel_.scratch_bytes(); }
  void release_scratch() { kernel_.release_scratch(); }

  static std::size_t workspace_bytes(const Parts& parts, std::int64_t top_k, nb::handle pass) {
    const auto part = [&](const char* name) -> std::optional<moeinf::ExpertPart> {
      const auto found = parts.find(name);
      return found == parts.end() ? std::nullopt : std::optional(part_of(found->second));
    };
    const auto gate = part("gate"), up = part("up"), down = part("down");
    if (!up || !down) throw std::invalid_argument("an expert lacks the part up or down");
    const moeinf::PassShape most = moeinf::pass_of(pass);
    for (const moeinf::ExpertPart& each : {gate.value_or(*up), *up, *down})
      moeinf::require_room(
          most, {moeinf::times({std::max(each.rows, each.cols), std::max<std::int64_t>(1, top_k)})});
    return moeinf::ExpertKernel::workspace_bytes({gate, *up, *down, {}, {}, {}}, moeinf::times({top_k}),
                                                 most);
  }

  void finish(const FloatsOut& out) {
    if (kernel_.has_begun()) require_shape("out", out, kernel_.num_tokens(), kernel_.hidden_size());
    const moeinf::GilRelease released;
    kernel_.finish(out.data());
  }

 private:
  static std::vector<std::vector<Parts>> in_one_slice(const std::vector<Parts>& layers) {
    std::vector<std::vector<Parts>> found;
    for (const Parts& parts : layers) found.push_back({parts});
    return found;
  }

  // Of all slices together the parts that the form calls for; a form of None has gate, up and down.
  static std::vector<moeinf::ExpertSlice> named_slices(const std::vector<Parts>& slices,
                                                       const nb::object& form) {
    const bool plain = form.is_none(), gated = plain || nb::cast<bool>(form.attr("gated")),
               biased = !plain && nb::cast<bool>(form.attr("biased"));
    std::vector<moeinf::ExpertSlice> found(slices.size());
    std::size_t num_given = 0, num_found = 0;
    for (const Parts& parts : slices) num_given += parts.size();
    const auto take = [&](const char* name, std::optional<moeinf::ExpertPart> moeinf::ExpertSlice::* part) {
      const std::size_t before = num_found;
      for (std::size_t i = 0; i < slices.size(); ++i) {
        const auto place = slices[i].find(name);
        if (place == slices[i].end()) continue;
        found[i].*part = part_of(place->second);
        ++num_found;
      }
      if (num_found == before) throw std::invalid_argument(std::string("an expert lacks the part ") + name);
    };
    using Slice = moeinf::ExpertSlice;
    if (gated) take("gate", &Slice::gate);
    take("up", &Slice::up);
    take("down", &Slice::down);
    if (gated && biased) take("gate_bias", &Slice::gate_bias);
    if (biased) take("up_bias", &Slice::up_bias);
    if (biased) take("down_bias", &Slice::down_bias);
    if (num_found != num_given) throw std::invalid_argument("an expert has parts that its form has not");
    return found;
  }

  static moeinf::ExpertKernel make(Kernels& kernels, const BoundMatrix::Memory& memory,
                                   const std::vector<std::vector<Parts>>& layers, const nb::object& form) {
    std::vector<nb::object> given;
    if (nb::isinstance<nb::sequence>(form)) {
      for (const nb::handle each : form) given.push_back(nb::borrow(each));
    } else {
      given.push_back(form);
    }
    if (given.empty()) throw std::invalid_argument("experts have one form, or one for each layer");
    std::vector<std::vector<moeinf::ExpertSlice>> found;
    for (const std::vector<Parts>& slices : layers) found.push_back(named_slices(slices, given[0]));
    std::vector<moeinf::ExpertForm> forms;
    for (const nb::object& each : given) {
      if (each.is_none()) {
        forms.push_back({});
      } else {
        forms.push_back({activation_named(nb::cast<std::string>(each.attr("activation"))),
                         {nb::cast<float>(each.attr("limit")), nb::cast<float>(each.attr("gate_limit"))}});
      }
    }
    return {kernels, memory.data(), memory.shape(0), found, forms};
  }

  nb::object kernels_;
  BoundMatrix::Memory memory_;
  moeinf::ExpertKernel kernel_;
};

}  // namespace

void moeinf::bind_kernels(nb::module_& m) {
  nb::class_<BoundMatrix>(m, "Matrix", "A weight matrix in bytes that it keeps alive.")
      .def(nb::init<BoundMatrix::Memory, const std::string&, std::int64_t, std::int64_t, float>(),
           nb::arg("memory").noconvert(), nb::arg("format"), nb::arg("rows"), nb::arg("cols"),
           nb::arg("scale") = 1.0F);
  nb::class_<Kernels>(m, "Kernels", "A pool of threads, and the inner loops of one instruction set.")
      .def(nb::init<int, const std::string&>(), nb::arg("threads"), nb::arg("isa") = "")
      .def_prop_ro("isa", [](const Kernels& kernels) { return std::string(kernels.ops().name); })
      .def_prop_ro("threads", [](Kernels& kernels) { return kernels.pool().num_threads(); })
      .def_prop_ro("scratch_bytes", &Kernels::scratch_bytes)
      .def("release_scratch", &Kernels::release_scratch)
      .def(
          "begin_pass",
          [](Kernels& kernels, std::int64_t tokens) { kernels.begin_pass(moeinf::times({tokens})); },
          nb::arg("tokens"))
      .def_prop_ro("pass_tokens", [](const Kernels& kernels) { return kernels.tokens_of_pass(0); })
      .def("linear", &linear, nb::arg("x").noconvert(), nb::arg("w"), nb::arg("y").noconvert(),
           nb::arg("bias").noconvert() = nb::none(), nb::arg("activation") = nb::none())
      .def("watch", &watch, nb::arg("w"), nb::arg("sums").noconvert(), nb::keep_alive<1, 2>(),
           nb::keep_alive<1, 3>())
      .def_static(
          "linear_workspace_bytes",
          [](std::int64_t cols, nb::handle pass) {
            const moeinf::PassShape most = moeinf::pass_of(pass);
            moeinf::require_room(most, {cols});
            return moeinf::linear_workspace_bytes(most, cols);
          },
          nb::arg("cols"), nb::arg("shape"))
      .def_static(
          "panel_bytes", [](nb::handle pass) { return moeinf::panel_bytes(moeinf::pass_of(pass)); },
          nb::arg("shape"));
  nb::class_<BoundExpertKernel>(m, "ExpertKernel",
                                "The routed experts of one layer, computed as they arrive.")
      .def(nb::init<nb::object, BoundMatrix::Memory, const Parts&, nb::object>(), nb::arg("kernels"),
           nb::arg("memory").noconvert(), nb::arg("parts"), nb::arg("form") = nb::none())
      .def(nb::init<nb::object, BoundMatrix::Memory, const std::vector<Parts>&, nb::object>(),
           nb::arg("kernels"), nb::arg("memory").noconvert(), nb::arg("parts"), nb::arg("form") = nb::none())
      .def(nb::init<nb::object, BoundMatrix::Memory, const std::vector<std::vector<Parts>>&, nb::object>(),
           nb::arg("kernels"), nb::arg("memory").noconvert(), nb::arg("parts"), nb::arg("form") = nb::none())
      .def("begin", &BoundExpertKernel::begin, nb::arg("hidden").noconvert(), nb::arg("ids").noconvert(),
           nb::arg("weights").noconvert(), nb::arg("layer") = 0)
      .def("compute", &BoundExpertKernel::compute, nb::arg("experts").noconvert(),
           nb::arg("offsets").noconvert())
      .def("put", &BoundExpertKernel::put, nb::arg("experts").noconvert(), nb::arg("rows").noconvert())
      .def("get", &BoundExpertKernel::get, nb::arg("experts").noconvert(), nb::arg("rows").noconvert())
      .def("finish", &BoundExpertKernel::finish, nb::arg("out").noconvert())
      .def("acts", &BoundExpertKernel::acts, nb::arg("out").noconvert())
      .def("norm_outputs", &BoundExpertKernel::norm_outputs, nb::arg("layer"), nb::arg("scale").noconvert(),
           nb::arg("eps"))
      .def("watch", &BoundExpertKernel::watch, nb::arg("layer"), nb::arg("inputs").noconvert(),
           nb::arg("acts").noconvert(), nb::arg("counts").noconvert(), nb::keep_alive<1, 3>(),
           nb::keep_alive<1, 4>(), nb::keep_alive<1, 5>())
      .def_prop_ro("scratch_bytes", &BoundExpertKernel::scratch_bytes)
      .def("release_scratch", &BoundExpertKernel::release_scratch)
      .def_static("workspace_bytes", &BoundExpertKernel::workspace_bytes, nb::arg("parts"), nb::arg("top_k"),
                  nb::arg("shape"));
  m.def("memory_read_rate", &read_rate, nb::arg("kernels"), nb::arg("num_bytes"), nb::arg("repeats"));
  m.def("product_read_rates", &product_rates, nb::arg("kernels"), nb::arg("w"), nb::arg("num_x"),
        nb::arg("num_bytes"), nb::arg("repeats"));
  m.def("cached_product_rates", &cached_rates, nb::arg("kernels"), nb::arg("w"), nb::arg("num_x"),
        nb::arg("repeats"));
  m.def("available_isas", &moeinf::available_isas);
}
