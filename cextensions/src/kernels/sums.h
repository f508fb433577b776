// The vectors of sums of a tile, and what they come to.
#pragma once

template <int N, int R>
ALWAYS_INLINE void clear(F32 (&sums)[N][R]) {
  UNROLL for (int i = 0; i < N; ++i) { UNROLL for (int r = 0; r < R; ++r) sums[i][r] = zero(); }
}

// sum_four adds the lanes of each vector in the order in which sum does.
template <int N, int R>
ALWAYS_INLINE void finish(const F32 (&sums)[N][R], float (&out)[N][R]) {
  constexpr int kFours = N * R / 4 * 4;
  UNROLL for (int k = 0; k < kFours; k += 4) {
    sum_four(sums[k / R][k % R], sums[(k + 1) / R][(k + 1) % R], sums[(k + 2) / R][(k + 2) % R],
             sums[(k + 3) / R][(k + 3) % R], &out[0][0] + k);
  }
  UNROLL for (int k = kFours; k < N * R; ++k) out[k / R][k % R] = sum(sums[k / R][k % R]);
}
