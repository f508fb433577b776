// moeinf._native: the arena and the read engine for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "bindings.h"
#include "moeinf/errors.h"
#include "moeinf/io/arena.h"
#include "moeinf/io/page_taker.h"
#include "moeinf/io/reader.h"
#include "moeinf/lowest.h"
#include "moeinf/signal_block.h"

namespace nb = nanobind;
using moeinf::Arena;

namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Clock = std::chrono::steady_clock;
using Keys = Column<std::int64_t>;
using KeyRows = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Priorities = Column<double>;

constexpr std::chrono::milliseconds kSignalPeriod(100);  // how long Ctrl-C may go unnoticed
// How long close waits for reads that are under way: a disk that hangs never ends them.
constexpr std::chrono::milliseconds kClosePatience(1000);

nb::object read_failure_type() { return nb::module_::import_("moeinf._native").attr("ReadFailure"); }

nb::object to_numpy(std::vector<std::int64_t> values) {
  auto owned = std::make_unique<std::vector<std::int64_t>>(std::move(values));
  std::int64_t* data = owned->data();
  const std::size_t count = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(data, {count}, owner));
}

void require_as_many(const Keys& keys, std::size_t count, const char* name) {
  if (count != keys.shape(0)) {
    throw std::invalid_argument(std::to_string(keys.shape(0)) + " keys and " + std::to_string(count) + " " +
                                name);
  }
}

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

// The way back: text that names files.
nb::object path_text(const std::string& bytes) {
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  nb::object text = nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), size));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

moeinf::BackendKind backend_kind(const std::string& name) {
  if (name == "auto") return moeinf::BackendKind::kAuto;
  if (name == "io_uring") return moeinf::BackendKind::kRing;
  if (name == "threads") return moeinf::BackendKind::kThreads;
  throw std::invalid_argument("backend is '" + name + "'; it is 'auto', 'io_uring' or 'threads'");
}

// The engine knows no Python: this adds arrays, the GIL and signals.
class NativeReader {
 public:
  NativeReader(std::vector<std::string> paths, std::vector<std::int64_t> sizes, std::shared_ptr<Arena> arena,
               const moeinf::ReaderOptions& options, nb::object on_wait)
      : read_done_(nb::module_::import_("moeinf.runtime.io.protocol").attr("ReadDone")),
        on_wait_(std::move(on_wait)) {
    const nb::gil_scoped_release released;
    reader_ = std::make_shared<moeinf::Reader>(std::move(paths), std::move(sizes), std::move(arena), options);
  }
  ~NativeReader() {
    if (!reader_) return;
    start_closing();
    const nb::gil_scoped_release released;
    ended_.wait_until(give_up_at_);
  }

  std::string backend() const { return reader_->backend(); }
  nb::object notice() const { return path_text(reader_->notice()); }

  void submit(const Keys& keys, const Keys& files, const Keys& offsets, const Keys& destinations,
              std::int64_t num_bytes, const Priorities& priorities) {
    require_as_many(keys, files.shape(0), "files");
    require_as_many(keys, offsets.shape(0), "offsets");
    require_as_many(keys, destinations.shape(0), "destinations");
    require_as_many(keys, priorities.shape(0), "priorities");
    reader_->submit(keys.data(), files.data(), offsets.data(), destinations.data(), num_bytes,
                    priorities.data(), keys.shape(0));
  }

  void submit_pieces(const Keys& keys, const KeyRows& files, const KeyRows& offsets,
                     const KeyRows& destinations, const KeyRows& num_bytes, const Priorities& priorities) {
    for (const KeyRows* each : {&files, &offsets, &destinations, &num_bytes}) {
      if (each->shape(0) != keys.shape(0) || each->shape(1) != files.shape(1))
        throw std::invalid_argument("pieces are [keys, pieces of each]");
    }
    require_as_many(keys, priorities.shape(0), "priorities");
    reader_->submit_pieces(keys.data(), keys.shape(0), files.shape(1), files.data(), offsets.data(),
                           destinations.data(), num_bytes.data(), priorities.data());
  }

  void expect(const Keys& files, const Keys& offsets, std::int64_t num_bytes,
              const Column<std::uint32_t>& sums, bool always) {
    require_as_many(files, offsets.shape(0), "offsets");
    require_as_many(files, sums.shape(0), "sums");
    reader_->expect(files.data(), offsets.data(), num_bytes, sums.data(), files.shape(0), always);
  }

  void reprioritise(const Keys& keys, const Priorities& priorities) {
    require_as_many(keys, priorities.shape(0), "priorities");
    reader_->reprioritise(keys.data(), priorities.data(), keys.shape(0));
  }

  nb::object cancel(const Keys& keys) { return to_numpy(reader_->cancel(keys.data(), keys.shape(0))); }

  nb::object wait_any(const Keys& keys) {
    const auto started = Clock::now();
    for (;;) {
      std::vector<std::int64_t> done;
      {
        const nb::gil_scoped_release released;
        done = reader_->wait_any(keys.data(), keys.shape(0), kSignalPeriod);
      }
      if (!done.empty()) return to_numpy(std::move(done));
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (const nb::object on_wait = on_wait_; !on_wait.is_none()) {
        const std::chrono::duration<double> waited = Clock::now() - started;
        on_wait(waited.count(), path_text(reader_->path_of(keys.data()[0])));
      }
    }
  }

  nb::object poll() {
    moeinf::Scheduler::Polled polled = reader_->poll();
    return read_done_(to_numpy(std::move(polled.done)), to_numpy(std::move(polled.failed)));
  }

  std::int64_t bytes_read() const { return reader_->bytes_read(); }
  double busy_seconds() const { return reader_->busy_seconds(); }

  bool close() {
    on_wait_ = nb::none();
    start_closing();
    for (;;) {
      const auto now = Clock::now();
      {
        const nb::gil_scoped_release released;
        if (ended_.wait_until(std::min(give_up_at_, now + kSignalPeriod)) == std::future_status::ready)
          return true;
      }
      if (now >= give_up_at_) return false;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }

 private:
  // In a thread of its own, which owns the reader too: where a read never ends, that thread waits for it, and
  // keeps the memory that it writes to.
  void start_closing() {
    if (ended_.valid()) return;
    give_up_at_ = Clock::now() + kClosePatience;
    const auto ended = std::make_shared<std::promise<void>>();
    ended_ = ended->get_future();
    const auto close_it = [ended](std::shared_ptr<moeinf::Reader> reader) {
      reader->close();
      reader.reset();
      ended->set_value();
    };
    const moeinf::SignalBlock block;
    try {
      std::thread(close_it, reader_).detach();
    } catch (const std::system_error&) {  // the system has no thread to give
      const nb::gil_scoped_release released;
      close_it(reader_);
    }
  }

  nb::object read_done_;
  nb::object on_wait_;                      // none, or called while a read is waited for
  std::shared_ptr<moeinf::Reader> reader_;  // with its arena
  std::shared_future<void> ended_;          // valid once closing has begun
  Clock::time_point give_up_at_;
};

void raise_read_failure(const moeinf::ReadFailure& failure) {
  const nb::object type = read_failure_type();
  const nb::object raised = type(path_text(failure.what()));
  raised.attr("key") = failure.key;
  raised.attr("errno") = failure.error;
  raised.attr("path") = path_text(failure.path);
  raised.attr("offset") = failure.offset;
  raised.attr("num_bytes_read") = failure.num_bytes_read;
  PyErr_SetObject(type.ptr(), raised.ptr());
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

void bind_arena(nb::module_& m) {
  nb::class_<Arena>(
      m, "Arena", "Anonymous memory on a 2 MiB border, taken from the machine page by page as it is written.")
      .def(nb::init<std::size_t>(), nb::arg("num_bytes"))
      .def_prop_ro("address",
                   [](const Arena& arena) { return reinterpret_cast<std::uintptr_t>(arena.data()); })
      .def_prop_ro("num_bytes", &Arena::num_bytes)
      .def(
          "array",
          [](nb::pointer_and_handle<Arena> self) {
            return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(self.p->data(), {self.p->num_bytes()},
                                                                     self.h);
          },
          "All of it as a writable array that keeps the arena alive.");
}

// Keeps the memory alive for as long as its pages may be taken.
class BoundPageTaker {
 public:
  using Memory = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

  explicit BoundPageTaker(const Memory& memory) : memory_(memory), taker_(memory_.data(), memory_.size()) {}

  void take(std::size_t start, std::size_t end) { taker_.take(start, end); }
  void drop(std::size_t start) {
    const nb::gil_scoped_release released;
    taker_.drop(start);
  }

 private:
  Memory memory_;
  moeinf::PageTaker taker_;
};

void bind_page_taker(nb::module_& m) {
  nb::class_<BoundPageTaker>(m, "PageTaker",
                             "Takes the pages of an array from the machine in the background.")
      .def(nb::init<const BoundPageTaker::Memory&>(), nb::arg("memory").noconvert())
      .def("take", &BoundPageTaker::take, nb::arg("start"), nb::arg("end"))
      .def("drop", &BoundPageTaker::drop, nb::arg("start"));
}

void bind_give_back(nb::module_& m) {
  m.def(
      "give_back",
      [](const nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& memory) {
        const nb::gil_scoped_release released;
        return moeinf::give_back(memory.data(), memory.size());
      },
      nb::arg("memory").noconvert(),
      "Gives the whole pages of an array of an Arena back to the machine; what was in them is lost.");
}

void bind_lowest(nb::module_& m) {
  m.def(
      "lowest",
      [](const Column<double>& scores, const Column<std::uint8_t>& states, std::uint8_t state,
         const std::vector<std::int64_t>& held, std::size_t count) {
        if (states.shape(0) != scores.shape(0))
          throw std::invalid_argument("scores and states differ in length");
        return moeinf::lowest(scores.data(), states.data(), scores.shape(0), state, held, count);
      },
      nb::arg("scores").noconvert(), nb::arg("states").noconvert(), nb::arg("state"), nb::arg("held"),
      nb::arg("count"),
      "Indices of the `count` smallest scores where states is `state`, but for those held.");
}

void bind_reader(nb::module_& m) {
  nb::class_<NativeReader>(m, "NativeReader",
                           "moeinf.runtime.io.protocol.Reader over io_uring or a pool of threads.")
      .def(
          "__init__",
          [](NativeReader* self, const std::vector<nb::object>& paths, std::vector<std::int64_t> sizes,
             std::shared_ptr<Arena> arena, const std::string& backend, bool direct, int queue_depth,
             int prefetch_depth, std::int64_t segment_bytes, nb::object on_wait) {
            moeinf::ReaderOptions options;
            options.backend = backend_kind(backend);
            options.direct = direct;
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
          nb::arg("on_wait").none() = nb::none())
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
      .def("wait_any", &NativeReader::wait_any, nb::arg("keys").noconvert())
      .def("poll", &NativeReader::poll)
      .def("bytes_read", &NativeReader::bytes_read)
      .def("busy_seconds", &NativeReader::busy_seconds)
      .def("close", &NativeReader::close);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native read engine: memory for experts, and reads into it in the background.";
  // Tensors that are alive at exit hold their arena: that is normal, and nothing to tell a user about.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate);
  bind_read_failure(m);
  bind_arena(m);
  bind_page_taker(m);
  bind_give_back(m);
  bind_lowest(m);
  bind_reader(m);
  moeinf::bind_checksums(m);
  moeinf::bind_formats(m);
  moeinf::bind_kernels(m);
  moeinf::bind_attention(m);
  moeinf::bind_router(m);
  moeinf::bind_latent(m);
  moeinf::bind_delta(m);
  moeinf::bind_mamba(m);
  moeinf::bind_policy(m);
  moeinf::bind_cuda(m);
}
