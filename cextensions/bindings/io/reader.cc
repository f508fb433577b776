// moeinf._native.NativeReader and ReadFailure for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "io/native_reader.h"
#include "moeinf/errors.h"
#include "vectors.h"

namespace nb = nanobind;
using moeinf::Arena;
using moeinf::NativeReader;
using moeinf::path_text;

namespace {

nb::object read_failure_type() { return nb::module_::import_("moeinf._native").attr("ReadFailure"); }

// The path as the system takes it: names of files need not be UTF-8.
std::string path_bytes(const nb::object& path) {
  PyObject* converted = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &converted) == 0) throw nb::python_error();
  const nb::bytes bytes = nb::steal<nb::bytes>(converted);
  return {bytes.c_str(), bytes.size()};
}

std::vector<std::string> path_bytes(const std::vector<nb::object>& paths) {
  std::vector<std::string> bytes;
  for (const nb::object& path : paths) bytes.push_back(path_bytes(path));
  return bytes;
}

// cuts: (period, first) of each file, where two disks share them.
moeinf::Copies copies_of(int num_disks, const std::vector<std::pair<std::int64_t, std::int64_t>>& cuts) {
  moeinf::Copies copies;
  copies.num_disks = num_disks;
  for (const auto& [period, first] : cuts) copies.cuts.push_back({period, first});
  return copies;
}

moeinf::BackendKind backend_kind(const std::string& name) {
  if (name == "auto") return moeinf::BackendKind::kAuto;
  if (name == "io_uring") return moeinf::BackendKind::kRing;
  if (name == "threads") return moeinf::BackendKind::kThreads;
  throw std::invalid_argument("backend is '" + name + "'; it is 'auto', 'io_uring' or 'threads'");
}

void raise_read_failure(const moeinf::ReadFailure& failure) {
  PyErr_SetObject(read_failure_type().ptr(), moeinf::read_failure_object(failure).ptr());
}

void raise_system_failure(const moeinf::SystemFailure& failure) {
  if (failure.path.empty()) {
    PyErr_SetObject(PyExc_OSError, nb::make_tuple(failure.error, path_text(failure.what())).ptr());
    return;
  }
  errno = failure.error;  // the subclass follows from it: FileNotFoundError, PermissionError
  PyErr_SetFromErrnoWithFilename(PyExc_OSError, failure.path.c_str());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const moeinf::ReadFailure& failure) {
    raise_read_failure(failure);
  } catch (const moeinf::SystemFailure& failure) {
    raise_system_failure(failure);
  }
}

void bind_read_failure(nb::module_& m) {
  const nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc("moeinf._native.ReadFailure",
                                          "A read that failed or came back short; errno is 0 where the file "
                                          "has the wrong size. key is -1 at opening.",
                                          PyExc_OSError, nullptr));
  if (!type.is_valid()) throw nb::python_error();
  m.attr("ReadFailure") = type;
}

void bind_native_reader(nb::module_& m) {
  nb::class_<NativeReader>(m, "NativeReader",
                           "moeinf.runtime.io.reader_protocol.Reader over io_uring or a pool of threads.")
      .def(
          "__init__",
          [](NativeReader* self, const std::vector<nb::object>& paths, std::vector<std::int64_t> sizes,
             std::shared_ptr<Arena> arena, const std::string& backend, bool direct, int queue_depth,
             int prefetch_depth, std::int64_t segment_bytes, nb::object on_wait, int disks,
             const std::vector<std::pair<std::int64_t, std::int64_t>>& cuts) {
            moeinf::ReaderOptions options;
            options.copies = copies_of(disks, cuts);
            options.backend = backend_kind(backend);
            options.access = direct ? moeinf::Access::kDirect : moeinf::Access::kCached;
            options.queue_depth = queue_depth;
            options.prefetch_depth = prefetch_depth;
            options.segment_bytes = segment_bytes;
            new (self) NativeReader(path_bytes(paths), std::move(sizes), std::move(arena), options,
                                    std::move(on_wait));
          },
          nb::arg("paths"), nb::arg("sizes"), nb::arg("arena"), nb::kw_only(), nb::arg("backend") = "auto",
          nb::arg("direct") = true, nb::arg("queue_depth") = moeinf::ReaderOptions().queue_depth,
          nb::arg("prefetch_depth") = moeinf::ReaderOptions().prefetch_depth,
          nb::arg("segment_bytes") = moeinf::ReaderOptions().segment_bytes,
          nb::arg("on_wait").none() = nb::none(), nb::arg("disks") = 1,
          nb::arg("cuts") = std::vector<std::pair<std::int64_t, std::int64_t>>())
      .def_prop_ro("backend", &NativeReader::backend)
      .def_prop_ro("notice", &NativeReader::notice)
      .def("expect", &NativeReader::expect, nb::arg("files").noconvert(), nb::arg("offsets").noconvert(),
           nb::arg("num_bytes"), nb::arg("sums").noconvert(), nb::kw_only(), nb::arg("always") = false)
      .def("submit", &NativeReader::submit, nb::arg("keys").noconvert(), nb::arg("files").noconvert(),
           nb::arg("offsets").noconvert(), nb::arg("destinations").noconvert(), nb::arg("num_bytes"),
           nb::arg("priorities").noconvert())
      .def("submit_pieces", &NativeReader::submit_pieces, nb::arg("keys").noconvert(),
           nb::arg("files").noconvert(), nb::arg("offsets").noconvert(), nb::arg("destinations").noconvert(),
           nb::arg("num_bytes").noconvert(), nb::arg("priorities").noconvert())
      .def("reprioritise", &NativeReader::reprioritise, nb::arg("keys").noconvert(),
           nb::arg("priorities").noconvert())
      .def("cancel", &NativeReader::cancel, nb::arg("keys").noconvert())
      .def("known", &NativeReader::known, nb::arg("keys").noconvert())
      .def("wait_any", &NativeReader::wait_any, nb::arg("keys").noconvert())
      .def("poll", &NativeReader::poll)
      .def("bytes_read", &NativeReader::bytes_read)
      .def("bytes_read_of", &NativeReader::bytes_read_of, nb::arg("disk"))
      .def("busy_seconds", &NativeReader::busy_seconds)
      .def("close", &NativeReader::close);
}

}  // namespace

nb::object moeinf::read_failure_object(const ReadFailure& failure) {
  nb::object made = read_failure_type()(path_text(failure.what()));
  made.attr("key") = failure.key;
  made.attr("errno") = failure.error;
  made.attr("path") = path_text(failure.path);
  made.attr("offset") = failure.offset;
  made.attr("num_bytes_read") = failure.num_bytes_read;
  return made;
}

void moeinf::bind_reader(nb::module_& m) {
  nb::register_exception_translator(translate);
  bind_read_failure(m);
  bind_native_reader(m);
}
