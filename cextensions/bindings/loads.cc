// Reads into the slots of a cache, and the visits that wait for them, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "expert_cache.h"
#include "moeinf/cache/idle_window.h"
#include "moeinf/cache/loader.h"
#include "moeinf/cache/token_visit.h"
#include "moeinf/errors.h"
#include "native_reader.h"

namespace nb = nanobind;
using moeinf::BoundExpertCache;
using moeinf::ExpertReads;
using moeinf::KeyArray;
using moeinf::KeyRows;
using moeinf::Keys;
using moeinf::NativeReader;
using moeinf::Priorities;
using moeinf::to_numpy;

namespace {

Keys copied(const KeyArray& keys) { return {keys.data(), keys.data() + keys.shape(0)}; }

nb::object to_numpy_priorities(const std::vector<double>& priorities) {
  auto owned = std::make_unique<std::vector<double>>(priorities);
  double* data = owned->data();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<double>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, double, nb::ndim<1>>(data, {priorities.size()}, owner));
}

// moeinf.runtime.io.pages.PagesAhead, or none: hears of the memory that is about to be read into.
class Pages {
 public:
  Pages(nb::object pages, std::int64_t stride_bytes)
      : pages_(std::move(pages)), stride_bytes_(stride_bytes) {}

  void reach(const std::vector<std::int64_t>& offsets) {
    if (pages_.is_none() || offsets.empty() || nb::cast<bool>(pages_.attr("all_taken"))) return;
    pages_.attr("reach")(*std::max_element(offsets.begin(), offsets.end()) + stride_bytes_);
  }

 private:
  nb::object pages_;
  std::int64_t stride_bytes_;
};

// Over any moeinf.runtime.io.protocol.Reader; submit(keys, slots, priorities) says to it where experts lie.
class PythonReads final : public ExpertReads {
 public:
  PythonReads(nb::object reader, nb::object submit, nb::object pages, std::int64_t stride_bytes)
      : reader_(std::move(reader)), submit_(std::move(submit)), pages_(std::move(pages), stride_bytes) {}

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) override {
    pages_.reach(offsets);
    submit_(to_numpy(keys), to_numpy(offsets), to_numpy_priorities(priorities));
  }
  void reprioritise(const Keys& keys, const std::vector<double>& priorities) override {
    reader_.attr("reprioritise")(to_numpy(keys), to_numpy_priorities(priorities));
  }
  Keys cancel(const Keys& keys) override { return cast(reader_.attr("cancel")(to_numpy(keys))); }
  Polled poll() override {
    const nb::object polled = reader_.attr("poll")();
    return {cast(polled[0]), cast(polled[1])};
  }
  Waited wait_any(const Keys& keys) override {
    Waited waited;
    try {
      waited.landed = cast(reader_.attr("wait_any")(to_numpy(keys)));
    } catch (nb::python_error& error) {
      if (!error.matches(nb::module_::import_("moeinf._native").attr("ReadFailure"))) throw;
      waited.failed = nb::cast<std::int64_t>(error.value().attr("key"));
      waited.error = std::current_exception();
    }
    return waited;
  }

 private:
  static Keys cast(const nb::handle& keys) { return copied(nb::cast<KeyArray>(keys)); }

  nb::object reader_, submit_;
  Pages pages_;
};

// moeinf.runtime.io.places.ExpertPlaces: arrays [layers * slices, pieces].
struct Places {
  KeyRows files, starts, steps, num_bytes, regions;
  std::int64_t num_experts, slices;  // of a layer; of an expert
};

// Over the read engine, without Python in between.
class FileReads final : public ExpertReads {
 public:
  FileReads(NativeReader& reader, Places places, nb::object pages, std::int64_t stride_bytes)
      : reader_(reader), places_(std::move(places)), pages_(std::move(pages), stride_bytes) {
    for (const KeyRows* each : {&places_.starts, &places_.steps, &places_.num_bytes, &places_.regions}) {
      if (each->shape(0) != places_.files.shape(0) || each->shape(1) != places_.files.shape(1))
        throw std::invalid_argument("places are [layers, pieces]");
    }
    if (places_.num_experts < 1 || places_.slices < 1)
      throw std::invalid_argument("there are no such experts or slices");
  }

  void submit(const Keys& keys, const std::vector<std::int64_t>& offsets,
              const std::vector<double>& priorities) override {
    pages_.reach(offsets);
    const std::size_t num_pieces = places_.files.shape(1);
    for (std::vector<std::int64_t>* column : {&files_, &starts_, &destinations_, &num_bytes_})
      column->clear();
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::int64_t expert = keys[i] / places_.slices;
      const std::int64_t layer = expert / places_.num_experts, number = expert % places_.num_experts;
      const auto row = static_cast<std::size_t>(layer * places_.slices + keys[i] % places_.slices);
      if (keys[i] < 0 || row >= places_.files.shape(0))
        throw std::invalid_argument("there is no such expert");
      for (std::size_t piece = 0; piece < num_pieces; ++piece) {
        files_.push_back(places_.files(row, piece));
        starts_.push_back(places_.starts(row, piece) + number * places_.steps(row, piece));
        destinations_.push_back(offsets[i] + places_.regions(row, piece));
        num_bytes_.push_back(places_.num_bytes(row, piece));
      }
    }
    reader_.engine().submit_pieces(keys.data(), keys.size(), num_pieces, files_.data(), starts_.data(),
                                   destinations_.data(), num_bytes_.data(), priorities.data());
  }
  void reprioritise(const Keys& keys, const std::vector<double>& priorities) override {
    reader_.engine().reprioritise(keys.data(), priorities.data(), keys.size());
  }
  Keys cancel(const Keys& keys) override { return reader_.engine().cancel(keys.data(), keys.size()); }
  Polled poll() override {
    auto polled = reader_.engine().poll();
    return {std::move(polled.done), std::move(polled.failed)};
  }
  Waited wait_any(const Keys& keys) override {
    Waited waited;
    try {
      waited.landed = reader_.wait(keys.data(), keys.size());
    } catch (const moeinf::ReadFailure& failure) {
      waited.failed = failure.key;
      waited.error = std::current_exception();
    }
    return waited;
  }

 private:
  NativeReader& reader_;
  Places places_;
  Pages pages_;
  std::vector<std::int64_t> files_, starts_, destinations_, num_bytes_;  // of one submission
};

// The loader, and the cache that it counts for.
class BoundLoader {
 public:
  BoundLoader(BoundExpertCache& cache, ExpertReads& reads, std::int64_t slices)
      : cache_(cache), loader_(cache.core(), reads, slices) {}

  moeinf::Loader& core() { return loader_; }
  BoundExpertCache& cache() { return cache_; }

  void submit(const Keys& keys, const std::vector<double>& priorities) { loader_.submit(keys, priorities); }
  void demand(const Keys& keys) {
    loader_.demand(keys);
    cache_.flush();
  }
  std::int64_t prefetch(const KeyArray& keys, const Priorities& priorities) {
    moeinf::require_as_many(keys, priorities.shape(0), "priorities");
    const std::int64_t count =
        loader_.prefetch(copied(keys), {priorities.data(), priorities.data() + priorities.shape(0)});
    cache_.flush();
    return count;
  }
  void reprioritise(const KeyArray& keys, const Priorities& priorities) {
    moeinf::require_as_many(keys, priorities.shape(0), "priorities");
    loader_.reprioritise(copied(keys), {priorities.data(), priorities.data() + priorities.shape(0)});
  }
  std::int64_t cancel(const Keys& keys) {
    const std::int64_t wasted = loader_.cancel(keys);
    cache_.flush();
    return wasted;
  }
  void drop(const Keys& keys) {
    loader_.drop(keys);
    cache_.flush();
  }
  Keys poll() {
    Keys failed = loader_.poll();
    cache_.flush();
    return failed;
  }
  Keys wait(const Keys& keys) {
    ExpertReads::Waited waited = loader_.wait(keys);
    cache_.flush();
    if (waited.error) std::rethrow_exception(waited.error);
    return std::move(waited.landed);
  }

 private:
  BoundExpertCache& cache_;
  moeinf::Loader loader_;
};

// Seconds of a clock of Python, or of the one that time.perf_counter reads.
moeinf::IdleWindow::Clock clock_of(const nb::object& clock) {
  if (clock.is_none()) {
    return [] { return std::chrono::duration<double>(moeinf::Clock::now().time_since_epoch()).count(); };
  }
  return [clock] { return nb::cast<double>(clock()); };
}

class BoundIdleWindow {
 public:
  BoundIdleWindow(nb::object clock, const nb::object& lag_s, double seconds)
      : clock_(std::move(clock)),
        window_(clock_of(clock_), lag_s.is_none() ? [] { return 0.0; } : clock_of(lag_s), seconds) {}

  moeinf::IdleWindow& core() { return window_; }
  nb::object clock() const {
    return clock_.is_none() ? nb::module_::import_("time").attr("perf_counter") : clock_;
  }

 private:
  nb::object clock_;
  moeinf::IdleWindow window_;
};

// What the visits of one tier work with.
struct VisitParts {
  BoundExpertCache& cache;
  BoundLoader& loader;
  BoundIdleWindow& idle;
  nb::object profiler;  // moeinf.types.Profiler
  nb::object explain;   // makes the error that a user sees of a ReadFailure
};

// A visit as moeinf.runtime.cache.visit.Visit; its own iterator of arrivals.
class BoundTokenVisit {
 public:
  BoundTokenVisit(VisitParts& parts, std::int64_t layer, const KeyArray& experts)
      : parts_(parts), visit_(begun(parts), parts.loader.core(), layer, experts.data(), experts.shape(0)) {
    parts_.cache.flush();
  }

  moeinf::TokenVisit& core() { return visit_; }

  nb::tuple next() {
    while (true) {
      const Keys& batch = visit_.next_batch();
      parts_.cache.flush();
      if (!batch.empty()) return arrived(batch);
      if (visit_.has_ended()) throw nb::stop_iteration();
      wait();
    }
  }

 private:
  static moeinf::ExpertCache& begun(VisitParts& parts) {
    parts.idle.core().visit_begins();
    return parts.cache.core();
  }

  nb::tuple arrived(const Keys& batch) const {
    const moeinf::ExpertCache& cache = parts_.cache.core();
    Keys experts, offsets;
    experts.reserve(batch.size());
    offsets.reserve(batch.size());
    for (const std::int64_t key : batch) {
      experts.push_back(key - visit_.layer() * cache.num_experts());
      offsets.push_back(cache.table().offset(key));
    }
    return nb::make_tuple(to_numpy(std::move(experts)), to_numpy(std::move(offsets)));
  }

  void wait() {
    const bool own = visit_.waits();
    const nb::object lap = parts_.profiler.attr("lap");
    lap("policy");
    std::exception_ptr failed, thrown;
    try {
      failed = visit_.wait();
    } catch (...) {
      thrown = std::current_exception();
    }
    const nb::object& stats = parts_.cache.stats();
    stats.attr("stall_s") = stats.attr("stall_s") + lap("stall");
    parts_.cache.flush();
    if (thrown) std::rethrow_exception(thrown);
    if (failed) raise(failed);
    if (own && !visit_.waits()) parts_.idle.core().demand_ends();
  }

  [[noreturn]] void raise(const std::exception_ptr& failed) const {
    nb::object failure;
    try {
      std::rethrow_exception(failed);
    } catch (const moeinf::ReadFailure& read) {
      failure = moeinf::read_failure_object(read);
    } catch (const nb::python_error& error) {
      failure = nb::borrow(error.value());
    }
    const nb::object explained = parts_.explain(failure);
    PyException_SetCause(explained.ptr(), failure.release().ptr());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(explained.ptr())), explained.ptr());
    throw nb::python_error();
  }

  VisitParts& parts_;
  moeinf::TokenVisit visit_;
};

void make_file_reads(FileReads* made, NativeReader& reader, const KeyRows& files, const KeyRows& starts,
                     const KeyRows& steps, const KeyRows& num_bytes, const KeyRows& regions,
                     std::int64_t num_experts, std::int64_t slices, nb::object pages,
                     std::int64_t stride_bytes) {
  new (made) FileReads(reader, {files, starts, steps, num_bytes, regions, num_experts, slices},
                       std::move(pages), stride_bytes);
}

void bind_reads(nb::module_& m) {
  nb::class_<ExpertReads>(m, "ExpertReads");
  nb::class_<PythonReads, ExpertReads>(m, "PythonReads")
      .def(nb::init<nb::object, nb::object, nb::object, std::int64_t>(), nb::arg("reader"), nb::arg("submit"),
           nb::arg("pages").none(), nb::arg("stride_bytes"));
  nb::class_<FileReads, ExpertReads>(m, "FileReads")
      .def("__init__", &make_file_reads, nb::arg("reader"), nb::arg("files"), nb::arg("starts"),
           nb::arg("steps"), nb::arg("num_bytes"), nb::arg("regions"), nb::kw_only(), nb::arg("num_experts"),
           nb::arg("slices"), nb::arg("pages").none(), nb::arg("stride_bytes"), nb::keep_alive<1, 2>());
}

void bind_loader(nb::module_& m) {
  nb::class_<BoundLoader>(m, "Loader")
      .def(nb::init<BoundExpertCache&, ExpertReads&, std::int64_t>(), nb::arg("cache"), nb::arg("reads"),
           nb::arg("slices"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("submit", &BoundLoader::submit, nb::arg("keys"), nb::arg("priorities"))
      .def("demand", &BoundLoader::demand, nb::arg("keys"))
      .def("prefetch", &BoundLoader::prefetch, nb::arg("keys"), nb::arg("priorities"))
      .def("reprioritise", &BoundLoader::reprioritise, nb::arg("keys"), nb::arg("priorities"))
      .def("cancel", &BoundLoader::cancel, nb::arg("keys"))
      .def("drop", &BoundLoader::drop, nb::arg("keys"))
      .def("poll", &BoundLoader::poll)
      .def("wait", &BoundLoader::wait, nb::arg("keys"));
}

void bind_idle_window(nb::module_& m) {
  nb::class_<BoundIdleWindow>(m, "IdleWindow")
      .def(nb::init<nb::object, nb::object, double>(), nb::arg("clock").none() = nb::none(),
           nb::arg("lag_s").none() = nb::none(), nb::arg("seconds") = 0.0)
      .def_prop_rw(
          "seconds", [](BoundIdleWindow& window) { return window.core().seconds(); },
          [](BoundIdleWindow& window, double seconds) { window.core().set_seconds(seconds); })
      .def_prop_ro("clock", &BoundIdleWindow::clock)
      .def("visit_begins", [](BoundIdleWindow& window) { window.core().visit_begins(); })
      .def("demand_ends", [](BoundIdleWindow& window) { window.core().demand_ends(); });
}

void bind_visit(nb::module_& m) {
  nb::class_<VisitParts>(m, "TokenVisits")
      .def(
          "__init__",
          [](VisitParts* made, BoundExpertCache& cache, BoundLoader& loader, BoundIdleWindow& idle,
             nb::object profiler, nb::object explain) {
            new (made) VisitParts{cache, loader, idle, std::move(profiler), std::move(explain)};
          },
          nb::arg("cache"), nb::arg("loader"), nb::arg("idle"), nb::arg("profiler"), nb::arg("explain"),
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>());
  nb::class_<BoundTokenVisit>(m, "TokenVisit")
      .def(nb::init<VisitParts&, std::int64_t, const KeyArray&>(), nb::arg("visits"), nb::arg("layer"),
           nb::arg("experts"), nb::keep_alive<1, 2>())
      .def_prop_ro("layer", [](BoundTokenVisit& visit) { return visit.core().layer(); })
      .def_prop_ro("num_tokens", [](BoundTokenVisit&) { return 1; })
      .def_prop_ro("keys", [](BoundTokenVisit& visit) { return visit.core().keys(); })
      .def_prop_ro("num_absent", [](BoundTokenVisit& visit) { return visit.core().num_absent(); })
      .def_prop_ro("all_have_slots", [](BoundTokenVisit& visit) { return visit.core().all_have_slots(); })
      .def_prop_ro("any_ready", [](BoundTokenVisit& visit) { return visit.core().any_ready(); })
      .def("arrivals", [](nb::handle self) { return self; })
      .def("__iter__", [](nb::handle self) { return self; })
      .def("__next__", &BoundTokenVisit::next)
      .def("close", [](BoundTokenVisit& visit) { visit.core().close(); })
      .def("__enter__", [](nb::handle self) { return self; })
      .def("__exit__", [](BoundTokenVisit& visit, const nb::args&) { visit.core().close(); });
}

}  // namespace

void moeinf::bind_loads(nb::module_& m) {
  bind_reads(m);
  bind_loader(m);
  bind_idle_window(m);
  bind_visit(m);
}
