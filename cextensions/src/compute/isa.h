// The tables of operations, each defined by ops.cc or groups.cc compiled for one instruction set.
#pragma once

#include "moeinf/compute/ops.h"

namespace moeinf {
namespace isa {

extern const Ops generic, avx2, avxvnni, avx512, avx512bf16, amx, neon, neon_dotprod, neon_i8mm;

// What the operations do with quantised weights.
struct GroupOps {
  decltype(Ops::dot_rows) dot_rows;
  decltype(Ops::matmul_rows) matmul_rows;
};
extern const GroupOps groups_generic, groups_avx2, groups_avxvnni, groups_avx512, groups_neon,
    groups_neon_dotprod, groups_neon_i8mm;

// What AMX does with weights of bf16 and quantised ones.
struct AmxOps {
  decltype(Ops::prepare_tile) prepare_tile;
  decltype(Ops::multiply_tiles) multiply_tiles;
};
extern const AmxOps amx_tiles;

}  // namespace isa
}  // namespace moeinf
