// The packed scales and minima of a Q4_K block.
#pragma once

// From the start of a block: 8 scales, then 8 minima, of 6 bits each.
ALWAYS_INLINE void unpack_q4k(const unsigned char* block, unsigned char (&bytes)[16]) {
  std::uint32_t words[3], unpacked[4];
  std::memcpy(words, block + 4, 12);
  unpacked[0] = words[0] & 0x3f3f3f3fu;
  unpacked[1] = (words[2] & 0x0f0f0f0fu) | ((words[0] >> 2) & 0x30303030u);
  unpacked[2] = words[1] & 0x3f3f3f3fu;
  unpacked[3] = ((words[2] >> 4) & 0x0f0f0f0fu) | ((words[1] >> 2) & 0x30303030u);
  std::memcpy(bytes, unpacked, 16);
}
