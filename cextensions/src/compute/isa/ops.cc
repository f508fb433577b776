// The inner loops for one instruction set, but for those of formats in groups of 256 (groups/). CMake
// compiles this file once for each, with MOEINF_ISA, its name, MOEINF_GROUPS, that of the table of
// groups/groups.cc, and MOEINF_VECTORS, the file that wraps its vectors. All but the table is local to the
// file. No inline function of another header may be called unless it is static: the linker could take a copy
// made for AVX-512 into the generic build.
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "compute/formats/grids.h"
#include "compute/formats/half.h"
#include "compute/isa.h"
#include "compute/layout.h"
#include "macros.h"

namespace moeinf {
namespace {

// Each of them builds on those before it.
// clang-format off
#include "blocks.inc"
#include MOEINF_VECTORS
#include "sums.inc"
#include "dot_rows.inc"
#include "dot_float.inc"
#include "records.inc"
#include "dot_blocks.inc"
#include "ahead.inc"
#include "int8_tiles.inc"
#include "columns.inc"
#include "block_columns.inc"
#include "exponentials.inc"
#include "elementwise.inc"
#include "matmul.inc"
#include "norms.inc"
#include "softmax.inc"
#include "weighted_sum.inc"
#include "attend.inc"
#include "delta_loops.inc"
#include "vocabulary.inc"
#ifdef MOEINF_AMX
#include "latent_tiles.inc"
#endif
// clang-format on

// For blocks of nibbles: those of Q8_0, whose bytes are weights as they are stored, gain nothing from
// changing places.
template <class Block>
void dot_of_nibbles(const DotCall& call, std::int64_t first, std::int64_t last, int num_x) {
#ifdef MOEINF_COLUMNS
  return dot_by_columns<InColumns<GroupOfBlocks<Block>>>(call, first, last, num_x);
#else
  return dot<BlockRows<Block>>(call, first, last, num_x);
#endif
}

void dot_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, int num_x, float* y,
              std::int64_t y_stride) {
  const std::int64_t row =
      w.cols / block_weights(w.format) * static_cast<std::int64_t>(block_bytes(w.format));
  const auto x_bytes = static_cast<std::int64_t>(activation_bytes(activation_of(w.format), w.cols));
  const DotCall call = {w.data, row, w.cols, static_cast<const unsigned char*>(x), x_bytes, y, y_stride};
  switch (w.format) {
    case Format::kF32:
      return dot<FloatRows<F32Lanes>>(call, first, last, num_x);
    case Format::kNarrowF32:
      return dot<FloatRows<WidenedBf16Lanes>>(call, first, last, num_x);
    case Format::kF16:
      return dot<FloatRows<F16Lanes>>(call, first, last, num_x);
    case Format::kBF16:
      return dot<FloatRows<Bf16Lanes>>(call, first, last, num_x);
    case Format::kQ8_0:
      return dot<BlockRows<Q8_0>>(call, first, last, num_x);
#ifndef MOEINF_FOUR_BLOCKS
    case Format::kQ4_0:
      return dot_of_nibbles<Q4_0>(call, first, last, num_x);
    case Format::kIQ4_NL:
      return dot_of_nibbles<IQ4_NL>(call, first, last, num_x);
    case Format::kMXFP4:
      return dot_of_nibbles<MXFP4>(call, first, last, num_x);
#endif
    default:
      return isa::MOEINF_GROUPS.dot_rows(w, first, last, x, num_x, y, y_stride);
  }
}

#ifdef MOEINF_INT8_TILES
void multiply_blocks(const Matrix& w, std::int64_t first, std::int64_t last, const void* x,
                     std::int64_t num_x, void* scratch, float* y, std::int64_t y_stride) {
  const TileCall call = tile_call(w, x, num_x, scratch, y, y_stride);
  switch (w.format) {
    case Format::kQ8_0:
      return multiply_groups<GroupOfBlocks<Q8_0>>(call, first, last);
    case Format::kQ4_0:
      return multiply_groups<GroupOfBlocks<Q4_0>>(call, first, last);
    case Format::kIQ4_NL:
      return multiply_groups<GroupOfBlocks<IQ4_NL>>(call, first, last);
    case Format::kMXFP4:
      return multiply_groups<GroupOfBlocks<MXFP4>>(call, first, last);
    default:
      return isa::MOEINF_GROUPS.matmul_rows(w, first, last, x, num_x, scratch, y, y_stride);
  }
}
#else
// As many at a time as in decoding.
void multiply_blocks(const Matrix& w, std::int64_t first, std::int64_t last, const void* x,
                     std::int64_t num_x, void*, float* y, std::int64_t y_stride) {
  const std::size_t x_bytes = activation_bytes(ActivationKind::kInt8, w.cols);
  for (std::int64_t i = 0; i < num_x; i += kMaxDotRows) {
    const std::int64_t count = num_x - i < kMaxDotRows ? num_x - i : kMaxDotRows;
    dot_rows(w, first, last, static_cast<const unsigned char*>(x) + static_cast<std::size_t>(i) * x_bytes,
             static_cast<int>(count), y + i * y_stride, y_stride);
  }
}
#endif

void matmul_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                 void* scratch, float* y, std::int64_t y_stride) {
  const auto x_bytes = static_cast<std::int64_t>(activation_bytes(activation_of(w.format), w.cols));
  const MatmulCall call = {static_cast<const unsigned char*>(x), x_bytes, num_x, y, y_stride};
  switch (w.format) {
    case Format::kF32:
      return multiply_floats<F32Lanes>(w, first, last, call);
    case Format::kNarrowF32:
      return multiply_floats<WidenedBf16Lanes>(w, first, last, call);
    case Format::kF16:
      return multiply_floats<F16Lanes>(w, first, last, call);
    case Format::kBF16:
      return multiply_floats<Bf16Lanes>(w, first, last, call);
    default:
      return multiply_blocks(w, first, last, x, num_x, scratch, y, y_stride);
  }
}

void weighted_sum(const Matrix& w, std::int64_t first, std::int64_t last, const float* x,
                  std::int64_t x_stride, std::int64_t num_x, float* y, std::int64_t y_stride) {
  const std::int64_t row = w.cols * static_cast<std::int64_t>(block_bytes(w.format));
  const WeightedSum call = {w.data, row, w.rows, x, x_stride, num_x, y, y_stride};
  switch (w.format) {
    case Format::kF32:
      return sum_columns<F32Lanes>(call, first, last);
    case Format::kF16:
      return sum_columns<F16Lanes>(call, first, last);
    default:
      return sum_columns<WidenedBf16Lanes>(call, first, last);
  }
}

}  // namespace

namespace isa {

#define MOEINF_OPS(name, attend_shared)                                                              \
  {name,          prepare,      dot_rows,       matmul_rows,   weighted_sum,  activate,  add_stored, \
   add_scaled,    add_product,  sigmoid_mul,    rms_norm,      layer_norm,    rotate,    store_kv,   \
   widen_kv,      softmax,      online_softmax, attend,        attend_shared, run_delta, run_scan,   \
   largest_score, weigh_scores, sum_from,       scores_between}
const Ops MOEINF_ISA = MOEINF_OPS(NAME_OF(MOEINF_ISA), nullptr);
#ifdef MOEINF_AMX
const Ops amx = MOEINF_OPS("amx", attend_shared);
#endif

}  // namespace isa
}  // namespace moeinf
