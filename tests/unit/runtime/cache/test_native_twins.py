"""The native cache and the native visit of a layer against their plain twins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import Visit
from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.slot_sizes import SlotSizes, equal_slots, slot_sizes
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.types import FloatArray, IntArray, MoeShape
from tests.oracles.expert_cache import PlainCache
from tests.oracles.visit import PlainVisit, VisitParts
from tests.support.fake_reader import SHAPE, Tier, make_tier, sizes_of

STRIDE, START = 4096, 8192
UNEVEN = MoeShape(num_layers=3, num_experts=7, top_k=2, counts=(7, 4, 6))
EQUAL = equal_slots(STRIDE, UNEVEN)


class Fixed:
    """A policy that knows by heart what each expert is worth; some are worth the same."""

    def __init__(self, seed: int) -> None:
        self._scores = np.random.default_rng(seed).integers(0, 5, (3, UNEVEN.num_layers, UNEVEN.num_experts))

    def keep_scores(self, layer: int) -> FloatArray:
        scores: FloatArray = self._scores[layer].astype(np.float64)
        return scores


def random_step(rng: np.random.Generator, plain: PlainCache) -> Callable[[Any], object]:
    """A call that caches of both kinds understand, with what may be said to them as they are."""
    absent = [key for key, state in enumerate(plain.states()) if state == 0]
    rng.shuffle(absent)
    loading, resident = plain.loading, sorted(plain.resident)
    layer = int(rng.integers(UNEVEN.num_layers))
    experts = rng.permutation(UNEVEN.counts[layer])[: int(rng.integers(1, 5))]
    keys = (experts + layer * UNEVEN.num_experts).tolist()
    counts = rng.integers(1, 4, len(keys))
    some = [key for key in resident + loading if rng.random() < 0.4]
    wanted, cost = int(rng.integers(1, 6)), bool(rng.random() < 0.3)
    also = [key for key in resident if rng.random() < 0.2]
    many, prefetched = bool(rng.random() < 0.3), bool(rng.random() < 0.5)
    steps: list[Callable[[Any], object]] = [
        lambda cache: cache.begin_layer(layer, keys, counts, many),
        lambda cache: cache.end_reservations(),
        lambda cache: cache.reserve(some, prefetched),
        lambda cache: cache.make_room(absent[:wanted], also, cost),
        lambda cache: cache.assign(plain.with_slots(absent)[:wanted]),
        lambda cache: cache.land(loading[:wanted]),
        lambda cache: cache.release(some[:1]),
        lambda cache: cache.let_go(),
    ]
    return steps[int(rng.choice(len(steps), p=(0.2, 0.1, 0.1, 0.2, 0.2, 0.1, 0.05, 0.05)))]


class Fast:
    """The native cache with its table, called as the plain one is."""

    def __init__(self, num_slots: int, policy: Fixed, sizes: SlotSizes = EQUAL) -> None:
        self.cache = ExpertCache(UNEVEN, SlotRegion(None, START, num_slots, sizes), policy)
        self.begins = sizes.begins + START

    def begin_layer(self, layer: int, keys: list[int], counts: np.ndarray, many: bool) -> object:
        return self.cache.begin_layer(layer, keys, counts, many=many)

    def make_room(self, keys: list[int], also_held: list[int], at_any_cost: bool) -> list[int]:
        return self.cache.make_room(keys, also_held=also_held, at_any_cost=at_any_cost)

    def reserve(self, keys: list[int], prefetched: bool) -> None:
        self.cache.reserve(keys, prefetched=prefetched)

    def assign(self, keys: list[int]) -> list[int]:
        return [int(np.searchsorted(self.begins, offset)) for offset in self.cache.table.assign(keys)]

    def land(self, keys: list[int]) -> None:
        self.cache.table.land(keys)

    def __getattr__(self, name: str) -> object:
        return getattr(self.cache, name)


@settings(max_examples=150, deadline=None)
@given(
    num_slots=st.integers(1, 14),
    seed=st.integers(0, 2**32 - 1),
    shared=st.booleans(),
    pages=st.just([1, 1, 1]) | st.lists(st.integers(1, 3), min_size=3, max_size=3),
)
def test_the_native_cache_decides_as_its_plain_twin(num_slots: int, seed: int, shared: bool, pages: list[int]) -> None:
    rng, policy = np.random.default_rng(seed), Fixed(seed)
    sizes = slot_sizes([STRIDE * count for count in pages], UNEVEN)
    of_slots, of_layers = sizes.order.tolist(), sizes.of_layers.tolist()
    fast, plain = (
        Fast(num_slots, policy, sizes),
        PlainCache(UNEVEN, num_slots, lambda layer: policy.keep_scores(layer).ravel(), of_slots, of_layers),
    )
    fast.cache.share(shared)
    plain.shared = shared
    for _ in range(60):
        step = random_step(rng, plain)
        assert step(fast) == step(plain)
        table = fast.cache.table
        assert (table.state == plain.states()).all()
        assert fast.assign([]) == []
        numbers = table.numbers()
        assert {key: int(numbers[key]) for key in table.held().tolist()} == plain.slot_of
        assert (fast.begins[numbers] == table.offset_of)[table.held()].all()
        held = (set(fast.cache.pinned()), set(fast.cache.reserved()), set(fast.cache.unused()))
        assert held == (plain.pinned, plain.reserved, plain.unused)
        assert fast.cache.stats == plain.stats
        table.check_integrity()


def test_what_no_table_can_hold_is_refused() -> None:
    table = Fast(2, Fixed(0)).cache.table
    for keys in ([0, 1, 2], [11], [99], [-1]):  # too many; no expert; no key
        with pytest.raises((ValueError, IndexError)):
            table.assign(keys)
    assert table.num_free == 2 and not table.held().size
    table.assign([3])
    for call in (lambda: table.assign([3]), lambda: table.land([99])):
        with pytest.raises((ValueError, IndexError)):
            call()
    cache = Fast(2, Fixed(0)).cache
    with pytest.raises(ValueError, match="two experts"):
        cache.take_over(np.zeros(UNEVEN.num_keys, np.int64))
    with pytest.raises(ValueError):
        cache.take_over(np.full(3, -1))
    with pytest.raises(ValueError):
        cache.release([5])


Begin = Callable[[int, IntArray, IntArray, int], Visit | PlainVisit]


def run_visits(tier: Tier, reader: Any, policy: Any, seed: int, most_tokens: int, begin: Begin) -> list[Any]:
    """Visits with prefetches between them, some of them given up; returns all that can be seen."""
    rng, seen, num_keys = np.random.default_rng(seed), list[Any](), tier.shape.num_experts
    for _ in range(6):
        for layer in range(SHAPE.num_layers):
            tokens, following = int(rng.integers(1, most_tokens + 1)), (layer + 1) % SHAPE.num_layers * num_keys
            ids = np.array([rng.permutation(SHAPE.num_experts)[: SHAPE.top_k] for _ in range(tokens)])
            policy.observe(layer, ids)
            experts, counts = np.unique(ids, return_counts=True)
            given_up = rng.random() < 0.1
            try:
                with begin(layer, experts, counts, tokens) as opened:
                    seen.append((opened.layer, opened.keys, opened.num_absent, opened.all_have_slots, opened.any_ready))
                    if tokens > 1 and rng.random() < 0.5:
                        opened.read_ahead(following + rng.permutation(num_keys)[: int(rng.integers(num_keys))])
                    for batch, offsets in opened.arrivals():
                        seen.append((batch.tolist(), offsets.tolist(), opened.all_have_slots))
                        if given_up:
                            break
            except ExpertReadError as error:
                seen.append((str(error), repr(error.__cause__)))
            absent = np.flatnonzero(~tier.prefetches.known((layer + 1) % SHAPE.num_layers)[0])
            keys = (absent + following)[: max(0, tier.prefetches.room)]
            tier.prefetches.submit(keys, rng.random(len(keys)))
            counted = asdict(tier.stats)
            counted.pop("stall_s")  # of the clock on the wall
            seen.append((counted, tier.snapshot(), sorted(reader.queued), tier.idle.seconds))
            tier.check_integrity()
    return seen


@settings(max_examples=150, deadline=None)
@given(
    num_slots=st.integers(1, 18),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 999),
    failing=st.frozensets(st.integers(0, SHAPE.total_experts - 1), max_size=2),
    large=st.frozensets(st.integers(0, SHAPE.num_layers - 1)),
    most_tokens=st.integers(1, 4),
    slices=st.none() | st.sampled_from([(2, 2, 2), (4, 3, 4)]),
)
def test_the_native_visit_goes_as_its_plain_twin(
    num_slots: int,
    policy: str,
    seed: int,
    failing: frozenset[int],
    large: frozenset[int],
    most_tokens: int,
    slices: tuple[int, ...] | None,
) -> None:
    sizes = None if slices else sizes_of(large)
    if sizes is not None and len(sizes.class_bytes) > 1:
        num_slots = max(num_slots, sizes.least_slots)
    fast, slow = (
        make_tier(num_slots, policy, seed, failing, idle_s=0.01, sizes=sizes, slices=slices or ()) for _ in range(2)
    )
    slow_tier = slow[0]
    parts = VisitParts(
        slow_tier._cache, slow_tier._loader, slow_tier.idle, slow_tier.profiler, slow_tier._errors.explain
    )

    def plain(layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> PlainVisit:
        return PlainVisit(parts, layer, experts, counts, num_tokens)

    assert run_visits(*fast, seed, most_tokens, fast[0].visit) == run_visits(*slow, seed, most_tokens, plain)


def test_a_visit_of_what_there_is_not_is_refused() -> None:
    tier, _, _ = make_tier(4)
    for layer, expert in ((SHAPE.num_layers, 0), (-1, 0), (0, SHAPE.num_experts), (0, -1)):
        with pytest.raises(ValueError):
            tier.visit(layer, np.array([expert]), np.ones(1, np.int64), 1)
    assert tier.visit(0, np.array([0]), np.ones(1, np.int64), 1).num_absent == 1
