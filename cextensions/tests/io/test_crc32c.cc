// CRC-32C: published values, every length and alignment against the tables, and sums of pieces.
#include <cstring>
#include <random>
#include <vector>

#include "check.h"
#include "moeinf/io/crc32c.h"

using moeinf::crc32c;
using moeinf::crc32c_by_tables;
using moeinf::crc32c_shift;

namespace {

std::vector<unsigned char> noise(std::size_t num_bytes) {
  std::mt19937 random(7);
  std::vector<unsigned char> bytes(num_bytes);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  return bytes;
}

}  // namespace

TEST(sums_are_those_of_the_standard) {
  const std::vector<unsigned char> zeros(32, 0), ones(32, 0xFF);  // RFC 3720, B.4
  const auto* digits = reinterpret_cast<const unsigned char*>("123456789");
  for (const auto sum : {crc32c, crc32c_by_tables}) {
    CHECK(sum(digits, 9) == 0xE3069283);
    CHECK(sum(zeros.data(), 32) == 0x8A9136AA);
    CHECK(sum(ones.data(), 32) == 0x62A8AB43);
    CHECK(sum(digits, 0) == 0);
  }
}

TEST(the_instruction_agrees_with_the_tables_at_every_length_and_alignment) {
  const std::vector<unsigned char> bytes = noise(40000);
  for (std::size_t start = 0; start < 8; ++start) {
    for (std::size_t length : {0, 1, 7, 8, 9, 63, 4096, 6143, 6144, 6145, 6167, 6168, 12300, 39990}) {
      CHECK(crc32c(bytes.data() + start, length) == crc32c_by_tables(bytes.data() + start, length));
    }
  }
}

TEST(sums_of_pieces_make_up_the_sum_of_the_whole_in_any_order) {
  const std::vector<unsigned char> bytes = noise(30000);
  const std::size_t borders[] = {0, 1, 4096, 4103, 20000, 30000};
  std::uint32_t sum = 0;
  for (int piece : {3, 0, 4, 2, 1}) {
    const std::size_t start = borders[piece], end = borders[piece + 1];
    sum ^= crc32c_shift(crc32c(bytes.data() + start, end - start), bytes.size() - end);
  }
  CHECK(sum == crc32c(bytes.data(), bytes.size()));
}

TEST(a_shift_by_many_bytes_is_the_shift_by_its_parts) {
  const std::uint64_t far = std::uint64_t{5} << 40;
  CHECK(crc32c_shift(0x12345678, far + 77) == crc32c_shift(crc32c_shift(0x12345678, far), 77));
  CHECK(crc32c_shift(0x12345678, 0) == 0x12345678);
  const std::uint64_t most = ~std::uint64_t{0};  // no file is as long, and yet a number of 64 bits
  CHECK(crc32c_shift(0x12345678, most) == crc32c_shift(crc32c_shift(0x12345678, most / 2), most / 2 + 1));
}
