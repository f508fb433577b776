// The GIL, given up and taken by threads that may outlive the interpreter.
//
// A daemon thread that wants the GIL once the interpreter ends never gets it. Python before 3.14 ends such a
// thread by pthread_exit, which unwinds its stack; at the first function that may not throw, as nanobind's,
// that would end the program with an abort. So the thread sleeps instead, as under later Pythons, until the
// process has ended.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

namespace moeinf {

template <typename TakeGil>
void take_gil_or_sleep(const TakeGil& take_gil) noexcept {
  try {
    take_gil();
  } catch (...) {  // the unwinding of pthread_exit: the C API throws nothing else
    for (;;) ::pause();
  }
}

// In place of nanobind::gil_scoped_release.
class GilRelease {
 public:
  GilRelease() noexcept : state_(PyEval_SaveThread()) {}
  ~GilRelease() {
    take_gil_or_sleep([this] { PyEval_RestoreThread(state_); });
  }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* state_;
};

// In place of nanobind::gil_scoped_acquire.
class GilAcquire {
 public:
  GilAcquire() noexcept {
    take_gil_or_sleep([this] { state_ = PyGILState_Ensure(); });
  }
  ~GilAcquire() { PyGILState_Release(state_); }
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;

 private:
  PyGILState_STATE state_;
};

}  // namespace moeinf
