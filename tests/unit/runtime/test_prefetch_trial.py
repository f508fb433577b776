"""Which tokens go with prefetch, where the clock tells that it pays and where it does not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.prefetch_trial import FIRST_PERIOD, LONGEST_PERIOD, TRIAL_TOKENS, PrefetchTrial
from tests.support.fake_reader import LAYOUT, SHAPE, Clock, make_tier, visit


def tokens(trial: PrefetchTrial, clock: Clock, count: int, seconds: Callable[[bool], float]) -> list[bool]:
    """Runs so many tokens, which take as long as `seconds` says of those with prefetch and of those without."""
    kinds = []
    for _ in range(count):
        trial.first_layer()
        kinds.append(trial.on)
        clock.now += seconds(trial.on)
        trial.last_layer()
        clock.now += 1.0  # whoever reads the answer takes his time
    return kinds


def made() -> tuple[PrefetchTrial, Clock]:
    clock = Clock()
    return PrefetchTrial(lambda: clock.now), clock


def test_every_token_goes_with_it_until_the_first_trial_which_runs_half_without() -> None:
    trial, clock = made()
    kinds = tokens(trial, clock, FIRST_PERIOD + TRIAL_TOKENS, lambda on: 0.1)
    assert all(kinds[:FIRST_PERIOD]) and sum(kinds[FIRST_PERIOD:]) == TRIAL_TOKENS // 2


def test_what_is_slower_with_it_goes_without() -> None:
    trial, clock = made()
    kinds = tokens(trial, clock, 4000, lambda on: 0.11 if on else 0.10)
    after = kinds[FIRST_PERIOD + TRIAL_TOKENS :]
    assert not any(after[:FIRST_PERIOD]) and sum(after) < 0.05 * len(after)


def test_what_is_faster_with_it_goes_with_it() -> None:
    trial, clock = made()
    kinds = tokens(trial, clock, 4000, lambda on: 0.10 if on else 0.11)
    assert sum(kinds) > 0.95 * len(kinds)


def test_times_that_are_alike_change_nothing() -> None:
    trial, clock = made()
    kinds = tokens(trial, clock, 4000, lambda on: 0.1 if on else 0.0995)
    assert sum(kinds) > 0.95 * len(kinds)


def test_a_change_of_what_pays_is_found() -> None:
    trial, clock = made()
    tokens(trial, clock, 1000, lambda on: 0.11 if on else 0.10)
    later = tokens(trial, clock, 3 * (LONGEST_PERIOD + TRIAL_TOKENS), lambda on: 0.10 if on else 0.11)
    assert (
        all(later[-FIRST_PERIOD:]) or sum(later[-(FIRST_PERIOD + TRIAL_TOKENS) :]) >= FIRST_PERIOD + TRIAL_TOKENS // 2
    )


def test_a_token_that_ends_in_the_middle_is_not_timed() -> None:
    trial, clock = made()
    tokens(trial, clock, FIRST_PERIOD, lambda on: 0.1)
    for _ in range(50):
        trial.first_layer()  # and an error ends it
        clock.now += 9.0
    kinds = tokens(trial, clock, TRIAL_TOKENS + 1, lambda on: 0.10 if on else 0.11)
    assert kinds[-1], "one trial was over, and its times were those of whole tokens"


def test_a_token_without_it_asks_for_no_guess_and_reads_nothing_ahead() -> None:
    tier, _, policy = make_tier(12)
    trial, clock = made()
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
    prefetcher = Prefetcher(tier, Certain(), Link(), SHAPE, LAYOUT.stride_bytes, trial=trial)  # type: ignore[arg-type]
    ahead = dict[bool, int]()
    for _ in range(FIRST_PERIOD + TRIAL_TOKENS):
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
