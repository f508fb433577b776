#!/bin/sh
# Reads each file of inner loops by itself, as an editor does: none may need that another was read before. Those of an
# instruction set are compiled for it, those of ARM where there is a compiler for it; all others are plain C++.
set -eu
cd "$(dirname "$0")/../src/compute/isa"
for file in *.inc groups/*.inc vectors/*.inc; do
  compiler="${CXX:-c++}" flags=
  case "$file" in
    vectors/avx2.inc | vectors/bits_of_words_x86.inc | vectors/products_pairs.inc) flags="-mavx2 -mfma -mf16c" ;;
    vectors/products_vnni.inc) flags="-mavx2 -mfma -mf16c -mavxvnni" ;;
    vectors/avx512.inc | vectors/lane_pairs.inc | vectors/nibbles_of_four.inc)
      flags="-mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
    vectors/*neon.inc)
      compiler="${CXX_OF_ARM:-aarch64-linux-gnu-g++}" flags="-march=armv8.2-a+dotprod -DMOEINF_VECTORS=\"vectors/neon.inc\"" ;;
  esac
  command -v "$compiler" > /dev/null || continue
  echo "#include \"$file\"" |
    "$compiler" -std=c++17 -fsyntax-only -Wall -Wextra -Wno-unused -Wno-unknown-pragmas $flags -I. -I../.. -I../../../include -x c++ -
done
