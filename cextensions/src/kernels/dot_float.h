// Products of rows of f32, f16 or bf16 weights with activations, a tile of R rows by N activations each.
#pragma once

// How weights and activations of a format are read, kStep at a time, and multiplied.
struct F32Lanes {
  static constexpr int kStep = kLanes, kWeightBytes = 4, kActivationBytes = 4;
  using Weights = F32;
  using Activations = F32;
  static Weights weights(const unsigned char* p) { return load_f32(p); }
  static Weights part(const unsigned char* p, std::int64_t count) { return load_f32_part(p, count); }
  static Activations activations(const unsigned char* p) { return load_f32(p); }
  static F32 multiply_add(Weights w, Activations x, F32 sum) { return fma(w, x, sum); }
};

struct F16Lanes : F32Lanes {
  static constexpr int kWeightBytes = 2;
  static Weights weights(const unsigned char* p) { return load_f16(p); }
  static Weights part(const unsigned char* p, std::int64_t count) { return load_f16_part(p, count); }
};

struct Bf16Lanes {
  static constexpr int kStep = 2 * kLanes, kWeightBytes = 2, kActivationBytes = 2;
  using Weights = Bf16;
  using Activations = Bf16;
  static Weights weights(const unsigned char* p) { return load_bf16(p); }
  static Weights part(const unsigned char* p, std::int64_t count) { return load_bf16_part(p, count); }
  static Activations activations(const unsigned char* p) { return load_bf16(p); }
  static F32 multiply_add(const Weights& w, const Activations& x, F32 sum) { return fma_bf16(w, x, sum); }
};

template <class Lanes, bool kPart, int N, int R>
ALWAYS_INLINE void add_step(const unsigned char* const (&w)[R], const unsigned char* const (&x)[N],
                            std::int64_t c, std::int64_t part, F32 (&sums)[N][R]) {
  typename Lanes::Activations activations[N];
  UNROLL for (int i = 0; i < N; ++i) activations[i] = Lanes::activations(x[i] + c * Lanes::kActivationBytes);
  UNROLL for (int r = 0; r < R; ++r) {
    const unsigned char* const p = w[r] + c * Lanes::kWeightBytes;
    const typename Lanes::Weights weights = kPart ? Lanes::part(p, part) : Lanes::weights(p);
    UNROLL for (int i = 0; i < N; ++i) sums[i][r] = Lanes::multiply_add(weights, activations[i], sums[i][r]);
  }
}

// out[i][r] = dot of w[r] and x[i] over cols. Activations are padded with zeros to a whole vector, weights
// are not. Every sum is made in the same order whatever N and R are. Bytes that far ahead of each weight are
// prefetched.
template <class Lanes, int N, int R>
ALWAYS_INLINE void dot_tile(const unsigned char* const (&w)[R], const unsigned char* const (&x)[N],
                            std::int64_t cols, std::int64_t ahead, float (&out)[N][R]) {
  F32 sums[N][R];
  clear(sums);
  std::int64_t c = 0;
  for (; c + Lanes::kStep <= cols; c += Lanes::kStep) {
    if (ahead != 0) {
      UNROLL for (int r = 0; r < R; ++r) __builtin_prefetch(w[r] + c * Lanes::kWeightBytes + ahead);
    }
    add_step<Lanes, false, N, R>(w, x, c, 0, sums);
  }
  if (c < cols) add_step<Lanes, true, N, R>(w, x, c, cols - c, sums);
  finish(sums, out);
}

template <class Lanes>
struct FloatRows {
  // Rows at once: enough independent sums to hide the latency of one, few enough for the registers.
  static constexpr int rows(int num_x) { return num_x <= 2 ? 4 : 2 * num_x <= kMaxSums ? 2 : 1; }

  template <int N, int R>
  static void run(const DotCall& call, const unsigned char* row, const unsigned char* const (&x)[N],
                  float (&out)[N][R]) {
    const unsigned char* w[R];
    UNROLL for (int r = 0; r < R; ++r) w[r] = row + r * call.row_bytes;
    dot_tile<Lanes, N, R>(w, x, call.cols, prefetch_distance(R * call.row_bytes), out);
  }
};
