#include "moeinf/io/crc32c.h"

#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace moeinf {
namespace {

// A remainder is a polynomial over GF(2) whose highest power is in the lowest bit.
constexpr std::uint32_t kPolynomial = 0x82F63B78;
constexpr std::uint32_t kOne = 0x80000000;
constexpr std::uint32_t kX = 0x40000000;

constexpr std::uint32_t times_x(std::uint32_t value) { return (value >> 1) ^ (value & 1 ? kPolynomial : 0); }

constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if (a & kOne) product ^= b;
    b = times_x(b);
  }
  return product;
}

struct Tables {
  std::uint32_t bytes[8][256] = {};  // [n][value]: of a byte with n bytes behind it
  std::uint32_t powers[67] = {};     // x^(2^n), up to eight times 2^63

  constexpr Tables() {
    for (std::uint32_t value = 0; value < 256; ++value) {
      std::uint32_t sum = value;
      for (int bit = 0; bit < 8; ++bit) sum = times_x(sum);
      bytes[0][value] = sum;
    }
    for (int n = 1; n < 8; ++n) {
      for (int value = 0; value < 256; ++value)
        bytes[n][value] = (bytes[n - 1][value] >> 8) ^ bytes[0][bytes[n - 1][value] & 0xFF];
    }
    powers[0] = kX;
    for (int n = 1; n < 67; ++n) powers[n] = multiply(powers[n - 1], powers[n - 1]);
  }
};

constexpr Tables kTables;

// The functions below go on from a remainder, without the inversions at both ends of a sum.
std::uint32_t by_tables(std::uint32_t sum, const unsigned char* data, std::size_t num_bytes) {
  const auto& tables = kTables.bytes;
  for (; num_bytes >= 8; data += 8, num_bytes -= 8) {
    sum ^= data[0] | data[1] << 8 | data[2] << 16 | static_cast<std::uint32_t>(data[3]) << 24;
    sum = tables[7][sum & 0xFF] ^ tables[6][sum >> 8 & 0xFF] ^ tables[5][sum >> 16 & 0xFF] ^
          tables[4][sum >> 24] ^ tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^
          tables[0][data[7]];
  }
  for (; num_bytes > 0; ++data, --num_bytes) sum = (sum >> 8) ^ tables[0][(sum ^ *data) & 0xFF];
  return sum;
}

#if defined(__x86_64__) || defined(__aarch64__)
std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

#if defined(__x86_64__)
#define MOEINF_WITH_CRC __attribute__((target("sse4.2")))
bool cpu_has_crc() { return __builtin_cpu_supports("sse4.2") != 0; }

MOEINF_WITH_CRC inline std::uint32_t add_word(std::uint32_t sum, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(sum, word));
}
#else
#define MOEINF_WITH_CRC
#if defined(__linux__)
bool cpu_has_crc() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
bool cpu_has_crc() { return true; }  // every ARM Mac
#endif

inline std::uint32_t add_word(std::uint32_t sum, std::uint64_t word) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(word));
  return sum;
}
#endif

// One step waits three cycles for the step before it: three streams, each a third of the data, keep the unit
// busy. Below this many bytes, putting them together costs more than it brings.
constexpr std::size_t kStreamed = 6144;

MOEINF_WITH_CRC std::uint32_t by_instruction(std::uint32_t sum, const unsigned char* data,
                                             std::size_t num_bytes) {
  if (num_bytes >= kStreamed) {
    const std::size_t length = num_bytes / 24 * 8;
    std::uint32_t second = 0, third = 0;
    for (const unsigned char* end = data + length; data != end; data += 8) {
      sum = add_word(sum, word_at(data));
      second = add_word(second, word_at(data + length));
      third = add_word(third, word_at(data + 2 * length));
    }
    sum = crc32c_shift(crc32c_shift(sum, length) ^ second, length) ^ third;
    data += 2 * length;
    num_bytes -= 3 * length;
  }
  for (; num_bytes >= 8; data += 8, num_bytes -= 8) sum = add_word(sum, word_at(data));
  return by_tables(sum, data, num_bytes);
}
#endif

}  // namespace

std::uint32_t crc32c(const unsigned char* data, std::size_t num_bytes) {
#if defined(__x86_64__) || defined(__aarch64__)
  static const bool has_crc = cpu_has_crc();
  if (has_crc) return ~by_instruction(~std::uint32_t{0}, data, num_bytes);
#endif
  return crc32c_by_tables(data, num_bytes);
}

std::uint32_t crc32c_by_tables(const unsigned char* data, std::size_t num_bytes) {
  return ~by_tables(~std::uint32_t{0}, data, num_bytes);
}

std::uint32_t crc32c_shift(std::uint32_t sum, std::uint64_t num_bytes) {
  for (int n = 3; num_bytes != 0; ++n, num_bytes >>= 1) {  // a byte is eight powers of x
    if (num_bytes & 1) sum = multiply(sum, kTables.powers[n]);
  }
  return sum;
}

}  // namespace moeinf
