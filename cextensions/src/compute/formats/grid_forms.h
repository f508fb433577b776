// The formats of grids that are written: where their blocks have points, signs and scales, and the trees of
// their points. The counterpart of expand_grid.cc.
#pragma once

#include "grid_tree.h"
#include "half.h"
#include "put_code.h"

namespace moeinf {

// Of all of them: d lies at the start of a block, and group g has the scale d * (2 * code + 1), of four bits.
constexpr int kMostScale = 15;

inline float scale_of(const unsigned char* block, int code) {
  return float_of_half(load_u16(block)) * static_cast<float>(2 * code + 1);
}

// The tree of a grid, made when it is first needed.
template <class Form>
const typename Form::Tree& tree_of() {
  static const typename Form::Tree tree(Form::kGrid, Form::kUnit);
  return tree;
}

// Codes of scales in nibbles, one after the other.
inline void put_scale_nibble(unsigned char* scales, int g, int code) {
  put(scales + g / 2, g % 2 * 4, 4, code);
}
inline int scale_nibble(const unsigned char* scales, int g) { return scales[g / 2] >> (g % 2 * 4) & 15; }

// Of 32 weights a word: seven signs of each eight, of which an even number are negative, and a scale above.
struct SignWord {
  static void put_signs(unsigned char* word, int first, int count, unsigned signs) {
    for (int k = 0; k < count; ++k) {
      const int bit = first / 8 * 7 + first % 8 + k;
      if (first % 8 + k < 7) put(word + bit / 8, bit % 8, 1, static_cast<int>(signs >> k & 1));
    }
  }
  static void put_scale(unsigned char* word, int code) { put(word + 3, 4, 4, code); }
  static int scale(const unsigned char* word) { return word[3] >> 4; }
};

// kGroup: weights of a scale. kSigned: of how many the signs are chosen at once: where they are of an even
// number of negative ones, which kEven says, of eight. kAims: what the search tries to make of the largest
// weight of a group, in units of its scale.
struct FormIQ3_S {
  using Tree = GridTree<std::uint32_t, 512, 8>;
  static constexpr auto& kGrid = kGridIQ3_S;
  static constexpr float kUnit = 1, kAims[] = {11, 12.5f, 14, 15.5f, 17};
  static constexpr int kGroup = 32, kSigned = 4;
  static constexpr bool kEven = false;

  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p] = static_cast<unsigned char>(index);
    put(block + 66 + p / 8, p % 8, 1, index >> 8);
    put(block + 74 + p / 2, p % 2 * 4, 4, static_cast<int>(signs));
  }
  static void put_scale(unsigned char* block, int g, int code) { put_scale_nibble(block + 106, g, code); }
  static int scale(const unsigned char* block, int g) { return scale_nibble(block + 106, g); }
};

struct FormIQ3_XXS {
  using Tree = GridTree<std::uint32_t, 256, 8>;
  static constexpr auto& kGrid = kGridIQ3_XXS;
  static constexpr float kUnit = 0.25f, kAims[] = {10, 11.7f, 13.4f, 15.1f, 17};
  static constexpr int kGroup = 32, kSigned = 8;
  static constexpr bool kEven = true;

  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p] = static_cast<unsigned char>(index);
    SignWord::put_signs(block + 66 + p / 8 * 4, p % 8 * 4, 4, signs);
  }
  static void put_scale(unsigned char* block, int g, int code) {
    SignWord::put_scale(block + 66 + g * 4, code);
  }
  static int scale(const unsigned char* block, int g) { return SignWord::scale(block + 66 + g * 4); }
};

struct FormIQ2_S {
  using Tree = GridTree<std::uint64_t, 1024, 3>;
  static constexpr auto& kGrid = kGridIQ2_S;
  static constexpr float kUnit = 0.125f, kAims[] = {3.4f, 4, 4.6f, 5.2f, 5.9f, 6.7f};
  static constexpr int kGroup = 16, kSigned = 8;
  static constexpr bool kEven = false;

  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p] = static_cast<unsigned char>(index);
    block[34 + p] = static_cast<unsigned char>(signs);
    put(block + 66 + p / 4, p % 4 * 2, 2, index >> 8);
  }
  static void put_scale(unsigned char* block, int g, int code) { put_scale_nibble(block + 74, g, code); }
  static int scale(const unsigned char* block, int g) { return scale_nibble(block + 74, g); }
};

struct FormIQ2_XS {
  using Tree = GridTree<std::uint64_t, 512, 3>;
  static constexpr auto& kGrid = kGridIQ2_XS;
  static constexpr float kUnit = 0.125f, kAims[] = {3.4f, 4, 4.6f, 5.2f, 5.9f, 6.7f};
  static constexpr int kGroup = 16, kSigned = 8;
  static constexpr bool kEven = true;

  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + 2 * p] = static_cast<unsigned char>(index);
    block[3 + 2 * p] = static_cast<unsigned char>(index >> 8 | static_cast<int>(signs & 127) << 1);
  }
  static void put_scale(unsigned char* block, int g, int code) { put_scale_nibble(block + 66, g, code); }
  static int scale(const unsigned char* block, int g) { return scale_nibble(block + 66, g); }
};

struct FormIQ2_XXS {
  using Tree = GridTree<std::uint64_t, 256, 3>;
  static constexpr auto& kGrid = kGridIQ2_XXS;
  static constexpr float kUnit = 0.125f, kAims[] = {3.4f, 4, 4.6f, 5.2f, 5.9f, 6.7f};
  static constexpr int kGroup = 32, kSigned = 8;
  static constexpr bool kEven = true;

  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p / 4 * 8 + p % 4] = static_cast<unsigned char>(index);
    SignWord::put_signs(block + 6 + p / 4 * 8, p % 4 * 8, 8, signs);
  }
  static void put_scale(unsigned char* block, int g, int code) {
    SignWord::put_scale(block + 6 + g * 8, code);
  }
  static int scale(const unsigned char* block, int g) { return SignWord::scale(block + 6 + g * 8); }
};

}  // namespace moeinf
