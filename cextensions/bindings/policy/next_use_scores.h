// moeinf._native.NextUseScores: what eviction asks for, which the cache asks without Python in between.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>

#include "moeinf/policy/next_use.h"

namespace moeinf {

using UseTable =
    nanobind::ndarray<const double, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

// With the tables of the model that it reads.
class BoundNextUseScores {
 public:
  BoundNextUseScores(UseTable no_use, UseTable wait, std::int64_t encoder_layers, std::int64_t next_source)
      : no_use_(std::move(no_use)),
        wait_(std::move(wait)),
        scores_(no_use_.data(), wait_.data(), static_cast<std::int64_t>(wait_.shape(0)),
                static_cast<std::int64_t>(wait_.shape(1)), encoder_layers, next_source) {}

  NextUseScores& core() { return scores_; }

 private:
  UseTable no_use_, wait_;
  NextUseScores scores_;
};

}  // namespace moeinf
