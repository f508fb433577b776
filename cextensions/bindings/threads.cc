// Threads of Python that die before their first line: moeinf._native.end_if_unbegun.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <poll.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "bindings.h"

namespace nb = nanobind;

namespace {

constexpr std::string_view kUnbegun = "Exception ignored in thread started by";

// Python has words of its own for each place at which it can raise nothing; those of 3.13 have more behind.
bool is_unbegun(nb::handle unraisable) {
  const nb::object message = unraisable.attr("err_msg");
  if (!nb::isinstance<nb::str>(message)) return false;
  const std::string_view words = nb::cast<nb::str>(message).c_str();
  return words.substr(0, kUnbegun.size()) == kUnbegun &&
         PyErr_GivenExceptionMatches(unraisable.attr("exc_type").ptr(), PyExc_MemoryError) != 0;
}

}  // namespace

void moeinf::bind_threads(nb::module_& m) {
  m.def(
      "end_if_unbegun",
      [](const std::string& line, const nb::callable& otherwise, nb::handle unraisable) {
        if (!is_unbegun(unraisable)) {
          otherwise(unraisable);
          return;
        }
        pollfd told{STDERR_FILENO, POLLOUT, 0};
        if (::poll(&told, 1, 0) > 0) (void)!::write(STDERR_FILENO, line.data(), line.size());
        ::_exit(1);
      },
      nb::arg("line"), nb::arg("otherwise"), nb::arg("unraisable"),
      "Ends the process with this line where a thread was refused memory as it began; else it calls "
      "`otherwise`.");
}
