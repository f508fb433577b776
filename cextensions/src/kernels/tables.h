// Constants of the block formats that only the kernels need.
#pragma once

constexpr std::int8_t kQ4_0Values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

// Half of 2^(e - 127) for each e of an MXFP4 block, as its values are kept doubled; the first two are
// subnormal.
struct HalfOfE8M0 {
  float values[256];
  constexpr HalfOfE8M0() : values() {
    float value = 0x1p-128f;
    for (float& entry : values) {
      entry = value;
      value *= value < 0x1p127f ? 2.0f : 1.0f;
    }
  }
};
constexpr HalfOfE8M0 kHalfOfE8M0;
