// Products with weights of formats whose blocks are taken 256 weights at a time, for one instruction set:
// compiled once for each, like ops.cc, and under the same rules.
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "compute/formats/grids.h"
#include "compute/formats/half.h"
#include "compute/isa.h"
#include "compute/isa/macros.h"
#include "compute/layout.h"

namespace moeinf {
namespace {

// Each of them builds on those before it.
// clang-format off
#include "blocks.inc"
#include MOEINF_VECTORS
#include "sums.inc"
#include "dot_rows.inc"
#include "records.inc"
#include "groups/rows.inc"
#include "groups/linear.inc"
#include "groups/grid.inc"
// clang-format on

void dot_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, int num_x, float* y,
              std::int64_t y_stride) {
  const std::int64_t row =
      w.cols / block_weights(w.format) * static_cast<std::int64_t>(block_bytes(w.format));
  const auto x_bytes = static_cast<std::int64_t>(activation_bytes(ActivationKind::kInt8, w.cols));
  const DotCall call = {w.data, row, w.cols, static_cast<const unsigned char*>(x), x_bytes, y, y_stride};
  switch (w.format) {
    case Format::kQ4_K:
      return dot_groups<Q4_K>(call, first, last, num_x);
    case Format::kQ4_1:
      return dot_groups<Q4_1>(call, first, last, num_x);
    case Format::kQ5_0:
      return dot_groups<Q5_0>(call, first, last, num_x);
    case Format::kQ5_1:
      return dot_groups<Q5_1>(call, first, last, num_x);
    case Format::kQ2_K:
      return dot_groups<Q2_K>(call, first, last, num_x);
    case Format::kQ3_K:
      return dot_groups<Q3_K>(call, first, last, num_x);
    case Format::kQ5_K:
      return dot_groups<Q5_K>(call, first, last, num_x);
    case Format::kQ6_K:
      return dot_groups<Q6_K>(call, first, last, num_x);
    case Format::kIQ4_XS:
      return dot_groups<IQ4_XS>(call, first, last, num_x);
    case Format::kIQ3_XXS:
      return dot_groups<IQ3_XXS>(call, first, last, num_x);
    case Format::kIQ3_S:
      return dot_groups<IQ3_S>(call, first, last, num_x);
    case Format::kIQ2_XXS:
      return dot_groups<IQ2_XXS>(call, first, last, num_x);
    case Format::kIQ2_XS:
      return dot_groups<IQ2_XS>(call, first, last, num_x);
    case Format::kIQ2_S:
      return dot_groups<IQ2_S>(call, first, last, num_x);
    case Format::kIQ1_S:
      return dot_groups<IQ1_S>(call, first, last, num_x);
    case Format::kIQ1_M:
      return dot_groups<IQ1_M>(call, first, last, num_x);
    case Format::kTQ1_0:
      return dot_groups<TQ1_0>(call, first, last, num_x);
    case Format::kTQ2_0:
      return dot_groups<TQ2_0>(call, first, last, num_x);
    case Format::kNVFP4:
      return dot_groups<NVFP4>(call, first, last, num_x);
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
    case Format::kQ8_0:
    case Format::kQ4_0:
    case Format::kIQ4_NL:
    case Format::kMXFP4:
      return;  // see ops.cc
  }
}

void expand_row(Format format, const unsigned char* p, std::int64_t cols, unsigned char* out) {
  switch (format) {
    case Format::kQ4_K:
      return expand_q4k_row(p, cols, out);
    case Format::kQ4_1:
      return expand_groups<Q4_1>(p, cols, out);
    case Format::kQ5_0:
      return expand_groups<Q5_0>(p, cols, out);
    case Format::kQ5_1:
      return expand_groups<Q5_1>(p, cols, out);
    case Format::kQ2_K:
      return expand_groups<Q2_K>(p, cols, out);
    case Format::kQ3_K:
      return expand_groups<Q3_K>(p, cols, out);
    case Format::kQ5_K:
      return expand_groups<Q5_K>(p, cols, out);
    case Format::kQ6_K:
      return expand_groups<Q6_K>(p, cols, out);
    case Format::kIQ4_XS:
      return expand_groups<IQ4_XS>(p, cols, out);
    case Format::kIQ3_XXS:
      return expand_groups<IQ3_XXS>(p, cols, out);
    case Format::kIQ3_S:
      return expand_groups<IQ3_S>(p, cols, out);
    case Format::kIQ2_XXS:
      return expand_groups<IQ2_XXS>(p, cols, out);
    case Format::kIQ2_XS:
      return expand_groups<IQ2_XS>(p, cols, out);
    case Format::kIQ2_S:
      return expand_groups<IQ2_S>(p, cols, out);
    case Format::kIQ1_S:
      return expand_groups<IQ1_S>(p, cols, out);
    case Format::kIQ1_M:
      return expand_groups<IQ1_M>(p, cols, out);
    case Format::kTQ1_0:
      return expand_groups<TQ1_0>(p, cols, out);
    case Format::kTQ2_0:
      return expand_groups<TQ2_0>(p, cols, out);
    case Format::kNVFP4:
      return expand_groups<NVFP4>(p, cols, out);
    case Format::kF32:
    case Format::kF16:
    case Format::kBF16:
    case Format::kQ8_0:
    case Format::kQ4_0:
    case Format::kIQ4_NL:
    case Format::kMXFP4:
      return;  // see ops.cc
  }
}

}  // namespace

namespace isa {

const GroupOps MOEINF_GROUPS = {dot_rows, expand_row};

}  // namespace isa
}  // namespace moeinf
