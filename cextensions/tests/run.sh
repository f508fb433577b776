#!/bin/sh
# Builds and runs the native tests under ASan with UBSan, then under TSan. Arguments choose among them: address thread.
# Where there is a Python with the packages of the tests, ASan with UBSan watches a short run of hostile calls too.
set -eu
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- address thread
for sanitizer; do
  build="build/native-$sanitizer"
  cmake -S . -B "$build" -DMOEINF_NATIVE_TESTS=ON -DMOEINF_SANITIZE="$sanitizer" --log-level=WARNING > /dev/null
  cmake --build "$build" --parallel 2
  echo "native tests, $sanitizer sanitizer:"
  (cd "$build" && ./native_tests)
  if [ "$sanitizer" = address ] && python -c "import moeinf, nanobind" 2> /dev/null; then
    echo "calls of the native module, $sanitizer sanitizer:"
    cextensions/tests/python.sh address -m tests.fuzz.native_calls --cases 800
  fi
done
