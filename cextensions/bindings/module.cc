// moeinf._native: memory for Python, and what the other files bind.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <stdexcept>
#include <typeinfo>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "moeinf/io/arena.h"
#include "moeinf/io/page_taker.h"
#include "moeinf/lowest.h"
#include "vectors.h"

namespace nb = nanobind;
using moeinf::Arena;

namespace {

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
    const moeinf::GilRelease released;
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
        const moeinf::GilRelease released;
        return moeinf::give_back(memory.data(), memory.size());
      },
      nb::arg("memory").noconvert(),
      "Gives the whole pages of an array of an Arena back to the machine; what was in them is lost.");
}

void bind_lowest(nb::module_& m) {
  using Scores = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  using States = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
  m.def(
      "lowest",
      [](const Scores& scores, const States& states, std::uint8_t state,
         const std::vector<std::int64_t>& held, std::size_t count) {
        if (states.shape(0) != scores.shape(0))
          throw std::invalid_argument("scores and states differ in length");
        const auto is_held = [&held](std::int64_t index) {
          return std::find(held.begin(), held.end(), index) != held.end();
        };
        return moeinf::lowest(scores.data(), states.data(), scores.shape(0), state, is_held, count);
      },
      nb::arg("scores").noconvert(), nb::arg("states").noconvert(), nb::arg("state"), nb::arg("held"),
      nb::arg("count"),
      "Indices of the `count` smallest scores where states is `state`, but for those held.");
}

// A number, a name or an object that Python gave, of another type than is meant.
void translate_bad_cast(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::bad_cast&) {
    PyErr_SetString(PyExc_TypeError, "an argument, or what it consists of, is of another type");
  }
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native read engine: memory for experts, and reads into it in the background.";
  // Tensors that are alive at exit hold their arena: that is normal, and nothing to tell a user about.
  nb::set_leak_warnings(false);
  nb::register_exception_translator(translate_bad_cast);
  bind_arena(m);
  bind_page_taker(m);
  bind_give_back(m);
  bind_lowest(m);
  moeinf::bind_reader(m);
  moeinf::bind_pages(m);
  moeinf::bind_cache(m);
  moeinf::bind_loads(m);
  moeinf::bind_visits(m);
  moeinf::bind_checksums(m);
  moeinf::bind_formats(m);
  moeinf::bind_kernels(m);
  moeinf::bind_attention(m);
  moeinf::bind_heads(m);
  moeinf::bind_index_keys(m);
  moeinf::bind_streams(m);
  moeinf::bind_mixed_heads(m);
  moeinf::bind_router(m);
  moeinf::bind_latent(m);
  moeinf::bind_recurrent(m);
  moeinf::bind_policy(m);
  moeinf::bind_sampling(m);
  moeinf::bind_cuda(m);
  moeinf::bind_threads(m);
}
