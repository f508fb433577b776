// Runs every native test, or those whose names contain one of the arguments; the exit status is the number of
// those that failed.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "check.h"

int main(int argc, char** argv) {
  int num_run = 0, num_failed = 0;
  for (const TestCase& test : test_cases()) {
    const std::string name = test.name;
    const auto is_named = [&name](const char* part) { return name.find(part) != std::string::npos; };
    if (argc > 1 && std::none_of(argv + 1, argv + argc, is_named)) continue;
    ++num_run;
    try {
      test.run();
    } catch (const std::exception& error) {
      std::printf("FAILED %s\n  %s\n", test.name, error.what());
      ++num_failed;
    }
  }
  std::printf("%d native tests, %d failed\n", num_run, num_failed);
  return num_failed;
}
