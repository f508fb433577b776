// Arrays that layers are given from Python, and how a call that cannot be meant is refused.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <stdexcept>

#include "moeinf/span.h"

namespace moeinf {

using Vector = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Rows = nanobind::ndarray<float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using ConstRows =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Heads = nanobind::ndarray<float, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;
using ConstHeads =
    nanobind::ndarray<const float, nanobind::ndim<3>, nanobind::c_contig, nanobind::device::cpu>;
using OptionalVector = std::optional<Vector>;  // None where the model has no such tensor
using OptionalRows = std::optional<ConstRows>;
using Bytes = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The rows of an array of two dimensions.
template <typename T, typename... Traits>
RowSpan<T> rows_of(const nanobind::ndarray<T, Traits...>& array) {
  return {array.data(), static_cast<std::int64_t>(array.shape(0)), static_cast<std::int64_t>(array.shape(1))};
}

// ValueError in Python.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <typename Array>
std::int64_t size(const Array& array, std::size_t dimension) {
  return static_cast<std::int64_t>(array.shape(dimension));
}

// Whether the array has these sizes, one for each of its dimensions.
template <typename Array, typename... Sizes>
bool has_shape(const Array& array, Sizes... sizes) {
  std::size_t dimension = 0;
  return array.ndim() == sizeof...(sizes) && ((size(array, dimension++) == sizes) && ...);
}

template <typename Array>
auto* data_of(const std::optional<Array>& found) {
  return found ? found->data() : nullptr;
}

// The product of sizes that Python gave: whatever is counted with it is a number. ValueError for a size below
// 0, and for more than any memory holds.
inline std::int64_t times(std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  std::int64_t product = 1;
  for (const std::int64_t size : sizes) {
    require(size >= 0 && size <= kMost && (size == 0 || product <= kMost / size),
            "a size is negative, or beyond what any memory holds");
    product *= size;
  }
  return product;
}

}  // namespace moeinf
