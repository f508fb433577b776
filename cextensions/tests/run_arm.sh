#!/bin/sh
# Builds the native tests for 64-bit ARM and runs them under qemu: the NEON kernels, checked on any machine. Three
# processors: without dot products of bytes, with them, and with products of matrices (i8mm) and bf16 as well.
# Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user).
set -eu
cd "$(dirname "$0")/../.."
build=build/native-arm
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static)
ignored=populated_memory_is_there # qemu 7 takes the advice to make pages resident, and does not follow it
cmake -S . -B "$build" -DMOEINF_NATIVE_TESTS=ON -DMOEINF_IO_URING=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS=-O1 \
  --log-level=WARNING -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DCMAKE_EXE_LINKER_FLAGS=-static > /dev/null
cmake --build "$build" --parallel 2 --target native_tests
for cpu in cortex-a53 cortex-a76 max; do
  (cd "$build" && "$emulator" -cpu "$cpu" ./native_tests > "$cpu.txt" || true)
  echo "$cpu: $(tail -1 "$build/$cpu.txt")"
  grep -q 'native tests, [01] failed$' "$build/$cpu.txt"
  if grep -A1 '^FAILED' "$build/$cpu.txt" | grep -v "$ignored" | grep -A1 '^FAILED'; then exit 1; fi
done
