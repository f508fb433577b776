#!/bin/sh
# Builds the native tests for 64-bit ARM and runs them under qemu: the NEON kernels, checked on any machine.
# Needs aarch64-linux-gnu-g++ and qemu-aarch64-static, which knows nothing of resident pages: that test fails.
set -eu
cd "$(dirname "$0")/../.."
build=build/native-arm
cmake -S . -B "$build" -DMOEINF_NATIVE_TESTS=ON -DMOEINF_IO_URING=OFF -DCMAKE_BUILD_TYPE=Debug --log-level=WARNING \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static > /dev/null
cmake --build "$build" --parallel 2
(cd "$build" && qemu-aarch64-static ./native_tests)
