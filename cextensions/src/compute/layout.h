// How prepared activations and scratch memory are laid out, for the kernels of every instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeinf {

constexpr int kInt8Block = 32;  // activations that share one scale
constexpr int kInt8Group =
    256;  // those that one table describes: rows of them are padded with zeros up to it
// The most activations that a kernel reads at once: rows are padded with zeros up to it.
constexpr int kMaxStep = 64;

constexpr int kBlockX = 64;                // activations of kPanelCols that stay in the second-level cache
constexpr int kPanelRows = 48;             // weight rows of a panel: a multiple of every kTileRows
constexpr std::int64_t kPanelCols = 2048;  // bf16 columns of a tile's rows that fit the first-level cache

// What is laid out anew of quantised rows that are multiplied with int8 activations tile by tile: groups, and
// the most bytes of each.
constexpr std::int64_t kPanelGroups = 2, kPanelGroupBytes = 12288;

// Rows that queries attend to at once in attend_shared, and queries that are multiplied with them at once.
constexpr std::int64_t kSharedRows = 128, kSharingAtOnce = 32;

static constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rows of weights that are laid out as tiles at once: few, where the second-level cache holds all activations
// while they pass by, else as many as it holds beside some of these.
constexpr std::int64_t kTilePanelBytes = 1 << 20, kFewRowsInTiles = 64, kMostRowsInTiles = 192;
static constexpr std::int64_t rows_in_tiles(std::int64_t cols, std::int64_t num_x) {
  const std::int64_t row_bytes = 2 * round_up(cols, kMaxStep), fitting = kTilePanelBytes / row_bytes;
  const std::int64_t most = num_x * row_bytes <= kTilePanelBytes ? kFewRowsInTiles : kMostRowsInTiles;
  return fitting < 32 ? 32 : fitting < most ? fitting / 32 * 32 : most;
}

// What is laid out at once of weights that few activations are multiplied with, bf16 of so many rows and
// columns; there are two of them, by turns.
constexpr std::int64_t kPartRows = 32, kPartBytes = 2 * kPartRows * kInt8Group;

}  // namespace moeinf
