// Lists of Python as std::vector: nanobind's own caster takes its memory in a noexcept function, so that a
// process without memory would be at its end. This one says so where the function is called: std::bad_alloc.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/detail/nb_list.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace nanobind::detail {

template <typename Entry>
struct type_caster<std::vector<Entry>> : list_caster<std::vector<Entry>, Entry> {
  using Value = std::vector<Entry>;

  bool from_python(handle source, std::uint32_t flags, cleanup_list* cleanup) noexcept {
    try {
      return read(source, flags, cleanup);
    } catch (const std::bad_alloc&) {
      lacks_memory_ = true;
      return true;
    }
  }

  explicit operator Value*() { return &found(); }
  explicit operator Value&() { return found(); }
  explicit operator Value&&() { return static_cast<Value&&>(found()); }

 private:
  bool read(handle source, std::uint32_t flags, cleanup_list* cleanup) {
    std::size_t size = 0;
    PyObject* temporary = nullptr;
    PyObject** items = NB_CALL(seq_get)(source.ptr(), &size, &temporary);
    const object owner = steal(temporary);
    if (items == nullptr) return false;
    this->value.clear();
    this->value.reserve(size);
    make_caster<Entry> caster;
    flags = flags_for_local_caster<Entry>(flags);
    for (std::size_t i = 0; i < size; ++i) {
      if (!caster.from_python(items[i], flags, cleanup) || !caster.template can_cast<Entry>()) return false;
      this->value.push_back(caster.operator cast_t<Entry>());
    }
    return true;
  }

  Value& found() {
    if (lacks_memory_) throw std::bad_alloc();
    return this->value;
  }

  bool lacks_memory_ = false;
};

}  // namespace nanobind::detail
