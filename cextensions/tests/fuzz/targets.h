// What coverage-guided fuzzing calls with bytes: native functions that take what strangers have written, a
// kernel answers, or a model computes. Each returns where all is as it should be, and throws what is wrong.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace moeinf::fuzz {

// Takes an input apart, from its beginning; behind its end there are zeros.
class Input {
 public:
  Input(const unsigned char* data, std::size_t num_bytes) : data_(data), left_(num_bytes) {}

  std::size_t left() const { return left_; }
  template <typename Number>
  Number number() {
    Number value{};
    const std::size_t count = std::min(left_, sizeof value);
    std::memcpy(&value, data_, count);
    data_ += count;
    left_ -= count;
    return value;
  }
  std::size_t below(std::size_t end) { return number<std::uint8_t>() % end; }
  // At most so many whole elements of what is left, in memory of their own size.
  template <typename Number>
  std::vector<Number> numbers(std::size_t most) {
    std::vector<Number> values(std::min(most, left_ / sizeof(Number)));
    for (Number& value : values) value = number<Number>();
    return values;
  }

 private:
  const unsigned char* data_;
  std::size_t left_;
};

struct Target {
  const char* name;
  void (*run)(Input input);
};

void blocks(Input input);     // weights of every format, read and multiplied
void weights(Input input);    // numbers rounded into blocks
void kept(Input input);       // numbers of a cache, stored and read
void sums(Input input);       // checksums of pieces
void segments(Input input);   // what the kernel answers to the read of a segment
void draws(Input input);      // the choice of a token
void stand_ins(Input input);  // experts instead of others
void networks(Input input);   // what has been trained says of routing

constexpr Target kTargets[] = {{"blocks", blocks},       {"weights", weights},   {"kept", kept},
                               {"sums", sums},           {"segments", segments}, {"draws", draws},
                               {"stand_ins", stand_ins}, {"networks", networks}};

}  // namespace moeinf::fuzz
