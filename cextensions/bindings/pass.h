// The pass that a workspace is to hold, as Python describes it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "moeinf/compute/kernels.h"

namespace moeinf {

inline std::int64_t number_of(nanobind::handle object, const char* attribute) {
  return nanobind::cast<std::int64_t>(object.attr(attribute));
}

// An object with the attributes of moeinf.types.PassShape.
inline PassShape pass_of(nanobind::handle pass) {
  const auto format = [&](const char* attribute) {
    return format_named(nanobind::cast<std::string>(pass.attr(attribute)));
  };
  return {format("dtype"), format("kept"), number_of(pass, "tokens"), number_of(pass, "positions"),
          static_cast<int>(number_of(pass, "num_threads"))};
}

}  // namespace moeinf
