// Loops over single elements for the compiler to vectorise: their results are the same in all builds.
#pragma once

// e^x to about 1 ulp; 0 below the smallest subnormal, infinite above the largest float.
ALWAYS_INLINE float exponential(float x) {
  const float clamped = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;  // a NaN passes
  // Adding 1.5 * 2^23 rounds to a whole number, which is then in the low bits.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const std::int32_t exponent = static_cast<std::int32_t>(bits_of_f32(shifted) - 0x4b400000u);
  const float whole = shifted - 12582912.0f;
  const float r =
      (clamped - whole * 0.693359375f) - whole * -2.12194440e-4f;  // ln 2 in two parts: Cody and Waite
  float p = 1.9875691500e-4f;                                      // expf of Cephes
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const std::int32_t half = exponent >> 1;  // in two steps, as 2^128 and 2^-149 are no normal numbers
  return p * f32_of_bits(static_cast<std::uint32_t>(half + 127) << 23) *
         f32_of_bits(static_cast<std::uint32_t>(exponent - half + 127) << 23);
}

// erf to 2e-7: Abramowitz and Stegun 7.1.26.
ALWAYS_INLINE float error_function(float x) {
  const float z = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float y = 1.0f - p * t * exponential(-z * z);
  return x < 0 ? -y : y;
}

struct Silu {
  static ALWAYS_INLINE float of(float x) { return x / (1.0f + exponential(-x)); }
};
struct Gelu {
  static ALWAYS_INLINE float of(float x) { return 0.5f * x * (1.0f + error_function(x * 0.707106781f)); }
};
struct Relu {
  static ALWAYS_INLINE float of(float x) { return x < 0 ? 0.0f : x; }  // a NaN stays one
};

template <class Act>
void activate_all(const float* gate, const float* up, float* out, std::int64_t count) {
  if (up == nullptr) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = Act::of(gate[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = Act::of(gate[i]) * up[i];
  }
}

inline void swiglu_clamped(float limit, const float* gate, const float* up, float* out, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    out[i] = g / (1.0f + exponential(-1.702f * g)) * (u + 1.0f);
  }
}

inline void activate(Activation act, float limit, const float* gate, const float* up, float* out,
                     std::int64_t count) {
  switch (act) {
    case Activation::kSilu:
      return activate_all<Silu>(gate, up, out, count);
    case Activation::kGelu:
      return activate_all<Gelu>(gate, up, out, count);
    case Activation::kRelu:
      return activate_all<Relu>(gate, up, out, count);
    case Activation::kSwigluClamped:
      return swiglu_clamped(limit, gate, up, out, count);
  }
}

inline void add_stored(Format format, const void* x, float* sum, std::int64_t count) {
  const auto* p = static_cast<const unsigned char*>(x);
  if (format == Format::kF32) {
    for (std::int64_t i = 0; i < count; ++i) {
      float value;
      std::memcpy(&value, p + 4 * i, sizeof value);
      sum[i] += value;
    }
  } else if (format == Format::kBF16) {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += f32_of_bf16(load_u16(p + 2 * i));
  } else {
    for (std::int64_t i = 0; i < count; ++i) sum[i] += f32_of_f16(load_u16(p + 2 * i));
  }
}

inline void sigmoid_mul(const float* gate, float* x, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) x[i] /= 1.0f + exponential(-gate[i]);
}

inline void add_scaled(const float* x, float scale, float* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += scale * x[i];
}

inline void add_product(const float* x, const float* y, float* sum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += x[i] * y[i];
}

// Whole numbers of a block of activations, to nearest even, in `q`; returns their scale.
ALWAYS_INLINE float quantise_block(const float* x, std::int32_t* q) {
  std::uint32_t largest = 0;  // as bits: NaN > infinity > numbers
  for (int i = 0; i < kInt8Block; ++i) {
    const std::uint32_t magnitude = bits_of_f32(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = f32_of_bits(largest) / 127.0f;
  if (largest >= 0x7f800000u ||
      scale < 0x1p-126f) {  // what is not finite makes NaN of every result; the rest is zero
    for (int i = 0; i < kInt8Block; ++i) q[i] = 0;
    return largest >= 0x7f800000u ? f32_of_bits(0x7fc00000u) : 0.0f;
  }
  const float inverse = 127.0f / f32_of_bits(largest);
  for (int i = 0; i < kInt8Block; ++i) {
    q[i] = static_cast<std::int32_t>(bits_of_f32(x[i] * inverse + 12582912.0f) - 0x4b400000u);
  }
  return scale;
}

// One block's part of a record, of which it is block number `place`; returns the sum of its whole numbers.
ALWAYS_INLINE std::int32_t store_block(const std::int32_t* q, float scale, int place, unsigned char* record) {
  constexpr int kBlockLanes = kLanes / kStepBlocks, kPerLane = kInt8Block / kBlockLanes;
  float* const scales = reinterpret_cast<float*>(record) + place * kBlockLanes;
  auto* const offsets = reinterpret_cast<std::int32_t*>(record + kRecordScales) + place * kBlockLanes;
  auto* const bytes =
      reinterpret_cast<std::int8_t*>(record + kRecordScales + kRecordOffsets) + place * kInt8Block;
  std::int32_t total = 0;
  for (int lane = 0; lane < kBlockLanes; ++lane) {
    std::int32_t sum = 0;
    for (int i = 0; i < kPerLane; ++i) sum += q[lane * kPerLane + i];
    scales[lane] = scale;
    if (kWeightOffset != 0) offsets[lane] = -kWeightOffset * sum;
    total += sum;
  }
  for (int i = 0; i < kInt8Block; ++i) bytes[i] = static_cast<std::int8_t>(q[i]);
  return total;
}

inline void prepare_int8(const float* x, std::int64_t cols, unsigned char* out) {
  float* const tables = reinterpret_cast<float*>(out + num_steps(cols) * kRecordBytes);
  for (std::int64_t b = 0; b < num_steps(cols) * kStepBlocks; ++b) {
    std::int32_t q[kInt8Block] = {};
    const bool exists = b * kInt8Block < cols;
    const float scale = exists ? quantise_block(x + b * kInt8Block, q) : 0.0f;
    unsigned char* const record = out + b / kStepBlocks * kRecordBytes;
    const std::int32_t total = store_block(q, scale, static_cast<int>(b % kStepBlocks), record);
    tables[b / 8 * 16 + b % 8] = scale;
    tables[b / 8 * 16 + 8 + b % 8] = scale * static_cast<float>(total);
  }
}

inline void prepare_bf16(const float* x, std::int64_t cols, std::uint16_t* out) {
  for (std::int64_t c = 0; c < cols; ++c) out[c] = bf16_of_f32(x[c]);
  for (std::int64_t c = cols; c < round_up(cols, kMaxStep); ++c) out[c] = 0;
}

inline void prepare_f32(const float* x, std::int64_t cols, float* out) {
  for (std::int64_t c = 0; c < cols; ++c) out[c] = x[c];
  for (std::int64_t c = cols; c < round_up(cols, kMaxStep); ++c) out[c] = 0.0f;
}

inline void prepare(ActivationKind kind, const float* x, std::int64_t cols, void* out) {
  if (kind == ActivationKind::kF32) return prepare_f32(x, cols, static_cast<float*>(out));
  if (kind == ActivationKind::kBF16) return prepare_bf16(x, cols, static_cast<std::uint16_t*>(out));
  prepare_int8(x, cols, static_cast<unsigned char*>(out));
}
