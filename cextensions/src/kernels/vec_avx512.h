// Vectors of AVX-512 (F, BW, DQ, VL, VNNI); with MOEINF_BF16_DOT also its products of bf16.
#pragma once

constexpr int kLanes = 16;      // floats in a vector
constexpr int kStepBlocks = 2;  // blocks of 32 weights in a Weights8
// Added to the bytes of a Weights8, as VNNI multiplies unsigned bytes with signed ones. The sum that it adds
// to each lane is a matter of the activations alone: their records have it, negated.
constexpr int kWeightOffset = 128;
constexpr int kMaxSums = 16;  // vectors of sums that the registers hold beside all else
#ifdef MOEINF_BF16_DOT
constexpr int kTileX = 4,
              kTileRows = 6;  // activations by weight rows of one matmul tile: 24 sums of 32 registers
#else
constexpr int kTileX = 4, kTileRows = 4;  // activations take two registers each
#endif

using F32 = __m512;

ALWAYS_INLINE F32 zero() { return _mm512_setzero_ps(); }
ALWAYS_INLINE F32 broadcast(float value) { return _mm512_set1_ps(value); }
ALWAYS_INLINE F32 mul(F32 a, F32 b) { return _mm512_mul_ps(a, b); }
ALWAYS_INLINE F32 fma(F32 a, F32 b, F32 c) { return _mm512_fmadd_ps(a, b, c); }
ALWAYS_INLINE __m128 add_quarters(F32 v) {
  const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
}
// [a0 + a2, b0 + b2, a1 + a3, b1 + b3] in each quarter
ALWAYS_INLINE F32 add_pairs(F32 a, F32 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
ALWAYS_INLINE void sum_four(F32 a, F32 b, F32 c, F32 d, float* out) {
  const __m512d first = _mm512_castps_pd(add_pairs(a, b)), second = _mm512_castps_pd(add_pairs(c, d));
  const F32 even = _mm512_castpd_ps(_mm512_unpacklo_pd(first, second));
  const F32 odd = _mm512_castpd_ps(_mm512_unpackhi_pd(first, second));
  _mm_storeu_ps(out, add_quarters(_mm512_add_ps(even, odd)));
}
ALWAYS_INLINE float sum(F32 v) {
  float out[4];
  sum_four(v, v, v, v, out);
  return out[0];
}

ALWAYS_INLINE F32 load_f32(const unsigned char* p) { return _mm512_loadu_ps(p); }
ALWAYS_INLINE F32 load_f16(const unsigned char* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
// The first `count` of a vector, then zeros.
ALWAYS_INLINE F32 load_f32_part(const unsigned char* p, std::int64_t count) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p);
}
ALWAYS_INLINE F32 load_f16_part(const unsigned char* p, std::int64_t count) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << count) - 1), p));
}

// kLanes bf16 as floats: the upper halves of their bits.
ALWAYS_INLINE F32 widen_bits(__m256i bits) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
ALWAYS_INLINE F32 widen_bf16(const unsigned char* p) {
  return widen_bits(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
ALWAYS_INLINE F32 widen_bf16_part(const unsigned char* p, std::int64_t count) {
  return widen_bits(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << count) - 1), p));
}

// 2 * kLanes bf16.
#ifdef MOEINF_BF16_DOT
using Bf16 = __m512bh;
ALWAYS_INLINE Bf16 bf16_of_bits(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }
ALWAYS_INLINE F32 fma_bf16(Bf16 a, Bf16 b, F32 c) { return _mm512_dpbf16_ps(c, a, b); }
#else
struct Bf16 {
  F32 even, odd;
};
ALWAYS_INLINE Bf16 bf16_of_bits(__m512i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
ALWAYS_INLINE F32 fma_bf16(const Bf16& a, const Bf16& b, F32 c) {
  return fma(a.odd, b.odd, fma(a.even, b.even, c));
}
#endif
ALWAYS_INLINE Bf16 load_bf16(const unsigned char* p) { return bf16_of_bits(_mm512_loadu_si512(p)); }
ALWAYS_INLINE Bf16 load_bf16_part(const unsigned char* p, std::int64_t count) {
  return bf16_of_bits(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << count) - 1), p));
}

// Two blocks of 32 bytes; what follows reads them from blocks of kBlockBytes each, p being in the first.
using Weights8 = __m512i;
ALWAYS_INLINE __m512i with_offset(__m512i bytes) {
  return _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(128)));
}
ALWAYS_INLINE __m128i load_16(const unsigned char* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p));
}
ALWAYS_INLINE __m256i load_32(const unsigned char* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
}

using Table = __m512i;
ALWAYS_INLINE Table load_table(const std::int8_t* values) {
  return with_offset(_mm512_broadcast_i32x4(load_16(reinterpret_cast<const unsigned char*>(values))));
}
template <int kBlockBytes>
ALWAYS_INLINE Weights8 load_bytes(const unsigned char* p) {
  return with_offset(_mm512_inserti64x4(_mm512_castsi256_si512(load_32(p)), load_32(p + kBlockBytes), 1));
}
template <int kBlockBytes>
ALWAYS_INLINE Weights8 look_up(Table table, const unsigned char* p) {
  const __m512i shifts =
      _mm512_set_epi64(0x0004000400040004, 0x0004000400040004, 0, 0,  // high nibbles, low ones
                       0x0004000400040004, 0x0004000400040004, 0, 0);
  const __m512i pairs =
      _mm512_mask_broadcast_i64x2(_mm512_broadcast_i64x2(load_16(p)), 0xf0, load_16(p + kBlockBytes));
  return _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srlv_epi16(pairs, shifts), _mm512_set1_epi8(15)));
}
// In each lane the scale of its block.
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_f16(const unsigned char* p) {
  if (kBlockBytes >= 16 && kBlockBytes <= 30) {  // each half of one load has one of the two
    const __m128i low = _mm_set1_epi16(0x0100), high = _mm_set1_epi16(0x0100 + 0x0101 * (kBlockBytes - 16));
    return _mm512_cvtph_ps(_mm256_shuffle_epi8(load_32(p), _mm256_set_m128i(high, low)));
  }
  const __m128i a = _mm_set1_epi16(static_cast<short>(load_u16(p)));
  const __m128i b = _mm_set1_epi16(static_cast<short>(load_u16(p + kBlockBytes)));
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}
template <int kBlockBytes>
ALWAYS_INLINE F32 scales_from(const float* values, const unsigned char* p) {
  return _mm512_mask_broadcastss_ps(_mm512_set1_ps(values[p[0]]), 0xff00,
                                    _mm_load_ss(values + p[kBlockBytes]));
}

// The scales times d of a Q4_K block's sub-blocks in the low lanes, the minima times dmin in the high ones.
using SubBlocks = __m512;
ALWAYS_INLINE SubBlocks
load_sub_blocks(const unsigned char* block) {  // the same as unpack_q4k, without its detour
  const __m128i header = load_16(block);       // d and dmin, then words 0, 1 and 2
  const __m128i low =
      _mm_and_si128(_mm_srlv_epi32(_mm_shuffle_epi32(header, 0xed), _mm_setr_epi32(0, 0, 0, 4)),
                    _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
  const __m128i high = _mm_and_si128(_mm_srli_epi32(_mm_shuffle_epi32(header, 0xa5), 2),
                                     _mm_setr_epi32(0, 0x30303030, 0, 0x30303030));
  const __m256i pairs = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(header),
                                            _mm256_set_m128i(_mm_set1_epi16(0x0302), _mm_set1_epi16(0x0100)));
  return mul(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_or_si128(low, high))), _mm512_cvtph_ps(pairs));
}
ALWAYS_INLINE F32 scales_of(SubBlocks sub, int step) {
  const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
  return _mm512_permutexvar_ps(_mm512_add_epi32(second, _mm512_set1_epi32(2 * step)), sub);
}
// The scales times the first 8 of x, the minima times the second 8.
ALWAYS_INLINE SubBlocks times(SubBlocks sub, const unsigned char* x) { return mul(sub, load_f32(x)); }
ALWAYS_INLINE F32 subtract_minima(SubBlocks sub, F32 sum) {
  return _mm512_mask_sub_ps(sum, 0xff00, sum, sub);
}
// Weights of step `step` of a Q4_K block, from its 128 bytes. They need no offset.
ALWAYS_INLINE Weights8 nibbles(const unsigned char* q, int step) {
  const __m512i shifts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
  const __m512i pairs = _mm512_srlv_epi16(_mm512_broadcast_i64x4(load_32(q + 32 * step)), shifts);
  return _mm512_and_si512(pairs, _mm512_set1_epi8(15));
}

// Products of weights and a record (from its offsets on), whole numbers summed lane by lane.
ALWAYS_INLINE F32 dot(Weights8 w, const unsigned char* x) {
  return _mm512_cvtepi32_ps(
      _mm512_dpbusd_epi32(_mm512_loadu_si512(x), w, _mm512_loadu_si512(x + 4 * kLanes)));
}
ALWAYS_INLINE F32 dot_nibbles(Weights8 w, const unsigned char* x) {
  return _mm512_cvtepi32_ps(
      _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512(x + 4 * kLanes)));
}

// Numbers, not NaN, to bf16.
#ifdef MOEINF_BF16_DOT
ALWAYS_INLINE __m256i round_bf16(F32 v) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)); }
#else
ALWAYS_INLINE __m256i round_bf16(F32 v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#endif

ALWAYS_INLINE F32 scale_f16(const unsigned char* p) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(load_u16(p))));
}
ALWAYS_INLINE F32 floats_of_bytes(__m128i bytes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)); }

// out [32] = scale * weight, rounded to bf16.
ALWAYS_INLINE void expand_bytes(const unsigned char* q, F32 scale, unsigned char* out) {
  const __m256i low = round_bf16(mul(floats_of_bytes(load_16(q)), scale));
  const __m256i high = round_bf16(mul(floats_of_bytes(load_16(q + 16)), scale));
  _mm512_storeu_si512(out, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

// A nibble is one of 16 values: these are rounded, then looked up. The table is there twice, as an index has
// five bits that count, the fifth of them being the other nibble's.
ALWAYS_INLINE void store_looked_up(__m512i indices, F32 values, unsigned char* out) {
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(indices, _mm512_broadcast_i64x4(round_bf16(values))));
}
ALWAYS_INLINE void expand_nibbles(Table table, const unsigned char* q, F32 scale, unsigned char* out) {
  const __m256i pairs = _mm256_cvtepu8_epi16(load_16(q));
  const __m512i indices = _mm512_inserti64x4(_mm512_castsi256_si512(pairs), _mm256_srli_epi16(pairs, 4), 1);
  store_looked_up(indices, mul(floats_of_bytes(_mm512_castsi512_si128(with_offset(table))), scale), out);
}
// out [64] = sub-blocks 2 * pair and 2 * pair + 1 of a Q4_K block, from the 32 bytes that they share.
ALWAYS_INLINE F32 lane(SubBlocks sub, int index) {
  return _mm512_permutexvar_ps(_mm512_set1_epi32(index), sub);
}
ALWAYS_INLINE void expand_pair(SubBlocks sub, int pair, const unsigned char* q, unsigned char* out) {
  const F32 counts = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i low = _mm512_cvtepu8_epi16(load_32(q)), high = _mm512_srli_epi16(low, 4);
  const F32 first = _mm512_sub_ps(mul(counts, lane(sub, 2 * pair)), lane(sub, 2 * pair + 8));
  const F32 second = _mm512_sub_ps(mul(counts, lane(sub, 2 * pair + 1)), lane(sub, 2 * pair + 9));
  store_looked_up(low, first, out);
  store_looked_up(high, second, out + 64);
}
