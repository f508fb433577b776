// The inner loops for one instruction set, but for products of quantised weights (groups/). CMake compiles
// this file once for each, with MOEINF_ISA, its name, MOEINF_GROUPS, that of the table of groups/groups.cc,
// and MOEINF_VECTORS, the file that wraps its vectors. All but the table is local to the file. No inline
// function of another header may be called unless it is static: the linker could take a copy made for AVX-512
// into the generic build.
#include "ahead.inc"
#include "attend.inc"
#include "channel_scan.inc"
#include "delta_loops.inc"
#include "dot_float.inc"
#include "elementwise.inc"
#include "exponentials.inc"
#include "latent_tiles.inc"
#include "matmul.inc"
#include "norms.inc"
#include "softmax.inc"
#include "vocabulary.inc"
#include "weighted_sum.inc"

namespace moeinf {
namespace {

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
    default:
      return isa::MOEINF_GROUPS.dot_rows(w, first, last, x, num_x, y, y_stride);
  }
}

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
      return isa::MOEINF_GROUPS.matmul_rows(w, first, last, x, num_x, scratch, y, y_stride);
  }
}

#ifdef MOEINF_AMX
void prepare_tile(const float* const* x, int num_x, std::int64_t cols, void* out) {
  isa::amx_tiles.prepare_tile(x, num_x, cols, out);
}

void multiply_tiles(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                    void* scratch, float* y, std::int64_t y_stride) {
  isa::amx_tiles.multiply_tiles(w, first, last, x, num_x, scratch, y, y_stride);
}
#endif

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

#define MOEINF_OPS(name, prepare_tile, multiply_tiles, attend_shared, pair_values) \
  {name,         prepare,          dot_rows,       matmul_rows,                    \
   prepare_tile, multiply_tiles,   weighted_sum,   activate,                       \
   add_stored,   add_scaled,       add_product,    sigmoid_mul,                    \
   rms_norm,     layer_norm,       rotate,         store_kv,                       \
   widen_kv,     softmax,          online_softmax, cap,                            \
   attend,       attend_shared,    pair_values,    run_delta,                      \
   run_scan,     run_channel_scan, largest_score,  weigh_scores,                   \
   sum_from,     scores_between}
const Ops MOEINF_ISA = MOEINF_OPS(NAME_OF(MOEINF_ISA), nullptr, nullptr, nullptr, nullptr);
#ifdef MOEINF_AMX
const Ops amx = MOEINF_OPS("amx", prepare_tile, multiply_tiles, attend_shared, pair_values);
#endif

}  // namespace isa
}  // namespace moeinf
