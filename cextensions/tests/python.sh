#!/bin/sh
# Runs Python, and what it starts, with a native module that has a sanitizer: python.sh address|thread ARGUMENT...
# The arguments are those of `python`, which is that of the PATH: python.sh address -m pytest tests/contract
set -eu
root="$(cd "$(dirname "$0")/../.." && pwd)"
sanitizer="$1" build="$root/build/native-$1"
shift
{
  cmake -S "$root" -B "$build" -DMOEINF_NATIVE_TESTS=ON -DMOEINF_SANITIZE="$sanitizer" --log-level=WARNING \
    -DMOEINF_SANITIZED_MODULE=ON -DPython_EXECUTABLE="$(command -v python)"
  cmake --build "$build" --parallel 2 --target _native fake_cuda
} > /dev/null
found() { "${CXX:-c++}" -print-file-name="$1"; }
case "$sanitizer" in
  address) runtime=libasan.so ;;
  thread) runtime=libtsan.so ;;
esac
# An exception is thrown by the library that the sanitizer finds at its start: Python itself has none of C++.
export LD_PRELOAD="$(found $runtime) $(found libstdc++.so)"
export PYTHONMALLOC=malloc PYTHONPATH="$root/tests/support/sanitized${PYTHONPATH:+:$PYTHONPATH}"
export SANITIZED_NATIVE_MODULE="$(ls "$build"/_native*.so)"
export ASAN_OPTIONS="detect_leaks=0:alloc_dealloc_mismatch=0:allocator_may_return_null=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export TSAN_OPTIONS="allocator_may_return_null=1${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
export UBSAN_OPTIONS="print_stacktrace=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}"
exec python "$@"
