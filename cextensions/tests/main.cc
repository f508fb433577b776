// Runs every native test; the exit status is the number of those that failed.
#include <cstdio>
#include <exception>

#include "check.h"

int main() {
  int num_failed = 0;
  for (const TestCase& test : test_cases()) {
    try {
      test.run();
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
      ++num_failed;
    }
  }
  std::printf("%zu native tests, %d failed\n", test_cases().size(), num_failed);
  return num_failed;
}
