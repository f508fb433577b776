// The Python class Matrix: a weight matrix in a numpy array, which it keeps alive. Bound in kernels.cc.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "arrays.h"
#include "moeinf/compute/formats/formats.h"

namespace moeinf {

class BoundMatrix {
 public:
  using Memory =
      nanobind::ndarray<const std::uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

  // Throws std::invalid_argument for an unknown format and for memory of another size than rows and cols
  // imply.
  BoundMatrix(Memory memory, const std::string& format, std::int64_t rows, std::int64_t cols, float scale)
      : memory_(memory), format_(format_named(format)), rows_(rows), cols_(cols), scale_(scale) {
    times({rows, cols});
    if (rows < 1 || cols < 1 || cols % block_weights(format_) != 0) {
      throw std::invalid_argument("a matrix of " + std::to_string(rows) + " x " + std::to_string(cols) +
                                  " is no whole number of " + format + " blocks");
    }
    if (memory.shape(0) != static_cast<std::size_t>(rows) * row_bytes(format_, cols)) {
      throw std::invalid_argument(std::to_string(memory.shape(0)) + " bytes are not those of " +
                                  std::to_string(rows) + " x " + std::to_string(cols) + " in " + format);
    }
  }

  Matrix view() const { return {memory_.data(), format_, rows_, cols_, scale_}; }

 private:
  Memory memory_;
  Format format_;
  std::int64_t rows_, cols_;
  float scale_;
};

}  // namespace moeinf
