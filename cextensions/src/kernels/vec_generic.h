// Vectors of one lane in plain C++: the reference that the other instruction sets are held to.
#pragma once

#include <cstdint>
#include <cstring>

constexpr int kLanes = 1;                 // floats in a vector
constexpr int kStepBlocks = 1;            // blocks of 32 weights in a Weights8
constexpr int kWeightOffset = 0;          // added to the bytes of a Weights8
constexpr int kMaxSums = 8;               // vectors of sums that the registers hold beside all else
constexpr int kTileX = 2, kTileRows = 2;  // activations by weight rows of one matmul tile

using F32 = float;

inline F32 zero() { return 0.0f; }
inline F32 broadcast(float value) { return value; }
inline F32 mul(F32 a, F32 b) { return a * b; }
inline F32 fma(F32 a, F32 b, F32 c) { return a * b + c; }
inline float sum(F32 v) { return v; }
inline void sum_four(F32 a, F32 b, F32 c, F32 d, float* out) {
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = d;
}

inline F32 load_f32(const unsigned char* p) {
  float value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
inline F32 load_f16(const unsigned char* p) { return f32_of_f16(load_u16(p)); }
inline F32 widen_bf16(const unsigned char* p) { return f32_of_bf16(load_u16(p)); }

// 2 * kLanes bf16; the order of the lanes is the same for all that fma_bf16 is given.
struct Bf16 {
  float even, odd;
};
inline Bf16 load_bf16(const unsigned char* p) {
  return {f32_of_bf16(load_u16(p)), f32_of_bf16(load_u16(p + 2))};
}
inline F32 fma_bf16(const Bf16& a, const Bf16& b, F32 c) { return fma(a.odd, b.odd, fma(a.even, b.even, c)); }

#include "load_part.h"

// 32 bytes; what follows reads kStepBlocks blocks of kBlockBytes each, of which p is in the first.
struct Weights8 {
  std::int8_t q[32];
};
struct Table {
  const std::int8_t* values;
};
inline Table load_table(const std::int8_t* values) { return {values}; }

template <int kBlockBytes>
inline Weights8 load_bytes(const unsigned char* p) {
  Weights8 w;
  std::memcpy(w.q, p, 32);
  return w;
}
template <int kBlockBytes>
inline Weights8 look_up(const Table& table, const unsigned char* p) {
  Weights8 w;
  for (int i = 0; i < 16; ++i) {
    w.q[i] = table.values[p[i] & 15];
    w.q[i + 16] = table.values[p[i] >> 4];
  }
  return w;
}
template <int kBlockBytes>
inline F32 scales_f16(const unsigned char* p) {
  return f32_of_f16(load_u16(p));
}
template <int kBlockBytes>
inline F32 scales_from(const float* values, const unsigned char* p) {
  return values[*p];
}

// The scales times d and the minima times dmin of a Q4_K block's sub-blocks.
struct SubBlocks {
  float scales[8], minima[8];
};
inline SubBlocks load_sub_blocks(const unsigned char* block) {
  unsigned char bytes[16];
  unpack_q4k(block, bytes);
  SubBlocks sub;
  for (int i = 0; i < 8; ++i) {
    sub.scales[i] = f32_of_f16(load_u16(block)) * static_cast<float>(bytes[i]);
    sub.minima[i] = f32_of_f16(load_u16(block + 2)) * static_cast<float>(bytes[i + 8]);
  }
  return sub;
}
inline F32 scales_of(const SubBlocks& sub, int step) { return sub.scales[step]; }
inline F32 minima_of(const SubBlocks& sub, int step) { return sub.minima[step]; }
// The scales times the first 8 of x, the minima times the second 8.
inline SubBlocks times(const SubBlocks& sub, const unsigned char* x) {
  SubBlocks product;
  for (int i = 0; i < 8; ++i) {
    product.scales[i] = sub.scales[i] * load_f32(x + 4 * i);
    product.minima[i] = sub.minima[i] * load_f32(x + 32 + 4 * i);
  }
  return product;
}
inline F32 subtract_minima(const SubBlocks& sub, F32 sum) {
  float total = 0.0f;
  for (const float minimum : sub.minima) total += minimum;
  return sum - total;
}
// Weights of step `step` of a Q4_K block, from its 128 bytes.
inline Weights8 nibbles(const unsigned char* q, int step) {
  Weights8 w;
  for (int i = 0; i < 32; ++i) {
    const unsigned char byte = q[step / 2 * 32 + i];
    w.q[i] = static_cast<std::int8_t>(step % 2 == 0 ? byte & 15 : byte >> 4);
  }
  return w;
}

// Products of weights and the bytes of a record, whole numbers summed lane by lane.
inline F32 dot(const Weights8& w, const unsigned char* x) {
  std::int32_t total = 0;
  for (int i = 0; i < 32; ++i) total += w.q[i] * static_cast<std::int8_t>(x[i]);
  return static_cast<float>(total);
}
inline F32 dot_nibbles(const Weights8& w, const unsigned char* x) { return dot(w, x); }
// out = scale * weight - minimum, rounded to bf16.
inline void store_bf16(const Weights8& w, F32 scale, F32 minimum, unsigned char* out) {
  for (int i = 0; i < 32; ++i) {
    const std::uint16_t value = bf16_of_f32(scale * static_cast<float>(w.q[i]) - minimum);
    std::memcpy(out + 2 * i, &value, 2);
  }
}

#include "one_block.h"
