// Loops of attention, written so that the compiler vectorises them; ops.cc includes this for each instruction
// set.

inline float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

inline std::uint16_t to_bf16(float value) {  // to nearest even; a NaN stays one
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

inline float from_f16(std::uint16_t bits) {  // without branches: scales the exponent by a multiplication
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16, rest = std::uint32_t{bits & 0x7fffu} << 13;
  float value;
  __builtin_memcpy(&value, &rest, sizeof value);
  value *= 0x1p112f;
  std::uint32_t wide;
  __builtin_memcpy(&wide, &value, sizeof wide);
  wide |= sign | ((bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u);
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

inline std::uint16_t to_f16(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u)
    return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and more: infinite
  if (magnitude < 0x38800000u) {  // below the smallest normal: let the adder round to a multiple of 2^-24
    float small;
    __builtin_memcpy(&small, &magnitude, sizeof small);
    small += 0.5f;
    std::uint32_t half;
    __builtin_memcpy(&half, &small, sizeof half);
    return static_cast<std::uint16_t>(sign | (half - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign |
                                    ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

inline void widen_kv(Format format, const unsigned char* row, std::int64_t count, float* out) {
  if (format == Format::kF32) {
    __builtin_memcpy(out, row, static_cast<std::size_t>(count) * 4);
    return;
  }
  const auto* bits = reinterpret_cast<const std::uint16_t*>(row);
  if (format == Format::kBF16) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = from_bf16(bits[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = from_f16(bits[i]);
  }
}

void store_kv(Format format, const float* x, std::int64_t count, void* out) {
  if (format == Format::kF32) {
    __builtin_memcpy(out, x, static_cast<std::size_t>(count) * 4);
    return;
  }
  auto* bits = static_cast<std::uint16_t*>(out);
  if (format == Format::kBF16) {
    for (std::int64_t i = 0; i < count; ++i) bits[i] = to_bf16(x[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) bits[i] = to_f16(x[i]);
  }
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t count, float* out) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(sum / static_cast<float>(count) + eps);
  for (std::int64_t i = 0; i < count; ++i) out[i] = x[i] * scale * weight[i];
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, std::int64_t count,
                float* out) {
  float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += x[i];
  const float mean = sum / static_cast<float>(count);
#pragma omp simd reduction(+ : squares)
  for (std::int64_t i = 0; i < count; ++i) squares += (x[i] - mean) * (x[i] - mean);
  const float scale = 1.0f / __builtin_sqrtf(squares / static_cast<float>(count) + eps);
  for (std::int64_t i = 0; i < count; ++i) out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

void rotate(float* x, const float* cos, const float* sin, std::int64_t half, bool interleaved) {
  if (interleaved) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = x[2 * i], b = x[2 * i + 1];
      x[2 * i] = a * cos[i] - b * sin[i];
      x[2 * i + 1] = b * cos[i] + a * sin[i];
    }
    return;
  }
#pragma omp simd
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = b * cos[i] + a * sin[i];
  }
}

inline float exp_of_negative(float x) {  // e^x for x <= 0, to 2 ulp: 2^n * e^r with |r| <= ln(2) / 2
  x = x < -87.0f ? -87.0f : x;
  const auto n = static_cast<std::int32_t>(x * 1.44269504f - 0.5f);
  const float whole = static_cast<float>(n), r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  float e = 1.0f / 720;
  e = e * r + 1.0f / 120;
  e = e * r + 1.0f / 24;
  e = e * r + 1.0f / 6;
  e = e * r + 0.5f;
  e = e * r + 1.0f;
  e = e * r + 1.0f;
  const std::uint32_t bits = static_cast<std::uint32_t>(n + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, sizeof power);
  return e * power;
}

void softmax(float* x, std::int64_t count, float scale, const float* sink) {
  float most = sink != nullptr ? *sink / scale : -__builtin_inff();
  for (std::int64_t i = 0; i < count; ++i) most = x[i] > most ? x[i] : most;
  float sum = sink != nullptr ? exp_of_negative(*sink - most * scale) : 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) {
    x[i] = exp_of_negative((x[i] - most) * scale);
    sum += x[i];
  }
  const float share = 1.0f / sum;
  for (std::int64_t i = 0; i < count; ++i) x[i] *= share;
}

constexpr std::int64_t kPositions =
    32;  // attended to at once: their rows, widened, stay in the first-level cache
constexpr std::int64_t kPaddedDim = (kMaxHeadDim + kLanes - 1) / kLanes * kLanes;

// Rows of queries, keys, values and sums as floats, with zeros up to a whole number of vectors.
struct AttendState {
  std::int64_t width;  // of a row
  float queries[kMaxGroup][kPaddedDim], sums[kMaxGroup][kPaddedDim], scores[kMaxGroup][kPositions];
  float rows[kPositions * kPaddedDim];
};

ALWAYS_INLINE F32 load(const float* p) { return load_f32(reinterpret_cast<const unsigned char*>(p)); }

void widen_rows(const AttendTask& task, const unsigned char* rows, std::int64_t start, std::int64_t count,
                AttendState& state) {
  const auto stride = static_cast<std::size_t>(task.head_dim) * (task.format == Format::kF32 ? 4 : 2);
  for (std::int64_t j = 0; j < count; ++j) {
    widen_kv(task.format, rows + static_cast<std::size_t>(start + j) * stride, task.head_dim,
             state.rows + j * state.width);
  }
}

template <int N>
void score(AttendState& state, int first, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    const float* const row = state.rows + j * state.width;
    F32 sums[N][1];
    clear(sums);
    for (std::int64_t c = 0; c < state.width; c += kLanes) {
      const F32 key = load(row + c);
      UNROLL for (int i = 0; i < N; ++i) sums[i][0] =
          fma(load(state.queries[first + i] + c), key, sums[i][0]);
    }
    float out[N][1];
    finish(sums, out);
    for (int i = 0; i < N; ++i) state.scores[first + i][j] = out[i][0];
  }
}

template <int N>
void mix(AttendState& state, int first, std::int64_t count) {
  for (std::int64_t c = 0; c < state.width; c += kLanes) {
    F32 sums[N];
    UNROLL for (int i = 0; i < N; ++i) sums[i] = load(state.sums[first + i] + c);
    for (std::int64_t j = 0; j < count; ++j) {
      const F32 value = load(state.rows + j * state.width + c);
      UNROLL for (int i = 0; i < N; ++i) sums[i] = fma(broadcast(state.scores[first + i][j]), value, sums[i]);
    }
    UNROLL for (int i = 0; i < N; ++i) __builtin_memcpy(state.sums[first + i] + c, &sums[i], sizeof(F32));
  }
}

// Calls step<8>, step<4> and step<1> for as many queries each as there are.
#define FOR_QUERIES(step, state, num_queries, count)                         \
  for (int g = 0; g < (num_queries);) {                                      \
    const int left = (num_queries)-g, n = left >= 8 ? 8 : left >= 4 ? 4 : 1; \
    (n == 8 ? step<8> : n == 4 ? step<4> : step<1>)(state, g, count);        \
    g += n;                                                                  \
  }

void attend(const AttendTask& task, SoftmaxState* states, float* sums) {
  AttendState state;
  const std::int64_t dim = task.head_dim;
  state.width = (dim + kLanes - 1) / kLanes * kLanes;
  float largest[kMaxGroup], total[kMaxGroup];
  for (int g = 0; g < task.num_queries; ++g) {
    largest[g] = task.sinks != nullptr ? task.sinks[g] : -__builtin_inff();
    total[g] = task.sinks != nullptr ? 1 : 0;
    for (std::int64_t c = 0; c < state.width; ++c) {
      state.queries[g][c] = c < dim ? task.queries[g * dim + c] * task.scale : 0;
      state.sums[g][c] = 0;
    }
  }
  for (std::int64_t j = 0; j < kPositions; ++j) {
    for (std::int64_t c = dim; c < state.width; ++c) state.rows[j * state.width + c] = 0;
  }
  for (std::int64_t start = task.first; start < task.last; start += kPositions) {
    const std::int64_t count = task.last - start < kPositions ? task.last - start : kPositions;
    widen_rows(task, task.keys, start, count, state);
    FOR_QUERIES(score, state, task.num_queries, count);
    for (int g = 0; g < task.num_queries; ++g) {
      float* const scores = state.scores[g];
      float most = largest[g], sum = 0;
      for (std::int64_t j = 0; j < count; ++j) most = scores[j] > most ? scores[j] : most;
      const float shrink = exp_of_negative(largest[g] - most);
      largest[g] = most;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t j = 0; j < count; ++j) {
        scores[j] = exp_of_negative(scores[j] - most);
        sum += scores[j];
      }
      total[g] = total[g] * shrink + sum;
      for (std::int64_t c = 0; c < state.width; ++c) state.sums[g][c] *= shrink;
    }
    widen_rows(task, task.values, start, count, state);
    FOR_QUERIES(mix, state, task.num_queries, count);
  }
  for (int g = 0; g < task.num_queries; ++g) {
    states[g] = {largest[g], total[g]};
    for (std::int64_t c = 0; c < dim; ++c) sums[g * dim + c] = state.sums[g][c];
  }
}

#undef FOR_QUERIES
