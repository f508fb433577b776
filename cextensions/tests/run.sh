#!/bin/sh
# Builds and runs the native tests under ASan with UBSan, then under TSan. Arguments choose among them: address thread.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- address thread
for sanitizer; do
  build="build/native-$sanitizer"
  cmake -S . -B "$build" -DMOEINF_NATIVE_TESTS=ON -DMOEINF_SANITIZE="$sanitizer" --log-level=WARNING > /dev/null
  cmake --build "$build" --parallel 2
  echo "native tests, $sanitizer sanitizer:"
  (cd "$build" && ./native_tests)
done
