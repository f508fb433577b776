// Walks over the rows of a matrix with the kernel of its format, unrolled for the number of activations.
#pragma once

struct DotCall {
  const unsigned char* weights;
  std::int64_t row_bytes, cols;
  const unsigned char* x;
  std::int64_t x_bytes;
  float* y;
  std::int64_t y_stride;
};

// How far ahead to prefetch when `group_bytes` of neighbouring rows are read side by side: the same place of
// a later group, so that no line is missed or fetched twice. At least 8 KiB: with 4 KiB, 4-bit formats were a
// third slower from memory. Beyond 32 KiB lines would leave the first-level cache before they are used:
// there, 2 KiB ahead in each row.
constexpr std::int64_t prefetch_distance(std::int64_t group_bytes) {
  return group_bytes > 32768 ? 2048 : (8192 + group_bytes - 1) / group_bytes * group_bytes;
}

template <class Rows, int N, int R>
void dot_some(const DotCall& call, std::int64_t r, const unsigned char* const (&x)[N]) {
  float out[N][R];
  Rows::template run<N, R>(call, call.weights + r * call.row_bytes, x, out);
  for (int i = 0; i < N; ++i) {
    for (int k = 0; k < R; ++k) call.y[i * call.y_stride + r + k] = out[i][k];
  }
}

template <class Rows, int N>
void dot_for(const DotCall& call, std::int64_t first, std::int64_t last) {
  constexpr int kRows = Rows::rows(N);
  const unsigned char* x[N];
  for (int i = 0; i < N; ++i) x[i] = call.x + i * call.x_bytes;
  std::int64_t r = first;
  for (; r + kRows <= last; r += kRows) dot_some<Rows, N, kRows>(call, r, x);
  for (; r < last; ++r) dot_some<Rows, N, 1>(call, r, x);
}

template <class Rows>
void dot(const DotCall& call, std::int64_t first, std::int64_t last, int num_x) {
  switch (num_x) {
    case 1:
      return dot_for<Rows, 1>(call, first, last);
    case 2:
      return dot_for<Rows, 2>(call, first, last);
    case 3:
      return dot_for<Rows, 3>(call, first, last);
    case 4:
      return dot_for<Rows, 4>(call, first, last);
    case 5:
      return dot_for<Rows, 5>(call, first, last);
    case 6:
      return dot_for<Rows, 6>(call, first, last);
    case 7:
      return dot_for<Rows, 7>(call, first, last);
    default:
      return dot_for<Rows, 8>(call, first, last);
  }
}
