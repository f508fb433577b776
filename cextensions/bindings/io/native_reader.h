// moeinf._native.NativeReader: the read engine, with the arrays, the GIL and the signals of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arrays.h"
#include "gil.h"
#include "moeinf/io/arena.h"
#include "moeinf/io/reader.h"
#include "moeinf/signal_block.h"

namespace moeinf {

namespace nb = nanobind;

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Clock = std::chrono::steady_clock;
using KeyArray = Column<std::int64_t>;
using KeyRows = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Priorities = Column<double>;

inline constexpr std::chrono::milliseconds kSignalPeriod(100);  // how long Ctrl-C may go unnoticed
// How long close waits for reads that are under way: a disk that hangs never ends them.
inline constexpr std::chrono::milliseconds kClosePatience(1000);

inline nb::object to_numpy(std::vector<std::int64_t> values) {
  auto owned = std::make_unique<std::vector<std::int64_t>>(std::move(values));
  std::int64_t* data = owned->data();
  const std::size_t count = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<std::int64_t>*>(p); });
  owned.release();
  return nb::cast(nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>>(data, {count}, owner));
}

// The way back: text that names files.
inline nb::object path_text(const std::string& bytes) {
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  nb::object text = nb::steal(PyUnicode_DecodeFSDefaultAndSize(bytes.data(), size));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

// The engine knows no Python: this adds arrays, the GIL and signals.
class NativeReader {
 public:
  NativeReader(std::vector<std::string> paths, std::vector<std::int64_t> sizes, std::shared_ptr<Arena> arena,
               const ReaderOptions& options, nb::object on_wait)
      : read_done_(nb::module_::import_("moeinf.runtime.io.reader_protocol").attr("ReadDone")),
        on_wait_(std::move(on_wait)) {
    const moeinf::GilRelease released;
    reader_ = std::make_shared<Reader>(std::move(paths), std::move(sizes), std::move(arena), options);
  }
  ~NativeReader() {
    if (!reader_ || !reader_->is_at_home()) return;
    try {
      start_closing();
    } catch (const std::bad_alloc&) {
      const moeinf::GilRelease released;
      reader_->close();
      return;
    }
    const moeinf::GilRelease released;
    ended_.wait_until(give_up_at_);
  }

  std::string backend() const { return reader_->backend(); }
  nb::object notice() const { return path_text(reader_->notice()); }

  void submit(const KeyArray& keys, const KeyArray& files, const KeyArray& offsets,
              const KeyArray& destinations, std::int64_t num_bytes, const Priorities& priorities) {
    reader_->submit(keys, files, offsets, destinations, num_bytes, priorities);
  }

  void submit_pieces(const KeyArray& keys, const KeyRows& files, const KeyRows& offsets,
                     const KeyRows& destinations, const KeyRows& num_bytes, const Priorities& priorities) {
    reader_->submit_pieces(
        keys, {rows_of(files), rows_of(offsets), rows_of(destinations), rows_of(num_bytes)}, priorities);
  }

  void expect(const KeyArray& files, const KeyArray& offsets, std::int64_t num_bytes,
              const Column<std::uint32_t>& sums, bool always) {
    reader_->expect(files, offsets, num_bytes, sums, always ? Compared::kAlways : Compared::kOnce);
  }

  void reprioritise(const KeyArray& keys, const Priorities& priorities) {
    reader_->reprioritise(keys, priorities);
  }

  nb::object cancel(const KeyArray& keys) { return to_numpy(reader_->cancel(keys)); }

  nb::object known(const KeyArray& keys) const { return to_numpy(reader_->known(keys)); }

  nb::object wait_any(const KeyArray& keys) { return to_numpy(wait(keys)); }

  // As wait_any of the engine, without an end; signal handlers and on_wait may throw.
  std::vector<std::int64_t> wait(Span<const std::int64_t> keys) {
    const auto started = Clock::now();
    for (;;) {
      std::vector<std::int64_t> done;
      {
        const moeinf::GilRelease released;
        done = reader_->wait_any(keys, kSignalPeriod);
      }
      if (!done.empty()) return done;
      if (PyErr_CheckSignals() != 0) throw nb::python_error();
      if (const nb::object on_wait = on_wait_; !on_wait.is_none()) {
        const std::chrono::duration<double> waited = Clock::now() - started;
        on_wait(waited.count(), path_text(reader_->path_of(keys[0])));
      }
    }
  }

  nb::object poll() {
    Scheduler::Polled polled = reader_->poll();
    return read_done_(to_numpy(std::move(polled.done)), to_numpy(std::move(polled.failed)));
  }

  Reader& engine() { return *reader_; }
  std::int64_t bytes_read() const { return reader_->bytes_read(); }
  std::int64_t bytes_read_of(int disk) const { return reader_->bytes_read_of(disk); }
  double busy_seconds() const { return reader_->busy_seconds(); }

  bool close() {
    on_wait_ = nb::none();
    if (!reader_->is_at_home()) return true;
    start_closing();
    for (;;) {
      const auto now = Clock::now();
      {
        const moeinf::GilRelease released;
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
    const auto close_it = [ended](std::shared_ptr<Reader> reader) {
      reader->close();
      reader.reset();
      ended->set_value();
    };
    const SignalBlock block;
    try {
      std::thread(close_it, reader_).detach();
    } catch (const std::exception&) {  // the system has no thread to give, or no memory for one
      const moeinf::GilRelease released;
      close_it(reader_);
    }
  }

  nb::object read_done_;
  nb::object on_wait_;              // none, or called while a read is waited for
  std::shared_ptr<Reader> reader_;  // with its arena
  std::shared_future<void> ended_;  // valid once closing has begun
  Clock::time_point give_up_at_;
};

// The failure as moeinf._native.ReadFailure, which is not raised.
nb::object read_failure_object(const ReadFailure& failure);

}  // namespace moeinf
