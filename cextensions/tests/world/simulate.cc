// simulate FIRST_SEED OPERATIONS [OPERATIONS_OF_A_WORLD]: worlds of one seed after the other until so many
// operations are done. Prints what was done, or the seed that failed, which `simulate SEED 1` repeats.
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "world.h"

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: simulate FIRST_SEED OPERATIONS [OPERATIONS_OF_A_WORLD]\n");
    return 2;
  }
  const std::uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const std::int64_t wanted = std::atoll(argv[2]), of_each = argc > 3 ? std::atoll(argv[3]) : 20000;
  WorldCounts counts;
  std::uint64_t seed = first;
  for (; counts.operations < wanted; ++seed) {
    try {
      counts.add(play_world(seed, of_each));
    } catch (const std::exception& error) {
      std::printf("FAILED seed %llu: %s\n", static_cast<unsigned long long>(seed), error.what());
      return 1;
    }
  }
  std::printf(
      "%lld operations, %llu worlds, %lld visits, %lld given up, %lld failed, %lld faults, %lld interrupts, "
      "%lld "
      "resizes\n",
      static_cast<long long>(counts.operations), static_cast<unsigned long long>(seed - first),
      static_cast<long long>(counts.visits), static_cast<long long>(counts.given_up),
      static_cast<long long>(counts.failed), static_cast<long long>(counts.faults),
      static_cast<long long>(counts.interrupts), static_cast<long long>(counts.resizes));
  return 0;
}
