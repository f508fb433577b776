// Where numbers lie, and how many: what functions are given in the place of an address and a count. Views are
// passed by value, own nothing, and are valid as long as what they look at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace moeinf {

template <typename T>
class Span {
 public:
  constexpr Span() = default;
  constexpr Span(T* data, std::size_t size) : data_(data), size_(size) {}
  // Of whatever has its elements one behind the other: vectors, arrays of Python, other views.
  template <typename Numbers,
            typename = std::enable_if_t<std::is_convertible_v<decltype(std::declval<Numbers&>().data()), T*>>>
  constexpr Span(Numbers&& numbers) : data_(numbers.data()), size_(numbers.size()) {}

  constexpr T* data() const { return data_; }
  constexpr std::size_t size() const { return size_; }
  constexpr bool empty() const { return size_ == 0; }
  constexpr T* begin() const { return data_; }
  constexpr T* end() const { return data_ + size_; }
  constexpr T& operator[](std::size_t index) const { return data_[index]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// Rows of as many numbers, one behind the other.
template <typename T>
struct RowSpan {
  T* data = nullptr;
  std::int64_t rows = 0, cols = 0;

  constexpr std::size_t size() const { return static_cast<std::size_t>(rows * cols); }
  constexpr T* row(std::int64_t index) const { return data + index * cols; }
  // The rows from `first` on, `count` of them.
  constexpr RowSpan part(std::int64_t first, std::int64_t count) const { return {row(first), count, cols}; }
  constexpr operator RowSpan<const T>() const { return {data, rows, cols}; }
};

// Throws std::invalid_argument unless there is one of `others` for each key.
template <typename Keys, typename Others>
void require_as_many(const Keys& keys, const Others& others, const char* name) {
  if (keys.size() == others.size()) return;
  throw std::invalid_argument(std::to_string(keys.size()) + " keys and " + std::to_string(others.size()) +
                              " " + name);
}

}  // namespace moeinf
