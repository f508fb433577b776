"""Which prefetches pay, by hand and by what each outcome costs."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.runtime.admission import MEMORY, PRIOR, Admission, bucket_of, delay_of, floor

NUM_EXPERTS = 10


def share(admission: Admission, priority: float) -> float:
    """How likely it takes an expert of this priority to be."""
    bucket = bucket_of(priority)
    return admission._used[bucket] / admission._seen[bucket]


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
    admission = Admission(NUM_EXPERTS)
    assert admission.choose([11, 12, 13], [0.95, 0.95, 0.95], 0, window=2.0) == [0, 1]
    assert admission.choose([11, 12, 13], [0.95, 0.95, 0.95], 1, window=2.0) == [0]
    assert admission.choose([11, 12, 13], [0.95, 0.15, 0.65], 0, window=9.0) == [0, 2], "what is unlikely takes none"
    assert admission.choose([11], [0.95], 0, window=0.0) == []


def test_where_visits_read_nothing_a_prefetch_that_outlasts_the_window_delays_nothing() -> None:
    busy, calm = Admission(NUM_EXPERTS), Admission(NUM_EXPERTS)
    for _ in range(300):
        busy.learn(0, [1, 2], 2)
        calm.learn(0, [1, 2], 0)
    assert busy.choose([11], [0.45], 0, window=0.5) == [] and calm.choose([11], [0.45], 0, window=0.5) == [0]


def test_where_asking_takes_as_long_as_a_read_only_what_is_likely_is_read() -> None:
    admission = Admission(NUM_EXPERTS)
    for _ in range(400):
        admission.learn(0, [1, 2], 0)  # nothing is missed: victims are worth nothing
    assert admission.choose([11], [0.25], 0, window=2.0) == [0]
    for _ in range(20):
        admission.submitted(reads=2.0, count=2)
    assert admission.choose([11], [0.15], 0, window=2.0) == [] and admission.choose([11], [0.65], 0, window=2.0) == [0]
    for _ in range(1000):
        admission.submitted(reads=50.0, count=1)
    assert admission.choose([11], [0.65], 0, window=2.0) == [0], "that the host was busy does not end it for good"


def test_a_share_begins_at_its_priority_and_follows_what_is_used() -> None:
    admission = Admission(NUM_EXPERTS)
    assert share(admission, 0.65) == pytest.approx(0.65)
    used = np.random.default_rng(0).random(1000) < 0.2
    for hit in used.tolist():
        admission.choose([27, 28], [0.65, 0.05], 0, 1.0)
        admission.learn(2, [27, 21] if hit else [21], 1)
    assert share(admission, 0.65) == pytest.approx(used[-400:].mean(), abs=0.05)
    assert share(admission, 0.05) == pytest.approx(0.0, abs=0.01)
    assert share(admission, 0.35) == pytest.approx(0.35), "other priorities are as before"
    assert admission._seen[bucket_of(0.65)] <= MEMORY and admission._seen[bucket_of(0.35)] == PRIOR
    assert admission.choose([27], [0.65], 0, 1.0) == [], "it is read no more: half of all is missed, its victim too"


def test_priorities_above_one_count_as_the_highest() -> None:
    assert bucket_of(3.0) == bucket_of(0.99)


def test_an_expert_looked_at_again_before_its_layer_counts_once_as_first_seen() -> None:
    admission = Admission(NUM_EXPERTS)
    admission.choose([49], [0.35], 0, 1.0)
    admission.choose([49], [0.95], 0, 1.0)
    admission.learn(3, [49], 0)
    admission.learn(4, [49], 0)
    admission.learn(4, [49], 0)
    assert admission._seen[bucket_of(0.35)] == PRIOR + 1 and admission._seen[bucket_of(0.95)] == PRIOR


def test_of_a_layer_that_did_not_run_nothing_is_learned() -> None:
    admission = Admission(NUM_EXPERTS)
    admission.choose([19], [0.35], 0, 1.0)
    admission.learn(2, [20], 0)
    admission.learn(1, [19], 0)
    assert admission._seen[bucket_of(0.35)] == PRIOR
