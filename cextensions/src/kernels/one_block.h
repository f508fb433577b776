// Blocks as bf16, for instruction sets whose step is one block: by way of what int8 activations meet.
#pragma once

ALWAYS_INLINE F32 scale_f16(const unsigned char* p) { return scales_f16<0>(p); }

// out [32] = scale * weight, rounded to bf16.
ALWAYS_INLINE void expand_bytes(const unsigned char* q, F32 scale, unsigned char* out) {
  store_bf16(load_bytes<0>(q), scale, zero(), out);
}
ALWAYS_INLINE void expand_nibbles(const Table& table, const unsigned char* q, F32 scale, unsigned char* out) {
  store_bf16(look_up<0>(table, q), scale, zero(), out);
}
// out [64] = sub-blocks 2 * pair and 2 * pair + 1 of a Q4_K block, from the 32 bytes that they share.
ALWAYS_INLINE void expand_pair(const SubBlocks& sub, int pair, const unsigned char* q, unsigned char* out) {
  store_bf16(nibbles(q, 0), scales_of(sub, 2 * pair), minima_of(sub, 2 * pair), out);
  store_bf16(nibbles(q, 1), scales_of(sub, 2 * pair + 1), minima_of(sub, 2 * pair + 1), out + 64);
}
