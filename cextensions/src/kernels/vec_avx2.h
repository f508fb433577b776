// Vectors of AVX2 with FMA and F16C.
#pragma once

constexpr int kLanes = 8;         // floats in a vector
constexpr int kStepBlocks = 1;    // blocks of 32 weights in a Weights8
constexpr int kWeightOffset = 0;  // added to the bytes of a Weights8
constexpr int kMaxSums = 8;       // vectors of sums that the registers hold beside all else
constexpr int kTileX = 2,
              kTileRows = 4;  // activations by weight rows of one matmul tile: 8 sums of 16 registers

using F32 = __m256;

ALWAYS_INLINE F32 zero() { return _mm256_setzero_ps(); }
ALWAYS_INLINE F32 broadcast(float value) { return _mm256_set1_ps(value); }
ALWAYS_INLINE F32 mul(F32 a, F32 b) { return _mm256_mul_ps(a, b); }
ALWAYS_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm256_fmadd_ps(a, b, c); }
ALWAYS_INLINE float sum(F32 v) {
  const F32 twos = _mm256_hadd_ps(v, v), fours = _mm256_hadd_ps(twos, twos);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}
ALWAYS_INLINE void sum_four(F32 a, F32 b, F32 c, F32 d, float* out) {
  const F32 fours = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(fours), _mm256_extractf128_ps(fours, 1)));
}

ALWAYS_INLINE __m128i load_16(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
}
ALWAYS_INLINE __m256i load_32(const unsigned char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
}
ALWAYS_INLINE F32 load_f32(const unsigned char* p) { return _mm256_castsi256_ps(load_32(p)); }
ALWAYS_INLINE F32 load_f16(const unsigned char* p) { return _mm256_cvtph_ps(load_16(p)); }
// kLanes bf16 as floats: the upper halves of their bits.
ALWAYS_INLINE F32 widen_bf16(const unsigned char* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(p)), 16));
}

// 2 * kLanes bf16.
struct Bf16 {
  F32 even, odd;
};
ALWAYS_INLINE Bf16 load_bf16(const unsigned char* p) {
  const __m256i bits = load_32(p);
  return {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
ALWAYS_INLINE F32 fma_bf16(const Bf16& a, const Bf16& b, F32 c) {
  return fma(a.odd, b.odd, fma(a.even, b.even, c));
}

#include "load_part.h"

// 32 signed bytes, and their magnitudes: maddubs multiplies unsigned bytes with signed ones, so the sign goes
// over to the activation. Two products of at most 128 * 127 stay below the limit of 16 bits.
struct Weights8 {
  __m256i bytes, magnitudes;
};
ALWAYS_INLINE Weights8 with_magnitudes(__m256i bytes) { return {bytes, _mm256_abs_epi8(bytes)}; }

using Table = __m256i;
ALWAYS_INLINE Table load_table(const std::int8_t* values) {
  return _mm256_broadcastsi128_si256(load_16(reinterpret_cast<const unsigned char*>(values)));
}

template <int kBlockBytes>
ALWAYS_INLINE Weights8 load_bytes(const unsigned char* p) {
  return with_magnitudes(load_32(p));
}
template <int kBlockBytes>
ALWAYS_INLINE Weights8 look_up(Table table, const unsigned char* p) {
  const __m128i pairs = load_16(p);
  const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
  return with_magnitudes(_mm256_shuffle_epi8(table, _mm256_and_si256(both, _mm256_set1_epi8(15))));
}
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_f16(const unsigned char* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(load_u16(p))));
}
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_from(const float* values, const unsigned char* p) {
  return _mm256_set1_ps(values[*p]);
}

// The scales times d and the minima times dmin of a Q4_K block's sub-blocks.
struct SubBlocks {
  __m256 scales, minima;
};
ALWAYS_INLINE __m256 scaled_bytes(const unsigned char* bytes, const unsigned char* factor) {
  const __m256i eight = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(bytes)));
  return _mm256_mul_ps(_mm256_cvtepi32_ps(eight), scales_f16<0>(factor));
}
ALWAYS_INLINE SubBlocks load_sub_blocks(const unsigned char* block) {
  unsigned char bytes[16];
  unpack_q4k(block, bytes);
  return {scaled_bytes(bytes, block), scaled_bytes(bytes + 8, block + 2)};
}
ALWAYS_INLINE F32 scales_of(const SubBlocks& sub, int step) {
  return _mm256_permutevar8x32_ps(sub.scales, _mm256_set1_epi32(step));
}
ALWAYS_INLINE F32 minima_of(const SubBlocks& sub, int step) {
  return _mm256_permutevar8x32_ps(sub.minima, _mm256_set1_epi32(step));
}
// The scales times the first 8 of x, the minima times the second 8.
ALWAYS_INLINE SubBlocks times(const SubBlocks& sub, const unsigned char* x) {
  return {mul(sub.scales, load_f32(x)), mul(sub.minima, load_f32(x + 32))};
}
ALWAYS_INLINE F32 subtract_minima(const SubBlocks& sub, F32 sum) { return _mm256_sub_ps(sum, sub.minima); }
// Weights of step `step` of a Q4_K block, from its 128 bytes.
ALWAYS_INLINE Weights8 nibbles(const unsigned char* q, int step) {
  const __m256i pairs = load_32(q + step / 2 * 32);
  const __m256i low = step % 2 == 0 ? pairs : _mm256_srli_epi16(pairs, 4);
  const __m256i bytes = _mm256_and_si256(low, _mm256_set1_epi8(15));
  return {bytes, bytes};
}

// Products of weights and the bytes of a record, whole numbers summed lane by lane.
ALWAYS_INLINE F32 add_pairs(__m256i pairs) {
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
ALWAYS_INLINE F32 dot(const Weights8& w, const unsigned char* x) {
  return add_pairs(_mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(load_32(x), w.bytes)));
}
ALWAYS_INLINE F32 dot_nibbles(const Weights8& w, const unsigned char* x) {  // these have no signs
  return add_pairs(_mm256_maddubs_epi16(w.bytes, load_32(x)));
}

ALWAYS_INLINE __m256i rounded_bf16(__m128i bytes, F32 scale,
                                   F32 minimum) {  // in the low halves; of numbers, not of NaN
  const F32 value =
      _mm256_sub_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), scale), minimum);
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
ALWAYS_INLINE void store_16_bf16(__m128i bytes, F32 scale, F32 minimum, unsigned char* out) {
  const __m256i halves = _mm256_packus_epi32(rounded_bf16(bytes, scale, minimum),
                                             rounded_bf16(_mm_srli_si128(bytes, 8), scale, minimum));
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(out), _mm256_permute4x64_epi64(halves, 0xd8));
}
// out = scale * weight - minimum, rounded to bf16.
ALWAYS_INLINE void store_bf16(const Weights8& w, F32 scale, F32 minimum, unsigned char* out) {
  store_16_bf16(_mm256_castsi256_si128(w.bytes), scale, minimum, out);
  store_16_bf16(_mm256_extracti128_si256(w.bytes, 1), scale, minimum, out + 32);
}

#include "one_block.h"
