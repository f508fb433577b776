// A few simulated worlds; `make campaign` plays others for hours.
#include "check.h"
#include "world.h"

TEST(every_invariant_of_a_simulated_world_holds_after_every_operation) {
  WorldCounts counts;
  for (std::uint64_t seed = 0; seed < 60; ++seed) counts.add(play_world(seed, 2000));
  CHECK(counts.failed > 10 && counts.interrupts > 10 && counts.resizes > 50 && counts.given_up > 50);
}

// Slices of a damaged block landed while the failure of another one was told: they were taken for sound.
TEST(worlds_in_which_damage_was_once_overlooked_hold) {
  for (const std::uint64_t seed : {143, 762, 815}) play_world(seed, 6000);
}

TEST(a_world_is_the_same_each_time) {
  const WorldCounts once = play_world(7, 3000), again = play_world(7, 3000);
  CHECK(once.visits == again.visits && once.operations == again.operations && once.faults == again.faults);
}
