// Arrays that layers are given from Python, and how a call that cannot be meant is refused.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>

namespace moeinf {

using Vector = nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Rows = nanobind::ndarray<float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using ConstRows =
    nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Bytes = nanobind::ndarray<std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// ValueError in Python.
inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
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
