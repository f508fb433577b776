// A simulated world: the cache of experts, its loader, the read queue and the learned policy as they are,
// over disks, sessions and a clock that one seed decides. Nothing waits, and no thread runs.
#pragma once

#include <cstdint>

struct WorldCounts {
  std::int64_t operations = 0;  // calls into the components, and reads that ended
  std::int64_t visits = 0, given_up = 0, failed = 0, faults = 0, interrupts = 0, resizes = 0;

  void add(const WorldCounts& other);
};

// Plays the world of a seed for about so many operations, and checks every invariant after each of them.
// Throws std::runtime_error, which says what does not hold and behind which operation.
WorldCounts play_world(std::uint64_t seed, std::int64_t num_operations);
