"""The hot path: streamed experts give what resident ones give, whatever is where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import ExpertReadError
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_protocol import DevicePolicy
from moeinf.runtime.policy.policy_trace import ActivationMatrix, RequestRecorder
from moeinf.runtime.prefetch import Prefetcher
from moeinf.types import Float32Array, Routing
from tests.oracles.resident_experts import ResidentExperts
from tests.support.fake_reader import LAYOUT, SHAPE, FakeKernel, FakeReader, Tier, make_tier

HIDDEN = 3


def routing(rng: np.random.Generator, tokens: int) -> Routing:
    ids = rng.random((tokens, SHAPE.num_experts)).argsort(axis=1)[:, : SHAPE.top_k]
    return Routing(ids, rng.random(ids.shape, np.float32) + np.float32(0.1))


def streamed(
    tier: Tier, reader: FakeReader, policy: DevicePolicy, *, prefetch: bool = True
) -> tuple[StreamedExperts, FakeKernel]:
    kernel, predictor = FakeKernel(tier.memory, SHAPE.num_experts), LookAheadPredictor(SHAPE)
    prefetcher = Prefetcher(tier, predictor, reader, SHAPE) if prefetch else None
    return StreamedExperts(tier, kernel, [], [policy, predictor], prefetcher), kernel


def resident() -> ResidentExperts:
    """Every expert in memory, in order."""
    words = LAYOUT.stride_bytes // 4
    memory = np.repeat(np.arange(SHAPE.total_experts, dtype=np.float32), words).view(np.uint8)
    offset = lambda layer, expert: (layer * SHAPE.num_experts + expert) * LAYOUT.stride_bytes  # noqa: E731
    return ResidentExperts(FakeKernel(memory, SHAPE.num_experts), offset)


@settings(max_examples=80)
@given(
    num_slots=st.integers(SHAPE.top_k, SHAPE.total_experts),
    seed=st.integers(0, 999),
    prefetch=st.booleans(),
    passes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_streamed_experts_give_bit_for_bit_what_resident_ones_give(
    num_slots: int, seed: int, prefetch: bool, passes: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    tier, reader, policy = make_tier(num_slots, "next-use", seed)
    experts, _ = streamed(tier, reader, policy, prefetch=prefetch)
    oracle = resident()
    for tokens in passes:
        routings = [routing(rng, tokens) for _ in range(SHAPE.num_layers)]
        for layer, routed in enumerate(routings):
            hidden = rng.random((tokens, HIDDEN), np.float32)
            if experts.wants_expectations and layer + 1 < SHAPE.num_layers:
                experts.expect(layer + 1, routings[layer + 1] if rng.random() < 0.5 else routing(rng, tokens))
            outs: list[Float32Array] = [np.ones((tokens, HIDDEN), np.float32) for _ in range(2)]
            experts.run(layer, hidden, routed, outs[0])
            oracle.run(layer, hidden, routed, outs[1])
            assert (outs[0] == outs[1]).all()
            tier.check_integrity()


def run(experts: StreamedExperts, layer: int, *ids: list[int]) -> Float32Array:
    routed = Routing(np.array(ids), np.ones((len(ids), SHAPE.top_k), np.float32))
    out = np.zeros((len(ids), HIDDEN), np.float32)
    experts.run(layer, np.ones((len(ids), HIDDEN), np.float32), routed, out)
    return out


def test_residents_are_computed_in_one_call_before_what_is_read() -> None:
    tier, reader, policy = make_tier(num_slots=8)
    experts, kernel = streamed(tier, reader, policy)
    run(experts, 1, [0, 1], [2, 3])
    kernel.batches.clear()
    run(experts, 1, [0, 1], [2, 5])
    assert kernel.batches == [[0, 1, 2], [5]]


def test_a_model_in_memory_is_computed_in_one_call_a_layer_and_the_reader_left_alone() -> None:
    tier, reader, _ = make_tier(num_slots=SHAPE.total_experts)
    tier.load_all(lambda done, total: None)
    kernel, finished = FakeKernel(tier.memory, SHAPE.num_experts), list[ActivationMatrix]()
    recorder = RequestRecorder(SHAPE, finished.append)
    experts = StreamedExperts(tier, kernel, [recorder], [], None)
    reader.poll = None  # type: ignore[method-assign,assignment]
    run(experts, 2, [4, 1], [0, 4])
    assert kernel.batches == [[0, 1, 4]] and not experts.wants_expectations
    assert (tier.stats.hits, tier.stats.misses) == (4, 0)
    recorder.finish()
    assert finished[0].counts[2].tolist() == [1, 1, 0, 0, 2, 0]


def test_once_everything_has_come_the_look_ahead_is_not_asked_any_more() -> None:
    tier, reader, policy = make_tier(num_slots=SHAPE.total_experts)
    experts, _ = streamed(tier, reader, policy)
    assert experts.wants_expectations
    for layer in range(SHAPE.num_layers):
        run(experts, layer, [0, 1], [2, 3], [4, 5])
    assert tier.all_resident and not experts.wants_expectations
    run(experts, 0, [0, 1])
    tier.check_integrity()


@pytest.mark.parametrize("calls", [0, 1])
def test_after_an_interrupt_in_a_layer_the_next_request_runs(calls: int) -> None:
    tier, reader, policy = make_tier(num_slots=4)
    experts, kernel = streamed(tier, reader, policy)
    kernel.stop_after = calls
    with pytest.raises(KeyboardInterrupt):
        run(experts, 0, [0, 1], [2, 3], [4, 5])
    tier.check_integrity()
    kernel.stop_after = None
    assert run(experts, 1, [2, 4])[0].tolist() == [18.0] * HIDDEN, "keys 8 and 10"
    tier.check_integrity()


def test_after_an_unreadable_expert_the_next_request_runs() -> None:
    tier, reader, policy = make_tier(num_slots=4, failing=frozenset([3]))
    experts, _ = streamed(tier, reader, policy)
    with pytest.raises(ExpertReadError, match="expert 3 of layer 0"):
        run(experts, 0, [2, 3])
    tier.check_integrity()
    assert run(experts, 0, [2, 4])[0].tolist() == [6.0] * HIDDEN


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", ["submit", "cancel", "poll", "wait_any"])
@pytest.mark.parametrize("calls", range(3))
def test_an_interrupt_in_a_reader_leaves_no_expert_that_nobody_reads(name: str, calls: int, late: bool) -> None:
    """Before the call has done what it was asked for, or behind it: Python raises Ctrl-C at any line."""
    tier, reader, policy = make_tier(num_slots=8, seed=calls)
    experts, _ = streamed(tier, reader, policy)
    call, before = getattr(reader, name), [calls]

    def interrupted(*arguments: object) -> object:
        before[0] -= 1
        if before[0] == -1 and not late:
            raise KeyboardInterrupt
        answer = call(*arguments)
        if before[0] == -1:
            raise KeyboardInterrupt
        return answer

    setattr(reader, name, interrupted)
    expected = [(2.0 + 6 * layer) + (4.0 + 6 * layer) for layer in range(SHAPE.num_layers)]
    raised = False
    for number in range(12):
        layer = number % SHAPE.num_layers
        try:
            if layer + 1 < SHAPE.num_layers:
                experts.expect(layer + 1, Routing(np.array([[number % 6, 5]]), np.ones((1, 2), np.float32)))
            assert run(experts, layer, [2, 4])[0].tolist() == [expected[layer]] * HIDDEN
            tier.resize(8 - number % 4)
        except KeyboardInterrupt:
            raised = True
        tier.check_integrity()
        if before[0] < 0:
            assert set(tier.snapshot().loading) == reader.queued.keys()
    assert raised or name == "cancel"
