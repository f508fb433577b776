// The formats of grids that are written: where their blocks have points, signs and scales, and the trees of
// their points. The counterpart of expand_grid.cc.
#pragma once

#include "grid_tree.h"
#include "put_code.h"

namespace moeinf {

struct FormIQ3_S {
  using Tree = GridTree<std::uint32_t, 512, 8>;
  static constexpr int kGroup = 32;  // weights of a scale
  // What the search tries to make of the largest weight of a group, in units of its scale.
  static constexpr float kAims[] = {11, 12.5f, 14, 15.5f, 17};

  static const Tree& tree() {
    static const Tree tree(kGridIQ3_S, 1);
    return tree;
  }
  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p] = static_cast<unsigned char>(index);
    put(block + 66 + p / 8, p % 8, 1, index >> 8);
    put(block + 74 + p / 2, p % 2 * 4, 4, static_cast<int>(signs));
  }
  static unsigned char* scales(unsigned char* block) { return block + 106; }
};

struct FormIQ2_S {
  using Tree = GridTree<std::uint64_t, 1024, 3>;
  static constexpr int kGroup = 16;
  static constexpr float kAims[] = {3.4f, 4, 4.6f, 5.2f, 5.9f, 6.7f};

  static const Tree& tree() {
    static const Tree tree(kGridIQ2_S, 0.125f);
    return tree;
  }
  static void put_point(unsigned char* block, int p, int index, unsigned signs) {
    block[2 + p] = static_cast<unsigned char>(index);
    block[34 + p] = static_cast<unsigned char>(signs);
    put(block + 66 + p / 4, p % 4 * 2, 2, index >> 8);
  }
  static unsigned char* scales(unsigned char* block) { return block + 74; }
};

// Group g has the scale d * (2 * code + 1), of four bits.
constexpr int kMostScale = 15;

template <class Form>
void put_scale(unsigned char* block, int g, int code) {
  put(Form::scales(block) + g / 2, g % 2 * 4, 4, code);
}

template <class Form>
float scale_of(unsigned char* block, int g) {
  const int code = Form::scales(block)[g / 2] >> (g % 2 * 4) & 15;
  return float_of_half(load_u16(block)) * static_cast<float>(2 * code + 1);
}

}  // namespace moeinf
