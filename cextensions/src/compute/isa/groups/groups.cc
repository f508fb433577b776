// Products with weights of formats whose blocks are taken 256 weights at a time, for one instruction set:
// compiled once for each, like ops.cc, and under the same rules.
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

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
#include "ahead.inc"
#include "int8_tiles.inc"
#include "columns.inc"
#include "groups/rows.inc"
#include "groups/linear.inc"
#include "groups/grid.inc"
#include "groups/linear_columns.inc"
#include "groups/four_blocks.inc"
#include "groups/lane_pairs.inc"
// clang-format on

// Calls with a value of the format's type, which says how its blocks lie.
template <class Call>
void with_format(Format format, const Call& call) {
  switch (format) {
    case Format::kQ4_K:
      return call(Q4_K{});
    case Format::kQ4_1:
      return call(Q4_1{});
    case Format::kQ5_0:
      return call(Q5_0{});
    case Format::kQ5_1:
      return call(Q5_1{});
    case Format::kQ2_K:
      return call(Q2_K{});
    case Format::kQ3_K:
      return call(Q3_K{});
    case Format::kQ5_K:
      return call(Q5_K{});
    case Format::kQ6_K:
      return call(Q6_K{});
    case Format::kIQ4_XS:
      return call(IQ4_XS{});
    case Format::kIQ3_XXS:
      return call(IQ3_XXS{});
    case Format::kIQ3_S:
      return call(IQ3_S{});
    case Format::kIQ2_XXS:
      return call(IQ2_XXS{});
    case Format::kIQ2_XS:
      return call(IQ2_XS{});
    case Format::kIQ2_S:
      return call(IQ2_S{});
    case Format::kIQ1_S:
      return call(IQ1_S{});
    case Format::kIQ1_M:
      return call(IQ1_M{});
    case Format::kTQ1_0:
      return call(TQ1_0{});
    case Format::kTQ2_0:
      return call(TQ2_0{});
    case Format::kNVFP4:
      return call(NVFP4{});
    case Format::kF32:
    case Format::kNarrowF32:
    case Format::kF16:
    case Format::kBF16:
    case Format::kQ8_0:
    case Format::kQ4_0:
    case Format::kIQ4_NL:
    case Format::kMXFP4:
      return;  // see ops.cc
  }
}

template <class Group>
void dot_of_groups(const DotCall& call, std::int64_t first, std::int64_t last, int num_x) {
#if defined(MOEINF_COLUMNS)
  if constexpr (IsInColumns<Group>::value) {
    dot_by_columns<InColumns<Group>>(call, first, last, num_x);
  } else {
    dot_groups<Group>(call, first, last, num_x);
  }
#elif defined(MOEINF_LANE_PAIRS)
  if constexpr (kInPairs<Group>) {
    dot<RowsInPairs<Group>>(call, first, last, num_x);
  } else if constexpr (Group::kBlockWeights != kInt8Block) {  // dot_by_fours multiplies blocks of 32
    dot_groups<Group>(call, first, last, num_x);
  }
#else
  dot_groups<Group>(call, first, last, num_x);
#endif
}

void dot_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, int num_x, float* y,
              std::int64_t y_stride) {
  const std::int64_t row =
      w.cols / block_weights(w.format) * static_cast<std::int64_t>(block_bytes(w.format));
  const auto x_bytes = static_cast<std::int64_t>(activation_bytes(ActivationKind::kInt8, w.cols));
  const DotCall call = {w.data, row, w.cols, static_cast<const unsigned char*>(x), x_bytes, y, y_stride};
#ifdef MOEINF_FOUR_BLOCKS
  if (dot_by_fours(w.format, call, first, last, num_x)) return;
#endif
  with_format(w.format, [&](auto format) { dot_of_groups<decltype(format)>(call, first, last, num_x); });
}

#ifdef MOEINF_INT8_TILES
void matmul_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                 void* scratch, float* y, std::int64_t y_stride) {
  const TileCall call = tile_call(w, x, num_x, scratch, y, y_stride);
  with_format(w.format, [&](auto format) { multiply_groups<decltype(format)>(call, first, last); });
}
#else
constexpr decltype(Ops::matmul_rows) matmul_rows = nullptr;
#endif

}  // namespace

namespace isa {

const GroupOps MOEINF_GROUPS = {dot_rows, matmul_rows};

}  // namespace isa
}  // namespace moeinf
