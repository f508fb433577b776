// The tables of operations, each defined by ops.cc compiled for one instruction set.
#pragma once

#include "moeinf/compute/ops.h"

namespace moeinf {
namespace isa {

extern const Ops generic, avx2, avx512, avx512bf16, neon, neon_dotprod;

}  // namespace isa
}  // namespace moeinf
