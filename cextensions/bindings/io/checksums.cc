// CRC-32C for what is not read block by block; the GIL is released throughout.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "gil.h"
#include "moeinf/io/crc32c.h"

namespace nb = nanobind;

namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::size_t num_units(std::size_t num_bytes, std::size_t unit_bytes) {
  if (unit_bytes == 0) throw std::invalid_argument("a unit has at least one byte");
  return num_bytes / unit_bytes + (num_bytes % unit_bytes != 0);
}

std::uint32_t sum_of_unit(const Bytes& data, std::size_t unit_bytes, std::size_t unit) {
  const std::size_t start = unit * unit_bytes;
  return moeinf::crc32c(data.data() + start, std::min(unit_bytes, data.shape(0) - start));
}

std::uint32_t crc32c(const Bytes& data, std::uint32_t before) {
  const moeinf::GilRelease released;
  return moeinf::crc32c_shift(before, data.shape(0)) ^ moeinf::crc32c(data.data(), data.shape(0));
}

nb::object crc32c_units(const Bytes& data, std::size_t unit_bytes) {
  const std::size_t count = num_units(data.shape(0), unit_bytes);
  auto sums = std::make_unique<std::uint32_t[]>(count);
  {
    const moeinf::GilRelease released;
    for (std::size_t unit = 0; unit < count; ++unit) sums[unit] = sum_of_unit(data, unit_bytes, unit);
  }
  std::uint32_t* first = sums.get();
  nb::capsule owner(first, [](void* p) noexcept { delete[] static_cast<std::uint32_t*>(p); });
  sums.release();
  return nb::cast(nb::ndarray<nb::numpy, std::uint32_t, nb::ndim<1>>(first, {count}, owner));
}

std::uint32_t crc32c_joined(const Sums& sums, std::size_t unit_bytes, std::size_t num_bytes) {
  if (num_units(num_bytes, unit_bytes) != sums.shape(0)) {
    throw std::invalid_argument(std::to_string(sums.shape(0)) + " sums do not cover " +
                                std::to_string(num_bytes) + " bytes");
  }
  const moeinf::GilRelease released;
  std::uint32_t joined = 0;
  for (std::size_t unit = 0; unit < sums.shape(0); ++unit) {
    const std::size_t length = std::min(unit_bytes, num_bytes - unit * unit_bytes);
    joined = moeinf::crc32c_shift(joined, length) ^ sums.data()[unit];
  }
  return joined;
}

}  // namespace

void moeinf::bind_checksums(nb::module_& m) {
  m.def("crc32c", &::crc32c, nb::arg("data"), nb::arg("before") = 0);
  m.def("crc32c_units", &::crc32c_units, nb::arg("data"), nb::arg("unit_bytes"));
  m.def("crc32c_joined", &::crc32c_joined, nb::arg("sums").noconvert(), nb::arg("unit_bytes"),
        nb::arg("num_bytes"));
}
