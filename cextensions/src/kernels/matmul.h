// Products of weight rows with many activations, tile by tile; quantised rows become bf16 first.
#pragma once

struct MatmulCall {
  const unsigned char* x;
  std::int64_t x_bytes, num_x;
  float* y;
  std::int64_t y_stride;
};

// Rows and columns of weights as they are multiplied.
struct Panel {
  const unsigned char* weights;
  std::int64_t row_bytes, first_row, num_rows, first_col, num_cols;
};

// Bytes that will be read next: a few lines are fetched into the second-level cache with every tile.
struct Ahead {
  const unsigned char* row;
  std::int64_t row_bytes, num_rows, lines_in_row, line;

  void fetch(std::int64_t num_lines) {
    for (; num_lines > 0 && num_rows > 0; --num_lines) {
      __builtin_prefetch(row + 64 * line, 0, 2);
      if (++line < lines_in_row) continue;
      line = 0;
      row += row_bytes;
      --num_rows;
    }
  }
};

template <class Lanes, int N>
void multiply_tile(const Panel& panel, std::int64_t r, const MatmulCall& call, std::int64_t i) {
  const unsigned char* w[kTileRows];
  const unsigned char* x[N];
  const std::int64_t num_rows = panel.num_rows - r < kTileRows ? panel.num_rows - r : kTileRows;
  // Rows that are missing from the last tile are its last row over again: one kernel serves all.
  for (int k = 0; k < kTileRows; ++k)
    w[k] = panel.weights + (r + (k < num_rows ? k : num_rows - 1)) * panel.row_bytes;
  for (int k = 0; k < N; ++k)
    x[k] = call.x + (i + k) * call.x_bytes + panel.first_col * Lanes::kActivationBytes;
  float out[N][kTileRows];
  dot_tile<Lanes, N, kTileRows>(w, x, panel.num_cols, 0, out);
  for (int k = 0; k < N; ++k) {
    float* const y = call.y + (i + k) * call.y_stride + panel.first_row + r;
    for (std::int64_t j = 0; j < num_rows; ++j) y[j] = panel.first_col == 0 ? out[k][j] : y[j] + out[k][j];
  }
}

// The kernel for `count` <= N activations.
template <class Lanes, int N>
void multiply_tile_of(std::int64_t count, const Panel& panel, std::int64_t r, const MatmulCall& call,
                      std::int64_t i) {
  if (count == N) return multiply_tile<Lanes, N>(panel, r, call, i);
  if constexpr (N > 1) multiply_tile_of<Lanes, N - 1>(count, panel, r, call, i);
}

// The weights of a tile stay in the first-level cache while a block of x, which stays in the second, passes
// by.
template <class Lanes>
void multiply_panel(const Panel& panel, const MatmulCall& call, Ahead ahead) {
  const std::int64_t num_tiles =
      (panel.num_rows + kTileRows - 1) / kTileRows * ((call.num_x + kTileX - 1) / kTileX);
  const std::int64_t lines_in_tile = ahead.num_rows * ahead.lines_in_row / num_tiles + 1;
  for (std::int64_t begin = 0; begin < call.num_x; begin += kBlockX) {
    const std::int64_t count = call.num_x - begin < kBlockX ? call.num_x - begin : kBlockX;
    const std::int64_t tiles = (count + kTileX - 1) / kTileX;
    for (std::int64_t r = 0; r < panel.num_rows; r += kTileRows) {
      for (std::int64_t t = 0; t < tiles; ++t) {  // of sizes that differ by one at most: 9 are 3 and 3 and 3
        const std::int64_t i = count * t / tiles, end = count * (t + 1) / tiles;
        ahead.fetch(lines_in_tile);
        multiply_tile_of<Lanes, kTileX>(end - i, panel, r, call, begin + i);
      }
    }
  }
}

// Columns are cut so that the rows of a tile fit the first-level cache. Rows go tile by tile; where there is
// more than one block of x, panels of many rows, which the second-level cache holds, as each of them is to be
// expanded only once. expand(p, panel) makes the panel's weights of the stored ones from p on.
template <class Lanes, class Expand>
void multiply(const Matrix& w, std::int64_t first, std::int64_t last, const MatmulCall& call,
              const Expand& expand) {
  const std::int64_t weights = block_weights(w.format),
                     bytes = static_cast<std::int64_t>(block_bytes(w.format));
  const std::int64_t row_bytes = w.cols / weights * bytes,
                     rows = call.num_x <= kBlockX ? kTileRows : kPanelRows;
  constexpr std::int64_t kCols = 2 * kPanelCols / Lanes::kActivationBytes;
  for (std::int64_t r = first; r < last; r += rows) {
    for (std::int64_t c = 0; c < w.cols; c += kCols) {
      const bool row_ends = c + kCols >= w.cols;
      Panel panel = {
          nullptr, row_bytes, r, last - r < rows ? last - r : rows, c, row_ends ? w.cols - c : kCols};
      expand(w.data + r * row_bytes + c / weights * bytes, panel);
      const std::int64_t next_row = row_ends ? r + rows : r, next_col = row_ends ? 0 : c + kCols;
      const std::int64_t next_rows = last - next_row < rows ? last - next_row : rows;
      const std::int64_t next_cols = w.cols - next_col < kCols ? w.cols - next_col : kCols;
      multiply_panel<Lanes>(panel, call,
                            {w.data + next_row * row_bytes + next_col / weights * bytes, row_bytes, next_rows,
                             next_cols / weights * bytes / 64 + 1, 0});
    }
  }
}

template <class Lanes>
void multiply_floats(const Matrix& w, std::int64_t first, std::int64_t last, const MatmulCall& call) {
  multiply<Lanes>(w, first, last, call, [](const unsigned char* p, Panel& panel) { panel.weights = p; });
}

inline void multiply_blocks(const Matrix& w, std::int64_t first, std::int64_t last, const MatmulCall& call,
                            unsigned char* scratch) {
  multiply<Bf16Lanes>(w, first, last, call, [&](const unsigned char* p, Panel& panel) {
    const std::int64_t stored_bytes = panel.row_bytes;
    panel.weights = scratch;
    panel.row_bytes = 2 * round_up(panel.num_cols, kMaxStep);
    for (std::int64_t k = 0; k < panel.num_rows; ++k) {
      expand_row_of(w.format, p + k * stored_bytes, panel.num_cols, scratch + k * panel.row_bytes);
    }
  });
}
