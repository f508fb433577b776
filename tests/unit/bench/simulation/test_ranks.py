"""Several simulated machines, against one of them and against arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from moeinf.bench.simulation.network import (
    GATHERS,
    SEND_S,
    WAKE_S,
    WIRE_S,
    Gather,
    Network,
    answered_at,
    asked_at,
    networks_of,
)
from moeinf.bench.simulation.plan import plan_of
from moeinf.bench.simulation.ranks import SimulatedRanks, Star, seconds_of, uses_of
from moeinf.bench.simulation.replay import drive
from moeinf.bench.simulation.run import PhaseResult, SimulatedRun, Timing
from moeinf.config.simulate_options import SimulateOptions
from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import make_policy
from moeinf.traces.trace import Trace
from moeinf.types import IntArray, MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=12, top_k=2)
TIMING = Timing(1e-3, 2e-4)
ONE_GBE = Network("1GbE", 1.25e8)
TIMED = SimulateOptions(link=2.0, compute=100.0, expert_bytes="2MB", ranks="2")


def trace_of(tokens: int = 40) -> Trace:
    rng = np.random.default_rng(3)
    experts = rng.random((tokens, SHAPE.num_layers, SHAPE.num_experts)).argsort(axis=2)[:, :, : SHAPE.top_k]
    return Trace("random", SHAPE, experts, np.array([0, tokens]))


def run(num_ranks: int, slots: int, gather: Gather = "rows", copies: float = 0.0) -> tuple[PhaseResult, SimulatedRanks]:
    trace = trace_of()
    policy = make_policy("lru", SHAPE, ActivationCollection(SHAPE), slots)
    owner: IntArray = (np.arange(SHAPE.num_keys) % num_ranks).reshape(SHAPE.num_layers, -1)
    second = seconds_of(owner, uses_of(trace.experts, SHAPE, range(20)), copies, num_ranks)
    ranks = SimulatedRanks(SHAPE, slots, Star(num_ranks, ONE_GBE, gather, 8192), owner, second, policy, None, TIMING)
    return drive(trace, [ranks], [policy], None, None, 0)[0]["decode"], ranks


def test_one_rank_is_one_machine() -> None:
    trace, policy = trace_of(), make_policy("lru", SHAPE, ActivationCollection(SHAPE), 8)
    alone = SimulatedRun(SHAPE, 8, policy, None, TIMING)
    wanted = drive(trace, [alone], [policy], None, None, 0)[0]["decode"]
    found, ranks = run(1, 8)
    assert found.seconds == pytest.approx(wanted.seconds) and found.tokens == wanted.tokens
    assert (found.stats.hits, found.stats.misses) == (wanted.stats.hits, wanted.stats.misses)
    assert ranks.balance.imbalance == 1.0


def test_every_activation_is_counted_once() -> None:
    for num_ranks in (2, 3, 7):
        found, _ = run(num_ranks, 8)
        assert found.stats.activations == found.tokens * SHAPE.num_layers * SHAPE.top_k


def test_memory_of_more_ranks_turns_misses_into_hits() -> None:
    rates = [run(num_ranks, 8)[0].stats.hit_rate for num_ranks in (1, 2, 4)]
    assert rates == sorted(rates) and rates[2] > rates[0] + 0.2


def test_layers_that_miss_nothing_take_their_messages_and_no_more() -> None:
    """With a slot for everything, after all has been read once."""
    found, ranks = run(2, SHAPE.num_keys)
    messages = found.seconds - found.tokens * SHAPE.num_layers * TIMING.layer_s
    assert found.stats.demand_reads <= SHAPE.num_keys
    least = SEND_S + WAKE_S + WIRE_S
    assert messages > 0.5 * found.tokens * SHAPE.num_layers * least
    assert ranks.balance.imbalance > 1.0


def test_a_second_copy_evens_the_load() -> None:
    assert run(4, SHAPE.num_keys, copies=50)[1].balance.imbalance < run(4, SHAPE.num_keys)[1].balance.imbalance


def test_second_copies_are_of_what_is_used_most_and_elsewhere() -> None:
    trace = trace_of()
    owner: IntArray = (np.arange(SHAPE.num_keys) % 3).reshape(SHAPE.num_layers, -1)
    uses = uses_of(trace.experts, SHAPE, range(40))
    assert uses.sum() == 40 * SHAPE.num_layers * SHAPE.top_k
    second = seconds_of(owner, uses, 25, 3)
    doubled = second != owner
    assert doubled.sum() == 9 and second.max() < 3
    assert uses[doubled].min() >= uses[~doubled].max()


def test_messages_leave_one_after_the_other() -> None:
    first, second = asked_at(ONE_GBE, 5.0, [12500, 12500], "rows")
    assert first == pytest.approx(5.0 + SEND_S + 1e-4 + WIRE_S + WAKE_S)
    assert second == pytest.approx(first + 1e-4)  # the link, and not the processor, is what is waited for


def test_rows_come_one_after_the_other_and_a_sum_is_one_row() -> None:
    ready, rows = [1.0, 1.0, 2.0], [3, 1, 1]
    end = answered_at(ONE_GBE, ready, rows, 1, 12500, "rows")
    assert end == pytest.approx(2.0 + SEND_S + WIRE_S + 1e-4 + WAKE_S)
    together = [1.0, 1.0, 1.0]
    all_rows, sums = (answered_at(ONE_GBE, together, rows, 1, 12500, each) for each in ("rows", "sums"))
    assert all_rows - sums == pytest.approx(2e-4)
    of_two_tokens = answered_at(ONE_GBE, together, rows, 2, 12500, "sums")
    assert of_two_tokens - sums == pytest.approx(1e-4)  # of the rank with three rows


def test_a_tree_of_many_ranks_is_faster_than_their_star() -> None:
    ready = [1.0] * 512
    ends = {each: answered_at(ONE_GBE, ready, [1] * 512, 1, 12500, each) for each in GATHERS}
    assert ends["tree"] < ends["sums"] == ends["rows"]
    assert asked_at(ONE_GBE, 0.0, [12500] * 512, "tree")[0] < asked_at(ONE_GBE, 0.0, [12500] * 512, "rows")[-1]


def test_networks_are_called_by_their_rates() -> None:
    one, ten = networks_of("1GbE, 2.5GbE")
    assert (one.name, ten.name) == ("1GbE", "2.5GbE") and ten.bytes_per_s == pytest.approx(2.5 * one.bytes_per_s)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (replace(TIMED, ranks="2,x"), "is not a list of numbers"),
        (replace(TIMED, ranks="0"), "is not a list of numbers"),
        (replace(TIMED, network="wifi"), "is no network"),
        (replace(TIMED, network="0GbE"), "is no network"),
        (replace(TIMED, gather="rows,all"), "known are rows, sums, tree"),
        (replace(TIMED, copies=101.0), "is a percentage"),
        (replace(TIMED, row_bytes="10%"), "is no number of bytes"),
        (replace(TIMED, plot="x.svg"), "--plot draws one machine"),
        (SimulateOptions(ranks="2"), "give --link"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: SimulateOptions, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        plan_of(options)
