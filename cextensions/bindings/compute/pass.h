// The pass that a workspace is to hold, as Python describes it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>

#include "arrays.h"
#include "moeinf/compute/kernels.h"

namespace moeinf {

// A size. ValueError for one below 0, or beyond 2^31.
inline std::int64_t number_of(nanobind::handle object, const char* attribute) {
  const auto number = nanobind::cast<std::int64_t>(object.attr(attribute));
  require(number >= 0 && number <= std::numeric_limits<std::int32_t>::max(),
          "a size is negative, or beyond what any memory holds");
  return number;
}

// An object with the attributes of moeinf.types.PassShape.
inline PassShape pass_of(nanobind::handle pass) {
  const auto format = [&](const char* attribute) {
    return format_named(nanobind::cast<std::string>(pass.attr(attribute)));
  };
  return {format("dtype"), format("kept"), number_of(pass, "tokens"), number_of(pass, "positions"),
          static_cast<int>(number_of(pass, "num_threads"))};
}

// ValueError where vectors of so many numbers, for each token of the pass, position or thread, are more than
// any memory holds.
inline void require_room(const PassShape& pass, std::initializer_list<std::int64_t> widths) {
  const std::int64_t most = std::max({pass.tokens, pass.positions, std::int64_t{pass.num_threads}});
  for (const std::int64_t width : widths) times({width, most});
}

}  // namespace moeinf
