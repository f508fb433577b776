// Quantising for pull, and its checks; the GIL is released throughout, as each call works through megabytes.
#include "moeinf/compute/formats/formats.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "arrays.h"
#include "bindings.h"
#include "gil.h"
#include "moeinf/compute/formats/quantise.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Room = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatMatrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Throws where `found` is not what a matrix of the format takes.
void require_bytes(const char* what, std::size_t found, moeinf::Format format, std::int64_t rows,
                   std::int64_t cols) {
  moeinf::times({rows, cols});
  if (rows < 0 || cols < 1 || cols % moeinf::block_weights(format) != 0) {
    throw std::invalid_argument(std::to_string(rows) + " rows of " + std::to_string(cols) + " are no " +
                                moeinf::name_of(format) + " matrix");
  }
  const std::size_t wanted = static_cast<std::size_t>(rows) * moeinf::row_bytes(format, cols);
  if (found != wanted) {
    throw std::invalid_argument(std::string(what) + " has " + std::to_string(found) + " bytes, not " +
                                std::to_string(wanted));
  }
}

moeinf::Matrix matrix_of(const std::string& format, const Bytes& data, std::int64_t rows, std::int64_t cols) {
  const moeinf::Matrix matrix = {data.data(), moeinf::format_named(format), rows, cols};
  require_bytes("data", data.shape(0), matrix.format, rows, cols);
  return matrix;
}

void quantise(const std::string& format, const Bytes& source, const std::string& source_dtype,
              std::int64_t rows, std::int64_t cols, const Room& out,
              const moeinf::OptionalVector& importance) {
  const moeinf::Format to = moeinf::format_named(format), from = moeinf::format_named(source_dtype);
  require_bytes("source", source.shape(0), from, rows, cols);
  require_bytes("out", out.shape(0), to, rows, cols);
  const moeinf::GilRelease released;
  moeinf::quantise(to, source.data(), from, rows, cols, out.data(),
                   importance ? moeinf::Span<const float>(*importance) : moeinf::Span<const float>());
}

void quantise_in_turn(const std::string& format, const moeinf::ConstRows& weights,
                      const moeinf::ConstRows& asked, const moeinf::ConstRows& upper,
                      const moeinf::Vector& importance, const FloatMatrix& errors, const Room& out) {
  const moeinf::Format to = moeinf::format_named(format);
  const auto rows = static_cast<std::int64_t>(weights.shape(0)),
             cols = static_cast<std::int64_t>(weights.shape(1));
  require_bytes("out", out.shape(0), to, rows, cols);
  const auto is = [&](const auto& array, std::int64_t wanted) {
    return static_cast<std::int64_t>(array.shape(0)) == wanted && array.shape(1) == weights.shape(1);
  };
  if (!is(asked, rows) || !is(errors, rows) || !is(upper, cols) || importance.shape(0) != weights.shape(1))
    throw std::invalid_argument(
        "weights, asked and errors are [rows, cols], upper [cols, cols] and importance [cols]");
  const moeinf::GilRelease released;
  moeinf::quantise_in_turn(to, moeinf::rows_of(weights), moeinf::rows_of(asked), moeinf::rows_of(upper),
                           importance, moeinf::rows_of(errors), out.data());
}

void dequantise(const std::string& format, const Bytes& data, std::int64_t rows, std::int64_t cols,
                const FloatMatrix& out) {
  const moeinf::Matrix matrix = matrix_of(format, data, rows, cols);
  if (static_cast<std::int64_t>(out.shape(0)) != rows || static_cast<std::int64_t>(out.shape(1)) != cols) {
    throw std::invalid_argument("out is not of the shape [rows, cols]");
  }
  const moeinf::GilRelease released;
  moeinf::dequantise(matrix, out.data());
}

std::int64_t check_scales(const std::string& format, const Bytes& data, std::int64_t rows,
                          std::int64_t cols) {
  const moeinf::Matrix matrix = matrix_of(format, data, rows, cols);
  const moeinf::GilRelease released;
  return moeinf::first_bad_scale(matrix);
}

bool narrow_in_place(const Room& weights) {
  if (weights.shape(0) % sizeof(float) != 0) throw std::invalid_argument("float32 takes 4 bytes a weight");
  const moeinf::GilRelease released;
  return moeinf::narrow_in_place(weights.data(), weights.shape(0) / sizeof(float));
}

void repack_mxfp4(const Bytes& blocks, const Bytes& scales, const Room& out) {
  const auto num_blocks = static_cast<std::int64_t>(scales.shape(0));
  if (blocks.shape(0) != scales.shape(0) * 16 ||
      out.shape(0) != scales.shape(0) * sizeof(moeinf::BlockMXFP4)) {
    throw std::invalid_argument("16 bytes of blocks and 17 of out belong to each scale");
  }
  const moeinf::GilRelease released;
  moeinf::repack_mxfp4(blocks.data(), scales.data(), num_blocks,
                       reinterpret_cast<moeinf::BlockMXFP4*>(out.data()));
}

}  // namespace

void moeinf::bind_formats(nb::module_& m) {
  m.def("quantise", &::quantise, nb::arg("format"), nb::arg("source").noconvert(), nb::arg("source_dtype"),
        nb::arg("rows"), nb::arg("cols"), nb::arg("out").noconvert(),
        nb::arg("importance").noconvert() = nb::none());
  m.def("quantise_in_turn", &::quantise_in_turn, nb::arg("format"), nb::arg("weights").noconvert(),
        nb::arg("asked").noconvert(), nb::arg("upper").noconvert(), nb::arg("importance").noconvert(),
        nb::arg("errors").noconvert(), nb::arg("out").noconvert());
  m.def("dequantise", &::dequantise, nb::arg("format"), nb::arg("data").noconvert(), nb::arg("rows"),
        nb::arg("cols"), nb::arg("out").noconvert());
  m.def("check_scales", &::check_scales, nb::arg("format"), nb::arg("data").noconvert(), nb::arg("rows"),
        nb::arg("cols"));
  m.def("narrow_in_place", &::narrow_in_place, nb::arg("weights").noconvert());
  m.def("repack_mxfp4", &::repack_mxfp4, nb::arg("blocks").noconvert(), nb::arg("scales").noconvert(),
        nb::arg("out").noconvert());
}
