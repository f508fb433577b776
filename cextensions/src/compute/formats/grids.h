// The grids of ggml's IQ1, IQ2 and IQ3 formats: what an index stands for.
#pragma once

#include <cstdint>

namespace moeinf {

// The points of sizeof(Word) weights each. All grids have few values: of a weight's number among them, a
// code, 2 bits suffice where points are of eight weights, and 4 where they are of four.
template <class Word, int kCount>
struct Grid {
  Word points[kCount];  // a byte for each weight, the first lowest
  // The same in codes, from the low bits up: in low bytes those of the weights 0, 2, 4, 6, in high ones those
  // of 1, 3, 5, 7.
  alignas(64) std::uint16_t codes[kCount];
  unsigned char values[16];  // of the low 4 bits from a code's first on, of which a code may be the low 2
};

// Magnitudes; signs are stored apart.
extern const Grid<std::uint64_t, 256> kGridIQ2_XXS;
extern const Grid<std::uint64_t, 512> kGridIQ2_XS;
extern const Grid<std::uint64_t, 1024> kGridIQ2_S;
extern const Grid<std::uint32_t, 256> kGridIQ3_XXS;
extern const Grid<std::uint32_t, 512> kGridIQ3_S;
extern const Grid<std::uint64_t, 2048> kGridIQ1;  // -1, 0 and 1 as 0, 8 and 16: in eighths, plus 8

// Seven stored signs, and an eighth that makes the number of negative ones even.
static inline unsigned signs_of(unsigned seven) {
  unsigned parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

}  // namespace moeinf
