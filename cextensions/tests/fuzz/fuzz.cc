// The program of libFuzzer: MOEINF_FUZZ names the target, and the arguments are libFuzzer's own.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "fuzz/targets.h"

namespace {

using namespace moeinf::fuzz;

const Target& chosen() {
  const char* const name = std::getenv("MOEINF_FUZZ");
  std::string known;
  for (const Target& target : kTargets) {
    if (name != nullptr && std::string(name) == target.name) return target;
    known += std::string(known.empty() ? "" : ", ") + target.name;
  }
  std::fprintf(stderr, "ERROR: MOEINF_FUZZ is to be one of %s\n", known.c_str());
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t num_bytes) {
  static const Target& target = chosen();
  try {
    target.run(Input(data, num_bytes));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ERROR: %s\n", error.what());
    std::abort();
  }
  return 0;
}
