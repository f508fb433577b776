"""A prefill that passes through the slots: what is read when, on a disk and a clock that the tests can see."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.slot_sizes import equal_slots
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.prefetch import Prefetcher
from moeinf.types import IntArray, MoeShape, Profiler, Routing
from tests.oracles.visit import BATCH_EXPERTS
from tests.support.fake_reader import LAYOUT, Clock, Disk, FakeKernel, errors_of

SHAPE = MoeShape(num_layers=4, num_experts=24, top_k=2)


class Machine:
    """Streamed experts on a disk of `read_s` an expert and a processor of `expert_s` an expert."""

    def __init__(self, num_slots: int, *, policy: str = "next-use", read_s: float = 1.0, expert_s: float = 1.0) -> None:
        memory = np.zeros(num_slots * LAYOUT.stride_bytes, np.uint8)
        self.clock = Clock()
        self.disk = Disk(memory, self.clock, SHAPE, read_s)
        chosen = make_policy(policy, SHAPE, ActivationCollection(SHAPE), num_slots)
        predictor = LookAheadPredictor(SHAPE)
        cache = ExpertCache(SHAPE, SlotRegion(memory, 0, num_slots, equal_slots(LAYOUT.stride_bytes, SHAPE)), chosen)
        self.tier = ExpertTier(cache, Loader(cache, self.disk, memory), errors_of(SHAPE), Profiler())
        self.kernel = FakeKernel(memory, SHAPE.num_experts, self.clock, expert_s)
        prefetcher = Prefetcher(self.tier, predictor, self.disk, SHAPE)
        self.experts = StreamedExperts(self.tier, self.kernel, [], [chosen, predictor], prefetcher)
        self.computed_s = [0.0] * SHAPE.num_layers  # when a layer's last expert was done

    def forward(self, routed: IntArray, guessed: IntArray | None = None, *, attention_s: float = 0.0) -> None:
        """A pass of the routing [layers, tokens, top_k], each layer announced by a guess; a perfect one by default."""
        guessed = routed if guessed is None else guessed
        weights = np.full(routed.shape[1:], 1 / SHAPE.top_k, np.float32)
        hidden = np.ones((routed.shape[1], 2), np.float32)
        for layer in range(SHAPE.num_layers):
            self.clock.now += attention_s
            if self.experts.wants_expectations and layer + 1 < SHAPE.num_layers:
                self.experts.expect(layer + 1, Routing(guessed[layer + 1], weights))
            self.experts.run(layer, hidden, Routing(routed[layer], weights), np.zeros_like(hidden))
            self.computed_s[layer] = self.clock.now
            self.tier.check_integrity()

    def resident(self, layer: int) -> set[int]:
        first = layer * SHAPE.num_experts
        return {key - first for key in self.tier.snapshot().resident if 0 <= key - first < SHAPE.num_experts}


def routing(seed: int, tokens: int, experts: int = SHAPE.num_experts) -> IntArray:
    """[layers, tokens, top_k] among the first `experts` of each layer."""
    return np.random.default_rng(seed).random((SHAPE.num_layers, tokens, experts)).argsort(axis=2)[:, :, : SHAPE.top_k]


def touched(routed: IntArray) -> list[int]:
    return sorted({layer * SHAPE.num_experts + e for layer, ids in enumerate(routed) for e in ids.ravel().tolist()})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_slots", [2, 3, 4, 5, 8, 20, 48, 95])
def test_a_prefill_reads_what_it_touches_once_and_nothing_else(num_slots: int, policy: str) -> None:
    machine, routed = Machine(num_slots, policy=policy), routing(1, 20, experts=18)
    machine.forward(routed)
    assert sorted(machine.disk.reads) == touched(routed)


@pytest.mark.parametrize(("num_slots", "at_least"), [(60, 22), (48, 22), (30, 14), (8, 3)])
def test_the_next_layer_is_queued_before_this_one_is_computed(num_slots: int, at_least: int) -> None:
    machine, routed = Machine(num_slots), routing(2, 60)
    submitted: dict[int, float] = {}
    submit = machine.disk.submit

    def noting(keys: IntArray, *rest: object) -> None:
        for key in keys.tolist():
            submitted[key] = machine.clock.now
        submit(keys, *rest)  # type: ignore[arg-type]

    machine.disk.submit = noting  # type: ignore[method-assign,assignment]
    machine.forward(routed)
    for layer in range(1, SHAPE.num_layers):
        keys = [key for key in submitted if key // SHAPE.num_experts == layer]
        assert sum(submitted[key] < machine.computed_s[layer - 1] for key in keys) >= min(at_least, len(keys))


@pytest.mark.parametrize("num_slots", [48, 60])
@pytest.mark.parametrize("expert_s", [0.1, 0.9])
def test_the_disk_never_waits_for_a_slower_machine_than_itself(num_slots: int, expert_s: float) -> None:
    machine, routed = Machine(num_slots, expert_s=expert_s), routing(3, 60)
    machine.forward(routed, attention_s=2.0)
    started, last_batch = 2.0, expert_s * BATCH_EXPERTS
    assert machine.clock.now - started - last_batch <= len(touched(routed)) == machine.disk.busy_s


def test_the_processor_never_waits_for_a_faster_disk() -> None:
    machine, routed = Machine(60, read_s=0.1, expert_s=1.0), routing(4, 60)
    machine.forward(routed, attention_s=2.0)
    first_read, attention = 0.1, 2.0 * SHAPE.num_layers
    assert machine.clock.now <= first_read + attention + len(touched(routed)) + 1e-6


def test_what_has_landed_together_is_computed_together() -> None:
    machine, routed = Machine(60, read_s=0.001, expert_s=1.0), routing(5, 60)
    machine.forward(routed, attention_s=2.0)
    assert len(machine.kernel.batches) <= 4 * SHAPE.num_layers


@pytest.mark.parametrize("num_slots", [32, 48, 70])
def test_decode_finds_the_experts_of_the_last_tokens(num_slots: int) -> None:
    machine, routed = Machine(num_slots), routing(6, 60)
    machine.forward(routed)
    found = sum(len(machine.resident(layer) & set(routed[layer, -1].tolist())) for layer in range(SHAPE.num_layers))
    assert found == SHAPE.num_layers * SHAPE.top_k


@pytest.mark.parametrize("num_slots", [48, 70])
def test_a_second_prompt_reads_little_more_than_what_is_missing(num_slots: int) -> None:
    machine = Machine(num_slots)
    machine.forward(routing(7, 60))
    routed = routing(8, 60)
    missing = len(touched(routed)) - len(machine.tier.snapshot().resident)
    machine.disk.reads.clear()
    machine.forward(routed)
    assert missing <= len(machine.disk.reads) <= missing + SHAPE.num_experts, "a window of one layer has to move"


@pytest.mark.parametrize("num_slots", [2, 3, 5, 8, 40])
@pytest.mark.parametrize("tokens", [2, 3, 30])
def test_a_wrong_guess_costs_reads_and_nothing_else(num_slots: int, tokens: int) -> None:
    machine, routed = Machine(num_slots), routing(9, tokens, experts=12)
    machine.forward(routed, 23 - routed)
    needed = set(touched(routed))
    assert all(machine.disk.reads.count(key) == 1 for key in needed)
    machine.forward(routing(10, 1))
    machine.forward(routing(11, tokens))


def test_after_an_abandoned_prefill_nothing_is_held_and_what_was_queued_is_dropped() -> None:
    machine, routed = Machine(48), routing(12, 60)
    machine.kernel.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        machine.forward(routed)
    machine.tier.end_request()
    machine.tier.check_integrity()
    machine.kernel.stop_after = None
    assert len(machine.disk.queued) > 2
    started = machine.clock.now
    machine.forward(routing(13, 1))
    assert machine.clock.now - started <= 2 * SHAPE.num_layers * SHAPE.top_k + 2, "demand did not queue behind it"
    assert not machine.tier.snapshot().reserved


def test_decode_after_a_prefill_goes_back_to_a_few_likely_experts() -> None:
    machine = Machine(48)
    machine.forward(routing(14, 60))
    machine.disk.reads.clear()
    for token in range(8):
        machine.forward(routing(20 + token, 1))
    assert len(machine.disk.reads) <= 8 * SHAPE.num_layers * SHAPE.top_k
