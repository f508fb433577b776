"""Which prefetches pay, by what each outcome costs; and which tokens go with prefetch, where a clock tells."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.prefetch_gate import (
    FIRST_PAIRS,
    FIRST_PERIOD,
    LEAST_PAIRS,
    MEMORY,
    MOST_PAIRS,
    PRIOR,
    REST,
    PairedTokens,
    PrefetchGate,
    bucket_of,
    delay_of,
    floor,
)
from moeinf.types import FloatArray
from tests.support.fake_reader import SHAPE, Clock, make_tier, visit

NUM_EXPERTS = 10


def share(gate: PrefetchGate, priority: float) -> float:
    """How likely it takes an expert of this priority to be."""
    bucket = bucket_of(priority)
    return gate._used[bucket] / gate._seen[bucket]


def waited(over: float, window: float, demand: float) -> float:
    """Visit after visit: each that reads something waits for what is left; behind the others the read goes on."""
    mean, chance = 0.0, 1.0  # chance: that no visit has waited so far
    while over > 0 and chance > 1e-12:
        mean += chance * demand * over
        chance *= 1 - demand
        over -= window
    return mean


@pytest.mark.parametrize("over", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("demand", [0.0, 0.05, 0.4, 1.0])
@pytest.mark.parametrize("window", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("probability", [0.05, 0.35, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("host", [0.0, 0.25])
def test_the_floor_is_where_a_prefetch_begins_to_save_time(
    over: float, demand: float, window: float, probability: float, host: float
) -> None:
    """Mean time over what may come, of a read that takes 1 and host, and of what it evicts, with prefetch and without.

    The host asks for a read when it is prefetched, or when it is demand; and again for what the read has evicted.
    """
    regret = 0.2
    used = probability * (host + over)
    wasted = (1 - probability) * (host + waited(over, window, demand) + regret * (1 + host))
    without = probability * (1 + host)
    assert (probability > floor(over, window, demand, regret, host)) == (used + wasted < without - 1e-9)


def test_an_unneeded_read_on_a_link_without_idle_time_delays_demand_by_all_of_it() -> None:
    assert delay_of(0.7, 0.0, 0.1) == 0.7 and delay_of(0.7, 0.0, 0.0) == 0.0
    assert delay_of(0.7, 1e-4, 0.1) == pytest.approx(0.7, abs=1e-3)
    assert delay_of(0.7, 0.8, 0.1) == pytest.approx(0.07), "it ends behind the next visit"


def test_more_than_a_read_left_counts_as_one_and_less_than_none_as_none() -> None:
    assert floor(1.0, 1.0, 0.5, 0.1, 0.0) == floor(7.0, 1.0, 0.5, 0.1, 0.0) == 1.0
    assert floor(-3.0, 1.0, 0.5, 0.1, 0.0) == floor(0.0, 1.0, 0.5, 0.1, 0.0) == pytest.approx(0.1 / 1.1)
    assert floor(0.0, 1.0, 1.0, 0.0, 0.0) == 0.0


def test_each_takes_its_place_in_the_window() -> None:
    gate = PrefetchGate(NUM_EXPERTS)
    assert gate.choose([11, 12, 13], [0.95, 0.95, 0.95], 0, window=2.0) == [0, 1]
    assert gate.choose([11, 12, 13], [0.95, 0.95, 0.95], 1, window=2.0) == [0]
    assert gate.choose([11, 12, 13], [0.95, 0.15, 0.65], 0, window=9.0) == [0, 2], "what is unlikely takes none"
    assert gate.choose([11], [0.95], 0, window=0.0) == []


def test_where_visits_read_nothing_a_prefetch_that_outlasts_the_window_delays_nothing() -> None:
    busy, calm = PrefetchGate(NUM_EXPERTS), PrefetchGate(NUM_EXPERTS)
    for _ in range(300):
        busy.learn(0, [1, 2], 2)
        calm.learn(0, [1, 2], 0)
    assert busy.choose([11], [0.45], 0, window=0.5) == [] and calm.choose([11], [0.45], 0, window=0.5) == [0]


def test_where_asking_takes_as_long_as_a_read_only_what_is_likely_is_read() -> None:
    gate = PrefetchGate(NUM_EXPERTS)
    for _ in range(400):
        gate.learn(0, [1, 2], 0)  # nothing is missed: victims are worth nothing
    assert gate.choose([11], [0.25], 0, window=2.0) == [0]
    for _ in range(20):
        gate.submitted(reads=2.0, count=2)
    assert gate.choose([11], [0.15], 0, window=2.0) == [] and gate.choose([11], [0.65], 0, window=2.0) == [0]
    for _ in range(1000):
        gate.submitted(reads=50.0, count=1)
    assert gate.choose([11], [0.65], 0, window=2.0) == [0], "that the host was busy does not end it for good"


def test_a_share_begins_at_its_priority_and_follows_what_is_used() -> None:
    gate = PrefetchGate(NUM_EXPERTS)
    assert share(gate, 0.65) == pytest.approx(0.65)
    used = np.random.default_rng(0).random(1000) < 0.2
    for hit in used.tolist():
        gate.choose([27, 28], [0.65, 0.05], 0, 1.0)
        gate.learn(2, [27, 21] if hit else [21], 1)
    assert share(gate, 0.65) == pytest.approx(used[-400:].mean(), abs=0.05)
    assert share(gate, 0.05) == pytest.approx(0.0, abs=0.01)
    assert share(gate, 0.35) == pytest.approx(0.35), "other priorities are as before"
    assert gate._seen[bucket_of(0.65)] <= MEMORY and gate._seen[bucket_of(0.35)] == PRIOR
    assert gate.choose([27], [0.65], 0, 1.0) == [], "it is read no more: half of all is missed, its victim too"


def test_priorities_above_one_count_as_the_highest() -> None:
    assert bucket_of(3.0) == bucket_of(0.99)


def test_an_expert_looked_at_again_before_its_layer_counts_once_as_first_seen() -> None:
    gate = PrefetchGate(NUM_EXPERTS)
    gate.choose([49], [0.35], 0, 1.0)
    gate.choose([49], [0.95], 0, 1.0)
    gate.learn(3, [49], 0)
    gate.learn(4, [49], 0)
    gate.learn(4, [49], 0)
    assert gate._seen[bucket_of(0.35)] == PRIOR + 1 and gate._seen[bucket_of(0.95)] == PRIOR


def test_of_a_layer_that_did_not_run_nothing_is_learned() -> None:
    gate = PrefetchGate(NUM_EXPERTS)
    gate.choose([19], [0.35], 0, 1.0)
    gate.learn(2, [20], 0)
    gate.learn(1, [19], 0)
    assert gate._seen[bucket_of(0.35)] == PRIOR


class Machine:
    """Runs tokens, which take as long as `seconds` says of whether they go with prefetch, for 10 needed reads each."""

    def __init__(self, *, tries: bool = True) -> None:
        self.clock, self.stats = Clock(), CacheStats()
        self.gate = PrefetchGate(NUM_EXPERTS, tries=tries, clock=lambda: self.clock.now)

    def run(
        self, count: int, seconds: Callable[[bool], float], *, reads: int = 10, ahead: int = 0, full: bool = True
    ) -> list[bool]:
        """Returns of each token whether it went with prefetch. ahead: so many of its reads."""
        kinds = []
        for _ in range(count):
            self.gate.first_layer(self.stats)
            kinds.append(on := self.gate.open)
            self.clock.now += seconds(on)
            self.stats.demand_reads += reads - on * ahead
            self.stats.prefetches += on * ahead
            self.stats.prefetches_used += on * ahead
            self.gate.last_layer(self.stats, full=full)
            self.clock.now += 1.0  # whoever reads the answer takes his time
        return kinds


def faster_with(on: bool) -> float:
    return 0.10 if on else 0.11


def faster_without(on: bool) -> float:
    return 0.11 if on else 0.10


def test_all_tokens_go_with_prefetch_where_nothing_is_tried() -> None:
    assert all(Machine(tries=False).run(300, faster_without))


def test_while_slots_are_empty_tokens_go_without_and_say_nothing() -> None:
    machine = Machine()
    assert not any(machine.run(100, faster_without, full=False))
    machine.run(1 + 2 * LEAST_PAIRS, faster_with)
    assert machine.gate.open


@pytest.mark.parametrize("seconds", [faster_with, faster_without])
def test_tokens_go_by_turns_until_it_is_sure_and_what_is_faster_serves(seconds: Callable[[bool], float]) -> None:
    machine, pays = Machine(), seconds is faster_with
    turns = [True, False, False, True] * LEAST_PAIRS
    assert machine.run(1 + 2 * LEAST_PAIRS, seconds) == [False, *turns[: 2 * LEAST_PAIRS]]
    assert machine.run(FIRST_PERIOD, seconds) == [pays] * FIRST_PERIOD
    assert machine.run(2 * LEAST_PAIRS, seconds) == turns[: 2 * LEAST_PAIRS], "and a trial follows"
    assert sum(kind == pays for kind in machine.run(6000, seconds)) > 0.98 * 6000


def test_the_first_trial_is_short_and_so_costs_a_short_request_little() -> None:
    machine, drawn = Machine(), np.random.default_rng(0)
    noisy = machine.run(1 + 2 * FIRST_PAIRS * (1 + REST), lambda on: 0.1 * float(drawn.uniform(0.8, 1.2)) + 0.001 * on)
    assert sum(noisy) <= FIRST_PAIRS


def test_a_change_of_what_pays_is_found() -> None:
    machine = Machine()
    machine.run(1000, faster_without)
    later = machine.run(3000, faster_with)
    assert sum(later[-1000:]) > 0.95 * 1000


def test_a_token_that_had_to_wait_for_another_program_says_nothing() -> None:
    machine = Machine()
    machine.run(3, faster_with)
    machine.run(1, lambda on: 5.0)
    machine.run(2 * LEAST_PAIRS, faster_with)
    assert machine.gate.open


def test_a_token_that_ends_in_the_middle_is_not_timed() -> None:
    machine = Machine()
    machine.run(4, faster_with)
    for _ in range(50):
        machine.gate.first_layer(machine.stats)  # and an error ends it
        machine.clock.now += 9.0
    machine.run(2 * LEAST_PAIRS, faster_with)
    assert machine.gate.open


def test_what_wasted_reads_make_later_tokens_read_counts_against_prefetch() -> None:
    """Each token with prefetch is 5 % faster, and reads in vain half as much as it needs."""
    pairs, drawn = PairedTokens(), np.random.default_rng(0)
    for _ in range(20):
        more = int(drawn.integers(-4, 5))
        pairs.add(more, -0.005 + 0.01 * more, 5)
    assert pairs.excess_s(regret=0.0)[0] == pytest.approx(-0.005)
    assert pairs.excess_s(regret=0.4)[0] == pytest.approx(-0.005 + 5 * 0.4 * 0.01)


def test_tokens_that_happen_to_miss_more_do_not_speak_against_their_kind() -> None:
    pairs, drawn = PairedTokens(), np.random.default_rng(1)
    for _ in range(MOST_PAIRS):
        more = int(drawn.integers(0, 20))  # it is always the one with prefetch
        pairs.add(more, -0.002 + 0.001 * more + float(drawn.normal(0, 1e-4)), 0)
    excess_s, error_s = pairs.excess_s(regret=0.1)
    assert excess_s == pytest.approx(-0.002, abs=3 * error_s) and error_s < 1e-4


@pytest.mark.parametrize("effect", [0.10, 0.03, -0.03, -0.10])
@pytest.mark.parametrize(("spread", "memory"), [(0.1, 0.0), (0.3, 0.0), (0.3, 0.9)])
def test_the_wrong_kind_serves_few_tokens(effect: float, spread: float, memory: float) -> None:
    """Times swing by `spread` with what is missed, of which a token remembers `memory`, and by 5 % without a reason."""
    wrong, lost, against_none = [], [], []
    for seed in range(3):
        drawn, level, tokens = np.random.default_rng(seed), 0.0, list[tuple[int, float]]()
        for _ in range(6000):
            level = memory * level + (1 - memory**2) ** 0.5 * float(drawn.normal())
            reads = round(40 * float(np.exp(spread * level)))
            tokens.append((reads, 0.0025 * reads * float(np.exp(drawn.normal(0, 0.05)))))
        machine = Machine()
        kinds = [
            machine.run(1, lambda on, s=seconds: s * (1 - effect * on), reads=reads, ahead=reads // 3)[0]  # type: ignore[misc]
            for reads, seconds in tokens
        ]
        right = np.array(kinds) == (effect > 0)
        seconds = np.array([seconds for _, seconds in tokens])
        wrong.append(float(1 - right.mean()))
        lost.append(float(abs(effect) * seconds[~right].sum() / seconds.sum()))
        against_none.append(float(-effect * seconds[:200][kinds[:200]].sum() / seconds[:200].sum()))
    assert np.mean(wrong) < 0.05 and np.mean(lost) < 0.005 and np.mean(against_none) < 0.01


def test_a_token_without_it_asks_for_no_guess_and_reads_nothing_ahead() -> None:
    tier, _, policy = make_tier(6)
    clock = Clock()
    tier.profiler.clock = lambda: clock.now
    certain = np.full((SHAPE.num_layers, SHAPE.num_experts), 0.9)

    class Certain(Predictor):
        name = "certain"

        def predict(self, layer: int) -> FloatArray:
            return certain[layer + 1 :]

    class Link:
        def bytes_read(self) -> int:
            return 1_000_000

        def busy_seconds(self) -> float:
            return 1.0

    tier.idle.seconds = 10.0
    prefetcher = Prefetcher(tier, Certain(), Link(), SHAPE, tries=True)
    ahead = dict[bool, int]()
    for _ in range(2 + 2 * LEAST_PAIRS):
        kind, before = prefetcher._gate.open, tier.stats.prefetches
        for layer in range(SHAPE.num_layers):
            policy.observe(layer, np.array([[0, 1]]))
            with tier.visit(layer, np.array([0, 1]), np.array([1, 1]), 1) as opened:
                prefetcher.after_routing(opened)
                for _ in opened.arrivals():
                    clock.now += 0.01
        ahead[kind] = ahead.get(kind, 0) + tier.stats.prefetches - before
    assert ahead[True] > 0 and ahead[False] == 0
    assert sorted(visit(tier, policy, 0, np.array([[2, 3]]))) == [2, 3]
