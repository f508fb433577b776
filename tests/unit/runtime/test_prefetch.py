"""What is fetched ahead, and how much of it."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf._native import Visit
from moeinf.runtime.experts import tell_guess
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.runtime.prefetch import ADMISSIONS, MEASURED, NO_ADMISSION, Prefetcher
from moeinf.runtime.prefetch_gate import HOST_SMOOTHING
from moeinf.types import FloatArray
from tests.support.fake_reader import LAYOUT, SHAPE, FakeReader, Tier, make_tier, visit


class Oracle(Predictor):
    """Says of the layers ahead what it was told."""

    name = "oracle"

    def __init__(self, likelihood: FloatArray | None) -> None:
        self.likelihood = likelihood

    def predict(self, layer: int) -> FloatArray | None:
        return None if self.likelihood is None else self.likelihood[layer + 1 :]


class Link:
    """A link that has read 10 experts in one second."""

    def bytes_read(self) -> int:
        return 10 * LAYOUT.stride_bytes

    def busy_seconds(self) -> float:
        return 1.0


def likelihood(**rows: dict[int, float]) -> FloatArray:
    matrix = np.zeros((SHAPE.num_layers, SHAPE.num_experts))
    for name, values in rows.items():
        for expert, value in values.items():
            matrix[int(name.removeprefix("layer")), expert] = value
    return matrix


def begun(tier: Tier, layer: int, tokens: int) -> Visit:
    """A visit of a layer that misses nothing."""
    return tier.visit(layer, np.empty(0, np.int64), np.empty(0, np.int64), tokens)


def queued(reader: FakeReader) -> list[int]:
    return sorted(reader.queued)


def hold_polls(reader: FakeReader) -> None:
    empty = np.array([], np.int64)
    reader.poll = lambda: ReadDone(empty, empty)  # type: ignore[method-assign]


def test_the_likeliest_absent_experts_of_layers_ahead_are_queued_within_the_idle_window() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.2)  # two experts of the link's ten a second
    ahead = likelihood(layer0={0: 0.9}, layer1={1: 0.9, 2: 0.7, 3: 0.6})
    Prefetcher(tier, Oracle(ahead), Link(), SHAPE).after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == [7, 8]


def test_near_layers_come_before_far_ones_of_equal_likelihood() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.1)
    oracle = Oracle(likelihood(layer2={0: 0.5}, layer1={5: 0.5}))
    Prefetcher(tier, oracle, Link(), SHAPE).after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == [11]


def test_nothing_is_queued_without_a_prediction_that_is_likely_enough() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.1)
    for prediction in (None, likelihood(layer1={1: 0.2}, layer2={0: 0.4})):
        Prefetcher(tier, Oracle(prediction), Link(), SHAPE).after_routing(begun(tier, 0, tokens=1))
        assert queued(reader) == []


@pytest.mark.parametrize(("tokens", "wanted"), [(1, []), (4, [7])])
def test_a_step_of_a_few_answers_fetches_what_any_of_them_may_use(tokens: int, wanted: list[int]) -> None:
    """Within the idle window, as for one token: a chance of .2 is .59 that one of four uses the expert."""
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.1)
    ahead = likelihood(layer1={1: 0.2, 2: 0.1})
    Prefetcher(tier, Oracle(ahead), Link(), SHAPE).after_routing(begun(tier, 0, tokens))
    assert queued(reader) == wanted


@pytest.mark.parametrize(("idle_s", "wanted"), [(0.2, [7, 8]), (0.18, [7, 8]), (0.12, [7]), (0.1, [7]), (0.02, [])])
def test_what_the_window_does_not_hold_whole_has_to_be_likelier(idle_s: float, wanted: list[int]) -> None:
    """Of a prefetch that outlasts it, demand waits for the rest, whether it is used or not."""
    tier, reader, _ = make_tier(num_slots=12, idle_s=idle_s)
    ahead = likelihood(layer1={1: 0.9, 2: 0.9, 3: 0.9})
    Prefetcher(tier, Oracle(ahead), Link(), SHAPE).after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == wanted


def test_what_was_never_used_is_read_no_more_and_comes_back_when_it_would_be() -> None:
    tier, _, policy = make_tier(num_slots=12, idle_s=0.1)
    prefetcher = Prefetcher(tier, Oracle(likelihood(layer1={1: 0.9})), Link(), SHAPE)

    def token(experts: list[int]) -> bool:
        """Whether expert 1 of layer 1 was read ahead; it is absent again afterwards, as are those of layer 0."""
        before = tier.stats.prefetches
        for layer in range(2):
            ids = np.array([[0, 2] if layer == 0 else experts])
            policy.observe(layer, ids)
            with tier.visit(layer, np.sort(ids[0]), np.ones(2, np.int64), 1) as at:
                prefetcher.after_routing(at)
                for _ in at.arrivals():
                    pass
        gone = [0, 2, SHAPE.num_experts + 1]
        tier._loader.drain(np.array(gone))
        tier._cache.release([key for key in gone if key in tier.snapshot().resident])
        return tier.stats.prefetches > before

    assert token([3, 4]), "at first, a predictor is believed"
    wrong = [token([3, 4]) for _ in range(40)]
    assert wrong[0] and not wrong[-1]
    right = [token([1, 4]) for _ in range(60)]
    assert not right[0] and right[-1], "what is not read is learned from all the same"


def test_what_is_under_way_counts_against_the_window_and_is_not_queued_again() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.2)
    hold_polls(reader)
    oracle = Oracle(likelihood(layer1={1: 0.9, 2: 0.7, 3: 0.6}))
    prefetcher = Prefetcher(tier, oracle, Link(), SHAPE)
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == [7, 8] and tier.stats.prefetches == 2


def test_the_time_in_which_the_host_asks_for_reads_counts_as_a_share_of_them() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.2)
    tier.profiler.clock = lambda: 0.05 * reader.submitted  # a read of the link takes 0.1 s
    prefetcher = Prefetcher(tier, Oracle(likelihood(layer1={1: 0.9, 2: 0.7})), Link(), SHAPE)
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == [7, 8]
    assert prefetcher._gate._host == pytest.approx(HOST_SMOOTHING * 0.5)


def test_prefetches_leave_demand_the_slots_of_a_token() -> None:
    tier, reader, policy = make_tier(num_slots=4, idle_s=10.0)
    hold_polls(reader)
    oracle = Oracle(likelihood(layer1=dict.fromkeys(range(6), 0.6)))
    Prefetcher(tier, oracle, Link(), SHAPE).after_routing(begun(tier, 0, tokens=1))
    assert len(queued(reader)) == (4 - SHAPE.top_k) // 2
    visit(tier, policy, 0, np.array([[0, 1]]))
    tier.check_integrity()


@pytest.mark.parametrize("tokens", [1, 30])
def test_without_admission_everything_with_room_is_read(tokens: int) -> None:
    """However short the idle window, and however unlikely: the nearest and likeliest first."""
    chances = likelihood(layer1={0: 0.9, 1: 0.02}, layer2={3: 0.5})
    taken = {}
    for admission in ADMISSIONS:
        tier, reader, policy = make_tier(num_slots=12, idle_s=0.0)
        hold_polls(reader)
        prefetcher = Prefetcher(tier, Oracle(chances), Link(), SHAPE, tries=True, admission=admission)
        prefetcher.after_routing(begun(tier, 0, tokens=tokens))
        taken[admission] = queued(reader)
        if admission == NO_ADMISSION:
            order = sorted(reader.queued, key=lambda key: -reader.queued[key][1])
            assert order[:3] == [6, 15, 7] and len(order) == (12 - SHAPE.top_k) // 2, "and then whatever is next"
            visit(tier, policy, 0, np.array([[0, 1]]))
            tier.check_integrity()
    assert len(taken[MEASURED]) < len(taken[NO_ADMISSION])


def test_a_queued_prefetch_follows_the_new_priorities() -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.2)
    hold_polls(reader)
    oracle = Oracle(likelihood(layer1={1: 0.9, 2: 0.7}))
    prefetcher = Prefetcher(tier, oracle, Link(), SHAPE)
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    oracle.likelihood = likelihood(layer1={1: 0.1, 2: 0.8})
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    assert reader.queued[8][1] > reader.queued[7][1]


def test_behind_the_last_layer_of_an_encoder_nothing_is_streamed() -> None:
    """The decoder comes next, but with one token, which uses few experts."""
    tier, reader, _ = make_tier(num_slots=12)
    oracle = Oracle(likelihood(layer1={0: 0.9}, layer2={1: 0.9}))
    prefetcher = Prefetcher(tier, oracle, Link(), SHAPE, 2)
    prefetcher.after_routing(begun(tier, 1, tokens=30))
    assert queued(reader) == []
    prefetcher.after_routing(begun(tier, 0, tokens=30))
    assert queued(reader) == [6]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_guess_that_is_no_number_queues_nothing(bad: float) -> None:
    tier, reader, _ = make_tier(num_slots=12, idle_s=0.15)
    predictor = LookAheadPredictor(SHAPE)
    prefetcher = Prefetcher(tier, predictor, Link(), SHAPE)
    tell_guess([predictor], 1, np.array([[0, 1]]), np.array([[0.5, bad]], np.float32))
    prefetcher.after_routing(begun(tier, 0, tokens=1))
    assert queued(reader) == []


def test_many_tokens_are_guessed_at_whatever_the_clock_says_of_few() -> None:
    tier, _, _ = make_tier(num_slots=12)
    prefetcher = Prefetcher(tier, LookAheadPredictor(SHAPE), Link(), SHAPE, tries=True)
    assert not prefetcher.wants_expectations
    prefetcher.after_routing(begun(tier, 0, tokens=9))
    assert prefetcher.wants_expectations
    prefetcher.after_routing(begun(tier, 1, tokens=1))
    assert not prefetcher.wants_expectations
