// The visit of a layer by a single token, and the window between two visits, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <utility>

#include "../bindings.h"
#include "../vectors.h"
#include "loader.h"
#include "moeinf/cache/idle_window.h"
#include "moeinf/cache/token_visit.h"
#include "moeinf/errors.h"

namespace nb = nanobind;
using moeinf::BoundExpertCache;
using moeinf::BoundLoader;
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

// A visit as moeinf.runtime.cache.visit.Visit.
class BoundTokenVisit {
 public:
  BoundTokenVisit(VisitParts& parts, std::int64_t layer, const KeyArray& experts)
      : parts_(parts), visit_(begun(parts), parts.loader.core(), layer, experts.data(), experts.shape(0)) {
    parts_.cache.flush();
  }

  moeinf::TokenVisit& core() { return visit_; }

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
      .def("_arrive", &BoundTokenVisit::arrive)
      // Its end costs no exception of C++, which takes 10 us where the caches hold other things.
      .def("arrivals",
           [](nb::handle self) {
             return nb::steal<nb::iterator>(PyCallIter_New(self.attr("_arrive").ptr(), Py_None));
           })
      .def("close", [](BoundTokenVisit& visit) { visit.core().close(); })
      .def("__enter__", [](nb::handle self) { return self; })
      .def("__exit__", [](BoundTokenVisit& visit, const nb::args&) { visit.core().close(); });
}

}  // namespace

void moeinf::bind_visits(nb::module_& m) {
  bind_idle_window(m);
  bind_visit(m);
}
