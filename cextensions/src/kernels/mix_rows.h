// Sums of f32, f16 or bf16 rows with float weights, and a softmax that goes over its scores block by block.
#pragma once

struct WidenedBf16Lanes : F32Lanes {
  static constexpr int kWeightBytes = 2;
  static Weights weights(const unsigned char* p) { return widen_bf16(p); }
  static Weights part(const unsigned char* p, std::int64_t count) { return widen_bf16_part(p, count); }
};

struct MixCall {
  const unsigned char* rows;
  std::int64_t row_bytes, num_rows;
  const float* x;
  std::int64_t x_stride, num_x;
  float* y;
  std::int64_t y_stride;
};

// N sums, from number i on, of V vectors of columns from c on; kPart: of `count` columns, less than a vector.
template <class Lanes, bool kPart, int V, int N>
void mix_tile(const MixCall& call, std::int64_t c, std::int64_t count, std::int64_t i) {
  F32 sums[N][V];
  float* const y = call.y + i * call.y_stride + c;
  UNROLL for (int n = 0; n < N; ++n) {
    const auto* from = reinterpret_cast<const unsigned char*>(y + n * call.y_stride);
    UNROLL for (int v = 0; v < V; ++v) {
      sums[n][v] = kPart ? load_f32_part(from, count) : load_f32(from + 4 * kLanes * v);
    }
  }
  const float* const x = call.x + i * call.x_stride;
  const unsigned char* row = call.rows + c * Lanes::kWeightBytes;
  for (std::int64_t r = 0; r < call.num_rows; ++r, row += call.row_bytes) {
    F32 weights[V];
    UNROLL for (int v = 0; v < V; ++v) {
      weights[v] = kPart ? Lanes::part(row, count) : Lanes::weights(row + kLanes * v * Lanes::kWeightBytes);
    }
    UNROLL for (int n = 0; n < N; ++n) {
      const F32 factor = broadcast(x[n * call.x_stride + r]);
      UNROLL for (int v = 0; v < V; ++v) sums[n][v] = fma(factor, weights[v], sums[n][v]);
    }
  }
  const std::size_t num_bytes = kPart ? static_cast<std::size_t>(count) * 4 : V * sizeof(F32);
  UNROLL for (int n = 0; n < N; ++n) __builtin_memcpy(y + n * call.y_stride, sums[n], num_bytes);
}

// The tile of `count` <= N sums.
template <class Lanes, bool kPart, int V, int N>
void mix_tile_of(std::int64_t num_x, const MixCall& call, std::int64_t c, std::int64_t count,
                 std::int64_t i) {
  if (num_x == N) return mix_tile<Lanes, kPart, V, N>(call, c, count, i);
  if constexpr (N > 1) mix_tile_of<Lanes, kPart, V, N - 1>(num_x, call, c, count, i);
}

// All sums of a panel of columns, which stays in the first-level cache, in tiles of sizes that differ by one
// at most.
template <class Lanes, bool kPart, int V>
void mix_panel(const MixCall& call, std::int64_t c, std::int64_t count) {
  const std::int64_t tiles = (call.num_x + kTileRows - 1) / kTileRows;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t i = call.num_x * t / tiles, end = call.num_x * (t + 1) / tiles;
    mix_tile_of<Lanes, kPart, V, kTileRows>(end - i, call, c, count, i);
  }
}

template <class Lanes>
void mix_columns(const MixCall& call, std::int64_t first, std::int64_t last) {
  std::int64_t c = first;
  if (call.num_x == 1) {  // reads as much of a row at once as the registers can sum
    constexpr std::int64_t kWide = kMaxSums * kLanes;
    for (; c + kWide <= last; c += kWide) mix_tile<Lanes, false, kMaxSums, 1>(call, c, 0, 0);
  }
  constexpr std::int64_t kPanel = kTileX * kLanes;
  for (; c + kPanel <= last; c += kPanel) mix_panel<Lanes, false, kTileX>(call, c, 0);
  for (; c + kLanes <= last; c += kLanes) mix_panel<Lanes, false, 1>(call, c, 0);
  if (c < last) mix_panel<Lanes, true, 1>(call, c, last - c);
}

void soften(float* scores, std::int64_t count, SoftmaxState& state, float* sums, std::int64_t width) {
  float most = state.largest, total = 0;
#pragma omp simd reduction(max : most)
  for (std::int64_t j = 0; j < count; ++j) most = scores[j] > most ? scores[j] : most;
  if (most > state.largest) {
    const float shrink = exp_of_negative(state.largest - most);
    for (std::int64_t c = 0; c < width; ++c) sums[c] *= shrink;
    state.total *= shrink;
    state.largest = most;
  }
#pragma omp simd reduction(+ : total)
  for (std::int64_t j = 0; j < count; ++j) {
    scores[j] = exp_of_negative(scores[j] - most);
    total += scores[j];
  }
  state.total += total;
}
