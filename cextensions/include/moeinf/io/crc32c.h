// CRC-32C (Castagnoli): what tells damaged weights from sound ones while they are read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeinf {

// Of data, by the instruction that x86-64 (SSE 4.2) and ARM have for it, else by tables.
std::uint32_t crc32c(const unsigned char* data, std::size_t num_bytes);

// The same by tables alone.
std::uint32_t crc32c_by_tables(const unsigned char* data, std::size_t num_bytes);

// What a sum contributes to that of its bytes and num_bytes behind them: for bytes A and B,
// crc32c(A B) == crc32c_shift(crc32c(A), |B|) ^ crc32c(B). So pieces can be summed in any order.
std::uint32_t crc32c_shift(std::uint32_t sum, std::uint64_t num_bytes);

}  // namespace moeinf
