// Products of rows of quantised weights with int8 activations for one instruction set: compiled once for each
// that multiplies bytes in its own way, like ops.cc, and under the same rules.
#include "groups/block_columns.inc"
#include "groups/block_rows.inc"
#include "groups/columns.inc"
#include "groups/formats.inc"
#include "groups/four_blocks.inc"
#include "groups/int8_tiles.inc"
#include "groups/lane_pairs.inc"
#include "groups/linear_columns.inc"

namespace moeinf {
namespace {

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
