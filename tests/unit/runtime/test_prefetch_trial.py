"""Which tokens go with prefetch, where the clock tells that it pays and where it does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.prefetch_opening import TOKENS, TURNS
from moeinf.runtime.prefetch_trial import (
    FIRST_PERIOD,
    LONGEST_HALF,
    LONGEST_PERIOD,
    PATTERN,
    SHORTEST_HALF,
    PrefetchTrial,
)
from tests.support.fake_reader import SHAPE, Clock, make_tier, visit

SLOTS = 100
READ = 10  # experts a token: half of the slots change in 5 tokens
BLOCK = 10
TRIAL = BLOCK * len(PATTERN)
REGRET = 0.2


class Machine:
    """Runs tokens, which take as long as `seconds` says of whether they go with prefetch and for how long they did.

    In the opening the same seconds are what they wait, so that its verdict agrees; prefetch takes no time of the host.
    """

    def __init__(self, num_slots: int = SLOTS) -> None:
        self.clock = Clock()
        self.trial = PrefetchTrial(num_slots, lambda: self.clock.now)
        self.kinds: list[bool] = []
        self.stats = CacheStats()
        self.of_kind = 0  # tokens of the same kind, up to now

    def run(
        self, count: int, seconds: Callable[[bool, int], float], read: int = READ, *, full: bool = True
    ) -> list[bool]:
        """Returns of each token whether it went with prefetch."""
        for _ in range(count):
            self.trial.first_layer(self.stats, 0.0)
            self.kinds.append(on := self.trial.on)
            self.of_kind = self.of_kind + 1 if self.kinds[-2:] == [on, on] else 1
            taken = seconds(on, self.of_kind)
            self.clock.now += taken
            self.stats.stall_s += taken
            self.stats.demand_reads += read
            self.trial.last_layer(self.stats, 0.0, REGRET, full=full)
            self.clock.now += 1.0  # whoever reads the answer takes his time
        return self.kinds[-count:]

    def open(self, seconds: Callable[[bool, int], float]) -> None:
        """Runs the tokens until the first verdict, and one before."""
        self.run(1 + TOKENS, seconds)


def faster_with(on: bool, run: int) -> float:
    return 0.10 if on else 0.11


def faster_without(on: bool, run: int) -> float:
    return 0.11 if on else 0.10


def test_while_slots_are_empty_tokens_go_without_and_say_nothing() -> None:
    machine = Machine()
    assert not any(machine.run(100, faster_without, full=False))
    machine.open(faster_with)
    assert machine.trial.on


@pytest.mark.parametrize("seconds", [faster_with, faster_without])
def test_the_opening_goes_by_turns_and_its_verdict_serves_until_the_first_trial(
    seconds: Callable[[bool, int], float],
) -> None:
    machine = Machine()
    assert machine.run(1, seconds) == [False], "what goes before was decided before the slots were full"
    assert machine.run(TOKENS, seconds) == [TURNS[at % len(TURNS)] for at in range(TOKENS)]
    assert machine.run(FIRST_PERIOD, seconds) == [seconds is faster_with] * FIRST_PERIOD
    assert machine.run(TRIAL, seconds) == [on for on in PATTERN for _ in range(BLOCK)]


@pytest.mark.parametrize(("slots", "half"), [(10, SHORTEST_HALF), (150, 8), (10_000, LONGEST_HALF)])
def test_a_block_is_twice_as_long_as_half_of_the_slots_take_to_change(slots: int, half: int) -> None:
    machine = Machine(slots)
    machine.open(faster_with)
    machine.run(FIRST_PERIOD, faster_with)
    assert machine.run(2 * half * len(PATTERN), faster_with) == [on for on in PATTERN for _ in range(2 * half)]


def test_what_is_slower_with_it_goes_without() -> None:
    machine = Machine()
    machine.open(faster_with)
    machine.run(FIRST_PERIOD + TRIAL, faster_without)
    after = machine.run(4000, faster_without)
    assert not any(after[:FIRST_PERIOD]) and sum(after) < 0.05 * len(after)


def test_what_is_faster_with_it_goes_with_it() -> None:
    kinds = Machine().run(4000, faster_with)
    assert sum(kinds) > 0.95 * len(kinds)


def test_what_the_wasted_reads_of_a_block_evict_counts_against_prefetch() -> None:
    """A token with prefetch is faster by itself, and slower where those before it went with prefetch, too."""
    machine = Machine()
    machine.open(faster_with)
    machine.run(FIRST_PERIOD + TRIAL, lambda on, run: (0.12 if run > 3 else 0.08) if on else 0.10)
    assert not machine.trial.on


def test_times_that_are_alike_change_nothing() -> None:
    machine = Machine()
    machine.open(faster_with)
    kinds = machine.run(4000, lambda on, run: 0.1 if on else 0.0995)
    assert sum(kinds) > 0.95 * len(kinds)


def test_a_token_that_had_to_wait_for_another_program_decides_nothing() -> None:
    machine = Machine()
    machine.open(faster_with)
    machine.run(FIRST_PERIOD, faster_with)
    machine.run(BLOCK - 1, faster_with)
    machine.run(1, lambda on, run: 5.0)
    machine.run(TRIAL - BLOCK, faster_with)
    assert machine.trial.on


def test_a_change_of_what_pays_is_found() -> None:
    machine = Machine()
    machine.open(faster_without)
    machine.run(1000, faster_without)
    later = machine.run(2 * LONGEST_PERIOD, faster_with)
    assert sum(later[-LONGEST_PERIOD // 4 :]) > 0.9 * LONGEST_PERIOD // 4


def test_a_token_that_ends_in_the_middle_is_not_timed() -> None:
    machine = Machine()
    machine.open(faster_with)
    machine.run(FIRST_PERIOD, faster_without)
    for _ in range(50):
        machine.trial.first_layer(machine.stats, 0.0)  # and an error ends it
        machine.clock.now += 9.0
    machine.run(TRIAL, faster_with)
    assert machine.trial.on, "one trial was over, and its times were those of whole tokens"


def test_a_token_without_it_asks_for_no_guess_and_reads_nothing_ahead() -> None:
    tier, _, policy = make_tier(6)
    clock = Clock()
    trial = PrefetchTrial(6, lambda: clock.now)
    certain = np.full((SHAPE.num_layers, SHAPE.num_experts), 0.9)

    class Certain:
        name = "certain"

        def predict(self, layer: int) -> np.ndarray:
            return certain[layer + 1 :]

    class Link:
        def bytes_read(self) -> int:
            return 1_000_000

        def busy_seconds(self) -> float:
            return 1.0

    tier.idle.seconds = 10.0
    prefetcher = Prefetcher(tier, Certain(), Link(), SHAPE, trial=trial)  # type: ignore[arg-type]
    ahead = dict[bool, int]()
    for _ in range(2 + TOKENS):
        kind, before = trial.on, tier.stats.prefetches
        for layer in range(SHAPE.num_layers):
            policy.observe(layer, np.array([[0, 1]]))
            with tier.visit(layer, np.array([0, 1]), np.array([1, 1]), 1) as opened:
                prefetcher.after_routing(opened)
                for _ in opened.arrivals():
                    clock.now += 0.01
        ahead[kind] = ahead.get(kind, 0) + tier.stats.prefetches - before
    assert ahead[True] > 0 and ahead[False] == 0
    assert sorted(visit(tier, policy, 0, np.array([[2, 3]]))) == [2, 3]
