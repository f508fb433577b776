// Reads into the slots of a cache for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "bindings.h"
#include "cache/loader.h"
#include "moeinf/cache/loader.h"
#include "moeinf/errors.h"
#include "vectors.h"

namespace nb = nanobind;
using moeinf::BoundExpertCache;
using moeinf::BoundLoader;
using moeinf::copied;
using moeinf::ExpertReads;
using moeinf::KeyArray;
using moeinf::KeyRows;
using moeinf::Keys;
using moeinf::NativeReader;
using moeinf::to_numpy;

namespace {

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

// Over any moeinf.runtime.io.reader_protocol.Reader; submit(keys, slots, priorities) says to it where experts
// lie.
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
  Keys known(const Keys& keys) override { return cast(reader_.attr("known")(to_numpy(keys))); }
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

// moeinf.runtime.io.read_places.ExpertPlaces: arrays [layers * slices, pieces].
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
    const auto rows = [&](const std::vector<std::int64_t>& column) -> moeinf::RowSpan<const std::int64_t> {
      return {column.data(), static_cast<std::int64_t>(keys.size()), static_cast<std::int64_t>(num_pieces)};
    };
    reader_.engine().submit_pieces(keys, {rows(files_), rows(starts_), rows(destinations_), rows(num_bytes_)},
                                   priorities);
  }
  void reprioritise(const Keys& keys, const std::vector<double>& priorities) override {
    reader_.engine().reprioritise(keys, priorities);
  }
  Keys cancel(const Keys& keys) override { return reader_.engine().cancel(keys); }
  Keys known(const Keys& keys) override { return reader_.engine().known(keys); }
  Polled poll() override {
    auto polled = reader_.engine().poll();
    return {std::move(polled.done), std::move(polled.failed)};
  }
  Waited wait_any(const Keys& keys) override {
    Waited waited;
    try {
      waited.landed = reader_.wait(keys);
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

}  // namespace

void moeinf::bind_loads(nb::module_& m) {
  bind_reads(m);
  bind_loader(m);
}
