// Loads of the end of a row, for instruction sets that cannot mask a load.
#pragma once

// The first `count` of a vector, then zeros.
template <int kBytes>
struct Padded {
  unsigned char bytes[kBytes] = {};
  Padded(const unsigned char* p, std::int64_t num_bytes) {
    for (std::int64_t i = 0; i < num_bytes; ++i) bytes[i] = p[i];
  }
};
inline F32 load_f32_part(const unsigned char* p, std::int64_t count) {
  return load_f32(Padded<4 * kLanes>(p, 4 * count).bytes);
}
inline F32 load_f16_part(const unsigned char* p, std::int64_t count) {
  return load_f16(Padded<2 * kLanes>(p, 2 * count).bytes);
}
inline F32 widen_bf16_part(const unsigned char* p, std::int64_t count) {
  return widen_bf16(Padded<2 * kLanes>(p, 2 * count).bytes);
}
inline Bf16 load_bf16_part(const unsigned char* p, std::int64_t count) {
  return load_bf16(Padded<4 * kLanes>(p, 2 * count).bytes);
}
