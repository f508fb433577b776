#!/bin/sh
# Reads each file of inner loops by itself, as an editor does, in plain C++: none may need that another was read before.
# Those in vectors/ that say who includes them are parts of that file.
set -eu
cd "$(dirname "$0")/../src/compute/isa"
for file in *.inc groups/*.inc; do
  echo "#include \"$file\"" |
    "${CXX:-c++}" -std=c++17 -fsyntax-only -Wall -Wextra -Wno-unused -Wno-unknown-pragmas -I. -I../.. -I../../../include -x c++ -
done
