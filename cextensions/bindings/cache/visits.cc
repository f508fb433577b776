// The visit of a layer, and the window between two visits, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>

#include "arrays.h"
#include "bindings.h"
#include "cache/loader.h"
#include "moeinf/cache/idle_window.h"
#include "moeinf/cache/visit.h"
#include "moeinf/errors.h"
#include "vectors.h"

namespace nb = nanobind;
using moeinf::BoundExpertCache;
using moeinf::BoundLoader;
using moeinf::copied;
using moeinf::KeyArray;
using moeinf::Keys;
using moeinf::to_numpy;

namespace {

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

class BoundVisit {
 public:
  BoundVisit(VisitParts& parts, std::int64_t layer, const KeyArray& experts, const KeyArray& counts,
             std::int64_t num_tokens)
      : parts_(parts), visit_(begun(parts), parts.loader.core(), needed(layer, experts, counts, num_tokens)) {
    parts_.cache.flush();
  }

  moeinf::Visit& core() { return visit_; }

  void read_ahead(const KeyArray& keys) {
    visit_.read_ahead(copied(keys));
    parts_.cache.flush();
  }

  // The next arrival, or None behind the last.
  nb::object arrive() {
    while (true) {
      const Keys& batch = visit_.next_batch();
      parts_.cache.flush();
      if (!batch.empty()) return arrived(batch);
      if (visit_.has_ended()) return nb::none();
      wait();
    }
  }

 private:
  static moeinf::ExpertCache& begun(VisitParts& parts) {
    parts.idle.core().visit_begins();
    return parts.cache.core();
  }

  static moeinf::Needed needed(std::int64_t layer, const KeyArray& experts, const KeyArray& counts,
                               std::int64_t num_tokens) {
    moeinf::require(num_tokens >= 1, "there are no tokens");
    moeinf::Needed needed = {layer, num_tokens, copied(experts), copied(counts)};
    for (const std::int64_t count : needed.counts) moeinf::times({count});
    return needed;
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
  moeinf::Visit visit_;
};

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
  nb::class_<VisitParts>(m, "Visits")
      .def(
          "__init__",
          [](VisitParts* made, BoundExpertCache& cache, BoundLoader& loader, BoundIdleWindow& idle,
             nb::object profiler, nb::object explain) {
            new (made) VisitParts{cache, loader, idle, std::move(profiler), std::move(explain)};
          },
          nb::arg("cache"), nb::arg("loader"), nb::arg("idle"), nb::arg("profiler"), nb::arg("explain"),
          nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>());
  nb::class_<BoundVisit>(m, "Visit")
      .def(nb::init<VisitParts&, std::int64_t, const KeyArray&, const KeyArray&, std::int64_t>(),
           nb::arg("visits"), nb::arg("layer"), nb::arg("experts"), nb::arg("counts"), nb::arg("num_tokens"),
           nb::keep_alive<1, 2>())
      .def_prop_ro("layer", [](BoundVisit& visit) { return visit.core().layer(); })
      .def_prop_ro("num_tokens", [](BoundVisit& visit) { return visit.core().num_tokens(); })
      .def_prop_ro("keys", [](BoundVisit& visit) { return visit.core().keys(); })
      .def_prop_ro("num_absent", [](BoundVisit& visit) { return visit.core().num_absent(); })
      .def_prop_ro("all_have_slots", [](BoundVisit& visit) { return visit.core().all_have_slots(); })
      .def_prop_ro("any_ready", [](BoundVisit& visit) { return visit.core().any_ready(); })
      .def("read_ahead", &BoundVisit::read_ahead, nb::arg("keys").noconvert())
      .def("_arrive", &BoundVisit::arrive)
      // Its end costs no exception of C++, which takes 10 us where the caches hold other things.
      .def("arrivals",
           [](nb::handle self) {
             return nb::steal<nb::iterator>(PyCallIter_New(self.attr("_arrive").ptr(), Py_None));
           })
      .def("close", [](BoundVisit& visit) { visit.core().close(); })
      .def("__enter__", [](nb::handle self) { return self; })
      .def("__exit__", [](BoundVisit& visit, const nb::args&) { visit.core().close(); });
}

}  // namespace

void moeinf::bind_visits(nb::module_& m) {
  bind_idle_window(m);
  bind_visit(m);
}
