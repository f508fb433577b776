// The NVIDIA driver and the copier for Python; the GIL is released wherever the driver may take its time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "moeinf/cuda/copier.h"
#include "moeinf/cuda/driver.h"

namespace nb = nanobind;
using moeinf::cuda::Copier;
using moeinf::cuda::CudaError;
using moeinf::cuda::Driver;
using moeinf::cuda::Stream;

namespace {

using Numbers = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Stream stream_of(std::uintptr_t handle) { return reinterpret_cast<Stream>(handle); }

// The copier knows no Python: this adds arrays, the GIL and signals.
class NativeCopier {
 public:
  NativeCopier(std::shared_ptr<Driver> driver, int device, std::int64_t ring_bytes) {
    const moeinf::GilRelease released;
    copier_ = std::make_unique<Copier>(std::move(driver), device, ring_bytes);
  }
  ~NativeCopier() {
    const moeinf::GilRelease released;
    copier_.reset();
  }

  bool batched() const { return copier_->batched(); }

  std::int64_t register_memory(const Memory& memory, const Numbers& ends, const nb::object& progress) {
    const std::vector<std::int64_t> of_blocks(ends.data(), ends.data() + ends.size());
    if (!of_blocks.empty() && of_blocks.back() > static_cast<std::int64_t>(memory.size()))
      throw std::invalid_argument("blocks end behind the memory");
    memories_.push_back(memory);  // before anything of it is pinned
    const moeinf::GilRelease released;
    const auto between = [&progress](std::int64_t num_bytes) {
      const moeinf::GilAcquire acquired;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (!progress.is_none()) progress(num_bytes);
    };
    return copier_->register_memory(memory.data(), of_blocks, between);
  }

  std::uint64_t device_address(std::uintptr_t address, std::int64_t num_bytes) const {
    return copier_->device_address(address, num_bytes);
  }

  std::int64_t copy(const Numbers& sources, const Numbers& destinations, const Numbers& num_bytes,
                    std::uintptr_t compute_stream) {
    if (sources.shape(0) != destinations.shape(0) || sources.shape(0) != num_bytes.shape(0)) {
      throw std::invalid_argument(std::to_string(sources.shape(0)) + " sources, " +
                                  std::to_string(destinations.shape(0)) + " destinations and " +
                                  std::to_string(num_bytes.shape(0)) + " sizes");
    }
    const moeinf::GilRelease released;
    return copier_->copy(sources.data(), destinations.data(), num_bytes.data(), sources.shape(0),
                         stream_of(compute_stream));
  }

  void make_wait(std::uintptr_t compute_stream, std::int64_t ticket) {
    copier_->make_wait(stream_of(compute_stream), ticket);
  }

  bool done(std::int64_t ticket) { return copier_->done(ticket); }

  void wait(std::int64_t ticket) {
    const moeinf::GilRelease released;
    copier_->wait(ticket);
  }

  std::int64_t bytes_copied() { return copier_->bytes_copied(); }
  double busy_seconds() { return copier_->busy_seconds(); }

  void close() {
    {
      const moeinf::GilRelease released;
      copier_->close();
    }
    memories_.clear();
  }

 private:
  std::vector<Memory> memories_;  // outlive the copier, which gives them back to the driver
  std::unique_ptr<Copier> copier_;
};

nb::object cuda_error_type() { return nb::module_::import_("moeinf._native").attr("CudaError"); }

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const CudaError& error) {
    const nb::object type = cuda_error_type();
    const nb::object raised = type(error.what());
    raised.attr("code") = error.code;
    raised.attr("name") = error.name;
    PyErr_SetObject(type.ptr(), raised.ptr());
  }
}

void bind_cuda_error(nb::module_& m) {
  const nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc("moeinf._native.CudaError",
                                          "A call of the CUDA driver that failed; name is the driver's, as "
                                          "\"CUDA_ERROR_OUT_OF_MEMORY\" for code 2.",
                                          PyExc_RuntimeError, nullptr));
  if (!type.is_valid()) throw nb::python_error();
  m.attr("CudaError") = type;
}

void bind_driver(nb::module_& m) {
  const auto released = nb::call_guard<moeinf::GilRelease>();  // a sleeping card takes seconds to wake
  nb::class_<Driver>(m, "CudaDriver", "The NVIDIA driver's library, loaded at run time, and its devices.")
      .def(nb::init<const std::string&>(), nb::arg("library") = "libcuda.so.1", released)
      .def_prop_ro("version", &Driver::version)
      .def_prop_ro("device_count", &Driver::device_count)
      .def("name", &Driver::name, nb::arg("device"), released)
      .def("capability", &Driver::capability, nb::arg("device"), released)
      .def("total_bytes", &Driver::total_bytes, nb::arg("device"), released)
      .def("has_display", &Driver::has_display, nb::arg("device"), released)
      .def("uuid", &Driver::uuid, nb::arg("device"), released)
      .def("memory", &Driver::memory, nb::arg("device"), released);
}

void bind_copier(nb::module_& m) {
  nb::class_<NativeCopier>(m, "Copier", "Copies experts from host to device memory on one stream of its own.")
      .def(nb::init<std::shared_ptr<Driver>, int, std::int64_t>(), nb::arg("driver"), nb::arg("device"),
           nb::arg("ring_bytes") = std::int64_t{64} << 20)
      .def_prop_ro("batched", &NativeCopier::batched)
      .def("register", &NativeCopier::register_memory, nb::arg("memory").noconvert(),
           nb::arg("ends").noconvert(), nb::arg("progress") = nb::none())
      .def("device_address", &NativeCopier::device_address, nb::arg("address"), nb::arg("num_bytes") = 1)
      .def("copy", &NativeCopier::copy, nb::arg("sources").noconvert(), nb::arg("destinations").noconvert(),
           nb::arg("num_bytes").noconvert(), nb::arg("compute_stream"))
      .def("make_wait", &NativeCopier::make_wait, nb::arg("compute_stream"), nb::arg("ticket"))
      .def("done", &NativeCopier::done, nb::arg("ticket"))
      .def("wait", &NativeCopier::wait, nb::arg("ticket"))
      .def("bytes_copied", &NativeCopier::bytes_copied)
      .def("busy_seconds", &NativeCopier::busy_seconds)
      .def("close", &NativeCopier::close);
}

}  // namespace

void moeinf::bind_cuda(nb::module_& m) {
  nb::register_exception_translator(translate);
  bind_cuda_error(m);
  bind_driver(m);
  bind_copier(m);
}
