// What activations are turned into for each format, and how many bytes that and scratch memory take.
#include <algorithm>

#include "layout.h"
#include "moeinf/compute/ops.h"

namespace moeinf {

ActivationKind activation_of(Format format) {
  switch (format) {
    case Format::kF32:
    case Format::kF16:
    case Format::kNarrowF32:
      return ActivationKind::kF32;
    case Format::kBF16:
      return ActivationKind::kBF16;
    default:
      return ActivationKind::kInt8;
  }
}

std::size_t activation_bytes(ActivationKind kind, std::int64_t cols) {
  const std::int64_t padded = round_up(cols, kMaxStep);
  if (kind == ActivationKind::kF32) return static_cast<std::size_t>(4 * padded);
  if (kind == ActivationKind::kBF16 || kind == ActivationKind::kTiles)
    return static_cast<std::size_t>(2 * padded);
  // Whole groups; one byte each, a scale and an offset for each four (where a lane has four), a table of 320
  // bytes for each group: see isa/records.inc.
  return static_cast<std::size_t>(round_up(cols, kInt8Group) / 4 * 17);
}

std::size_t matmul_scratch_bytes(std::int64_t cols) {
  return static_cast<std::size_t>(std::min(round_up(cols, kInt8Group) / kInt8Group, kPanelGroups) *
                                  kPanelGroupBytes);
}

std::size_t tile_scratch_bytes(std::int64_t cols) {
  const std::int64_t row_bytes = 2 * round_up(cols, kMaxStep), many = kTilePanelBytes / row_bytes + 1;
  return static_cast<std::size_t>(std::max(rows_in_tiles(cols, many) * row_bytes, 2 * kPartBytes));
}

std::size_t shared_rows_bytes(std::int64_t width, std::int64_t rank, bool has_values,
                              std::int64_t num_queries) {
  const std::int64_t of_query = 4 * width + 4 * rank + 4 * kSharedRows,    // itself, rest, sums and weights
      of_rows = kSharedRows * 2 * (width + 64 + (has_values ? rank : 0)),  // and 64 columns of pairs
      of_scores = kSharingAtOnce * kSharedRows * 4;
  return static_cast<std::size_t>(round_up(num_queries, kSharingAtOnce) * of_query + of_rows + of_scores +
                                  4 * width);
}

}  // namespace moeinf
