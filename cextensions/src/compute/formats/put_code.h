// Where each format that is written has the bits of a weight's code: the counterpart of expand_linear.cc.
#pragma once

#include <cstdint>

namespace moeinf {

// `bits` of a byte from `shift` on become those of value.
inline void put(unsigned char* byte, int shift, int bits, int value) {
  const int mask = ((1 << bits) - 1) << shift;
  *byte = static_cast<unsigned char>((*byte & ~mask) | (value << shift & mask));
}

// Of a block of 32: nibble of weight i in the low half of byte i, of weight i + 16 in the high one.
inline void put_nibble(unsigned char* nibbles, int i, int code) {
  put(nibbles + i % 16, i / 16 * 4, 4, code);
}

// Bit i is the fifth of weight i.
inline void put_five_bits(unsigned char* high, unsigned char* nibbles, int i, int code) {
  put(high + i / 8, i % 8, 1, code >> 4);
  put_nibble(nibbles, i, code);
}

// Bits of number i, one of kPerByte in a byte of lines of 32 bytes, as bits_of in expand_linear.cc reads
// them.
template <int kPerByte>
void put_bits(unsigned char* lines, int i, int code) {
  constexpr int kBits = 8 / kPerByte;
  put(lines + i / (32 * kPerByte) * 32 + i % 32, i / 32 % kPerByte * kBits, kBits, code);
}

inline void put_q8_0(unsigned char* block, int i, int code) {
  block[2 + i] = static_cast<unsigned char>(code);
}
inline void put_q4_0(unsigned char* block, int i, int code) { put_nibble(block + 2, i, code); }
inline void put_q4_1(unsigned char* block, int i, int code) { put_nibble(block + 4, i, code); }
inline void put_q5_0(unsigned char* block, int i, int code) { put_five_bits(block + 2, block + 6, i, code); }
inline void put_q5_1(unsigned char* block, int i, int code) { put_five_bits(block + 4, block + 8, i, code); }
inline void put_q2_k(unsigned char* block, int i, int code) { put_bits<4>(block + 16, i, code); }
inline void put_q3_k(unsigned char* block, int i, int code) {
  put_bits<8>(block, i, code >> 2);
  put_bits<4>(block + 32, i, code);
}
inline void put_q4_k(unsigned char* block, int i, int code) { put_bits<2>(block + 16, i, code); }
inline void put_q5_k(unsigned char* block, int i, int code) {
  put_bits<8>(block + 16, i, code >> 4);
  put_bits<2>(block + 48, i, code);
}
inline void put_q6_k(unsigned char* block, int i, int code) {
  put(block + i / 128 * 64 + i % 64, i % 128 < 64 ? 0 : 4, 4, code);
  put_bits<4>(block + 128, i, code >> 4);
}
inline void put_iq4_xs(unsigned char* block, int i, int code) {
  put_nibble(block + 8 + i / 32 * 16, i % 32, code);
}

}  // namespace moeinf
