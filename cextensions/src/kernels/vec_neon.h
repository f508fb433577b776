// Vectors of NEON as every 64-bit ARM has them; dot products of bytes where the compiler may use them.
#pragma once

constexpr int kLanes = 4;         // floats in a vector
constexpr int kStepBlocks = 1;    // blocks of 32 weights in a Weights8
constexpr int kWeightOffset = 0;  // added to the bytes of a Weights8
constexpr int kMaxSums = 16;      // vectors of sums that the registers hold beside all else
constexpr int kTileX = 4,
              kTileRows = 4;  // activations by weight rows of one matmul tile: 16 sums of 32 registers

using F32 = float32x4_t;

ALWAYS_INLINE F32 zero() { return vdupq_n_f32(0.0f); }
ALWAYS_INLINE F32 broadcast(float value) { return vdupq_n_f32(value); }
ALWAYS_INLINE F32 mul(F32 a, F32 b) { return vmulq_f32(a, b); }
ALWAYS_INLINE F32 fma(F32 a, F32 b, F32 c) { return vfmaq_f32(c, a, b); }
ALWAYS_INLINE float sum(F32 v) { return vaddvq_f32(v); }
ALWAYS_INLINE void sum_four(F32 a, F32 b, F32 c, F32 d, float* out) {
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

ALWAYS_INLINE F32 load_f32(const unsigned char* p) { return vreinterpretq_f32_u8(vld1q_u8(p)); }
ALWAYS_INLINE F32 load_f16(const unsigned char* p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
// kLanes bf16 as floats: the upper halves of their bits.
ALWAYS_INLINE F32 widen_bf16(const unsigned char* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

// 2 * kLanes bf16.
struct Bf16 {
  F32 low, high;
};
ALWAYS_INLINE Bf16 load_bf16(const unsigned char* p) {
  const uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(p));
  return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(bits), 16)),
          vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(bits), 16))};
}
ALWAYS_INLINE F32 fma_bf16(const Bf16& a, const Bf16& b, F32 c) {
  return fma(a.high, b.high, fma(a.low, b.low, c));
}

#include "load_part.h"

struct Weights8 {  // 32 signed bytes
  int8x16_t low, high;
};
using Table = int8x16_t;
ALWAYS_INLINE Table load_table(const std::int8_t* values) { return vld1q_s8(values); }

template <int kBlockBytes>
ALWAYS_INLINE Weights8 load_bytes(const unsigned char* p) {
  return {vreinterpretq_s8_u8(vld1q_u8(p)), vreinterpretq_s8_u8(vld1q_u8(p + 16))};
}
template <int kBlockBytes>
ALWAYS_INLINE Weights8 look_up(Table table, const unsigned char* p) {
  const uint8x16_t pairs = vld1q_u8(p);
  return {vqtbl1q_s8(table, vandq_u8(pairs, vdupq_n_u8(15))), vqtbl1q_s8(table, vshrq_n_u8(pairs, 4))};
}
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_f16(const unsigned char* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(load_u16(p))));
}
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_from(const float* values, const unsigned char* p) {
  return vdupq_n_f32(values[*p]);
}

// The scales times d and the minima times dmin of a Q4_K block's sub-blocks.
struct SubBlocks {
  float scales[8], minima[8];
};
ALWAYS_INLINE void store_scaled(const unsigned char* bytes, const unsigned char* factor, float* out) {
  const uint16x8_t eight = vmovl_u8(vld1_u8(bytes));
  vst1q_f32(out, vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(eight))), scales_f16<0>(factor)));
  vst1q_f32(out + 4, vmulq_f32(vcvtq_f32_u32(vmovl_u16(vget_high_u16(eight))), scales_f16<0>(factor)));
}
ALWAYS_INLINE SubBlocks load_sub_blocks(const unsigned char* block) {
  unsigned char bytes[16];
  unpack_q4k(block, bytes);
  SubBlocks sub;
  store_scaled(bytes, block, sub.scales);
  store_scaled(bytes + 8, block + 2, sub.minima);
  return sub;
}
ALWAYS_INLINE F32 scales_of(const SubBlocks& sub, int step) { return vdupq_n_f32(sub.scales[step]); }
ALWAYS_INLINE F32 minima_of(const SubBlocks& sub, int step) { return vdupq_n_f32(sub.minima[step]); }
// The scales times the first 8 of x, the minima times the second 8.
ALWAYS_INLINE SubBlocks times(const SubBlocks& sub, const unsigned char* x) {
  SubBlocks product;
  for (int i = 0; i < 8; i += 4) {
    vst1q_f32(product.scales + i, mul(vld1q_f32(sub.scales + i), load_f32(x + 4 * i)));
    vst1q_f32(product.minima + i, mul(vld1q_f32(sub.minima + i), load_f32(x + 32 + 4 * i)));
  }
  return product;
}
ALWAYS_INLINE F32 subtract_minima(const SubBlocks& sub, F32 sum) {
  return vsubq_f32(sum, vaddq_f32(vld1q_f32(sub.minima), vld1q_f32(sub.minima + 4)));
}
// Weights of step `step` of a Q4_K block, from its 128 bytes.
ALWAYS_INLINE uint8x16_t nibbles_16(uint8x16_t pairs, bool low) {
  return low ? vandq_u8(pairs, vdupq_n_u8(15)) : vshrq_n_u8(pairs, 4);
}
ALWAYS_INLINE Weights8 nibbles(const unsigned char* q, int step) {
  const unsigned char* const p = q + step / 2 * 32;
  const bool low = step % 2 == 0;
  return {vreinterpretq_s8_u8(nibbles_16(vld1q_u8(p), low)),
          vreinterpretq_s8_u8(nibbles_16(vld1q_u8(p + 16), low))};
}

// Products of weights and the bytes of a record, whole numbers summed lane by lane.
#ifdef __ARM_FEATURE_DOTPROD
ALWAYS_INLINE F32 dot(const Weights8& w, const unsigned char* x) {
  const int32x4_t low = vdotq_s32(vdupq_n_s32(0), w.low, vreinterpretq_s8_u8(vld1q_u8(x)));
  return vcvtq_f32_s32(vdotq_s32(low, w.high, vreinterpretq_s8_u8(vld1q_u8(x + 16))));
}
#else
ALWAYS_INLINE int16x8_t products(int8x16_t w,
                                 int8x16_t x) {  // two of at most 128 * 127: below the limit of 16 bits
  return vmlal_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vget_high_s8(w), vget_high_s8(x));
}
ALWAYS_INLINE F32 dot(const Weights8& w, const unsigned char* x) {
  const int16x8_t low = products(w.low, vreinterpretq_s8_u8(vld1q_u8(x)));
  const int16x8_t high = products(w.high, vreinterpretq_s8_u8(vld1q_u8(x + 16)));
  return vcvtq_f32_s32(vpadalq_s16(vpaddlq_s16(low), high));
}
#endif
ALWAYS_INLINE F32 dot_nibbles(const Weights8& w, const unsigned char* x) { return dot(w, x); }

ALWAYS_INLINE uint16x4_t round_bf16(int16x4_t q, F32 scale, F32 minimum) {  // of numbers, not of NaN
  const uint32x4_t bits =
      vreinterpretq_u32_f32(vsubq_f32(vmulq_f32(vcvtq_f32_s32(vmovl_s16(q)), scale), minimum));
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
}
ALWAYS_INLINE void store_8_bf16(int8x8_t q, F32 scale, F32 minimum, unsigned char* out) {
  const int16x8_t wide = vmovl_s8(q);
  const uint16x8_t rounded = vcombine_u16(round_bf16(vget_low_s16(wide), scale, minimum),
                                          round_bf16(vget_high_s16(wide), scale, minimum));
  vst1q_u8(out, vreinterpretq_u8_u16(rounded));
}
// out = scale * weight - minimum, rounded to bf16.
ALWAYS_INLINE void store_bf16(const Weights8& w, F32 scale, F32 minimum, unsigned char* out) {
  store_8_bf16(vget_low_s8(w.low), scale, minimum, out);
  store_8_bf16(vget_high_s8(w.low), scale, minimum, out + 16);
  store_8_bf16(vget_low_s8(w.high), scale, minimum, out + 32);
  store_8_bf16(vget_high_s8(w.high), scale, minimum, out + 48);
}

#include "one_block.h"
