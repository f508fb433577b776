// Pages that lie at several addresses: moeinf._native.SharedPages and MappedPages.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>
#include <memory>

#include "bindings.h"
#include "gil.h"
#include "moeinf/io/shared_pages.h"

namespace nb = nanobind;
using moeinf::MappedPages;
using moeinf::SharedPages;

void moeinf::bind_pages(nb::module_& m) {
  nb::class_<SharedPages>(m, "SharedPages", "Memory whose pages may lie at several addresses at once.")
      .def(nb::init<>())
      .def_prop_ro("page_bytes", [](const SharedPages&) { return SharedPages::page_bytes(); })
      .def_prop_ro("num_bytes", &SharedPages::num_bytes)
      .def_prop_ro("used_bytes", &SharedPages::used_bytes)
      .def("grow", &SharedPages::grow, nb::arg("num_bytes"))
      .def(
          "release",
          [](const SharedPages& self, std::int64_t offset, std::int64_t start, std::int64_t num_bytes,
             std::int64_t stride, std::int64_t count) {
            const GilRelease released;
            return self.release(offset, {start, num_bytes, stride, count});
          },
          nb::arg("offset"), nb::arg("start"), nb::arg("num_bytes"), nb::arg("stride"), nb::arg("count"));
  nb::class_<MappedPages>(m, "MappedPages", "A range of addresses over pages of SharedPages.")
      .def(nb::init<std::shared_ptr<SharedPages>, std::int64_t, std::int64_t>(), nb::arg("pages"),
           nb::arg("offset"), nb::arg("num_bytes"))
      .def(
          "map",
          [](MappedPages& self, std::int64_t offset, std::int64_t start, std::int64_t num_bytes,
             std::int64_t stride,
             std::int64_t count) { self.map(offset, {start, num_bytes, stride, count}); },
          nb::arg("offset"), nb::arg("start"), nb::arg("num_bytes"), nb::arg("stride"), nb::arg("count"))
      .def(
          "array",
          [](nb::pointer_and_handle<MappedPages> self) {
            return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(
                self.p->data(), {static_cast<std::size_t>(self.p->num_bytes())}, self.h);
          },
          "All of it as a writable array that keeps the memory alive.");
}
