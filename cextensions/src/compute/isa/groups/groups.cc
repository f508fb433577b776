// Products of rows of quantised weights with int8 activations for one instruction set: compiled once for each
// that multiplies bytes in its own way, like ops.cc, and under the same rules.
#include "groups/block_columns.inc"
#include "groups/block_rows.inc"
#include "groups/columns.inc"
#include "groups/four_blocks.inc"
#include "groups/grid.inc"
#include "groups/int8_tiles.inc"
#include "groups/lane_pairs.inc"
#include "groups/linear.inc"
#include "groups/linear_columns.inc"
#include "groups/rows.inc"

namespace moeinf {
namespace {

// Calls with a value of the format's type, which says how its blocks lie.
template <class Call>
void with_format(Format format, const Call& call) {
  switch (format) {
    case Format::kQ8_0:
      return call(Q8_0{});
    case Format::kQ4_0:
      return call(Q4_0{});
    case Format::kIQ4_NL:
      return call(IQ4_NL{});
    case Format::kMXFP4:
      return call(MXFP4{});
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
      return;  // see ops.cc
  }
}

// The ways to multiply rows with a few activations: a format goes the first of these that its vectors have
// for it. The file of each way says which formats go it.
template <class Format>
void dot_of(const DotCall& call, std::int64_t first, std::int64_t last, int num_x) {
  if constexpr (kInFours<Format>) {
    dot_in_fours<Format>(call, first, last, num_x);
  } else if constexpr (kInColumns<Format>) {
    dot_in_columns<Format>(call, first, last, num_x);
  } else if constexpr (kInPairs<Format>) {
    dot_in_pairs<Format>(call, first, last, num_x);
  } else if constexpr (kOfBlocks<Format>) {
    dot<BlockRows<Format>>(call, first, last, num_x);
  } else {
    dot_groups<Format>(call, first, last, num_x);
  }
}

void dot_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, int num_x, float* y,
              std::int64_t y_stride) {
  const std::int64_t row =
      w.cols / block_weights(w.format) * static_cast<std::int64_t>(block_bytes(w.format));
  const auto x_bytes = static_cast<std::int64_t>(activation_bytes(ActivationKind::kInt8, w.cols));
  const DotCall call = {w.data, row, w.cols, static_cast<const unsigned char*>(x), x_bytes, y, y_stride};
  with_format(w.format, [&](auto format) { dot_of<decltype(format)>(call, first, last, num_x); });
}

#ifdef MOEINF_INT8_TILES
void matmul_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                 void* scratch, float* y, std::int64_t y_stride) {
  const TileCall call = tile_call(w, x, num_x, scratch, y, y_stride);
  with_format(w.format,
              [&](auto format) { multiply_groups<TileGroup<decltype(format)>>(call, first, last); });
}
#else
// As many at a time as in decoding.
void matmul_rows(const Matrix& w, std::int64_t first, std::int64_t last, const void* x, std::int64_t num_x,
                 void*, float* y, std::int64_t y_stride) {
  const std::size_t x_bytes = activation_bytes(ActivationKind::kInt8, w.cols);
  for (std::int64_t i = 0; i < num_x; i += kMaxDotRows) {
    const std::int64_t count = num_x - i < kMaxDotRows ? num_x - i : kMaxDotRows;
    dot_rows(w, first, last, static_cast<const unsigned char*>(x) + static_cast<std::size_t>(i) * x_bytes,
             static_cast<int>(count), y + i * y_stride, y_stride);
  }
}
#endif

}  // namespace

namespace isa {

const GroupOps MOEINF_GROUPS = {dot_rows, matmul_rows};

}  // namespace isa
}  // namespace moeinf
