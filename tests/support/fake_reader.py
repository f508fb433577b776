"""Stands-in for reader, disk and kernel, whose time is that of a clock which the tests move."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from moeinf._native import IdleWindow, ReadFailure
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import LOAD_BYTES_AHEAD, Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slices import SliceScores, shape_of_slices
from moeinf.runtime.cache.slot_sizes import SlotSizes, equal_slots, slot_sizes
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import DRAIN_S, ExpertTier
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import make_policy
from moeinf.runtime.policy.policy_protocol import DevicePolicy, EvictionPolicy
from moeinf.types import ExpertLayout, Float32Array, FloatArray, IntArray, MoeShape, Profiler, TensorSpec

SHAPE = MoeShape(num_layers=3, num_experts=6, top_k=2)
LAYOUT = ExpertLayout((TensorSpec("gate", "f32", (2, 3), 0, 24), TensorSpec("down", "f32", (4,), 64, 16)), 80, 4096)
SLOTS_START = 4096  # slots need not begin where the arena does


class FakeReader:
    """Lands reads in a random order and writes each expert's key into its slot; may fail chosen keys."""

    def __init__(self, memory: np.ndarray, seed: int, failing: frozenset[int] = frozenset(), slices: int = 1) -> None:
        """slices: of an expert, each with a key of its own."""
        self._keys_of_layer = SHAPE.num_experts * slices
        self._memory = memory
        self._random = random.Random(seed)
        self._failing = failing
        self.queued: dict[int, tuple[int, float]] = {}  # key -> destination, priority
        self.submitted = 0

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        columns = zip(keys, files, offsets, destinations, priorities, strict=True)
        for key, file, offset, destination, priority in columns:
            assert int(key) not in self.queued, "read twice at once"
            assert (file, offset) == (key // self._keys_of_layer, key % self._keys_of_layer * num_bytes)
            self.queued[int(key)] = int(destination), float(priority)
            self.submitted += 1

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
            if key in self.queued:
                self.queued[key] = self.queued[key][0], priority

    def cancel(self, keys: IntArray) -> IntArray:
        cancelled = [key for key in keys.tolist() if self._random.random() < 0.5]
        for key in cancelled:
            del self.queued[key]
        return np.array(cancelled, np.int64)

    def known(self, keys: IntArray) -> IntArray:
        return np.array([key for key in keys.tolist() if key in self.queued], np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        assert all(key in self.queued for key in keys.tolist())
        some = self._random.sample(keys.tolist(), self._random.randint(1, len(keys)))
        for key in some:
            if key in self._failing:
                del self.queued[key]
                failure = ReadFailure("input/output error")
                failure.key = key
                raise failure
        return self.land(some)

    def poll(self) -> ReadDone:
        some = [key for key in self.queued if self._random.random() < 0.5]
        failed = [key for key in some if key in self._failing]
        for key in failed:
            del self.queued[key]
        return ReadDone(self.land([key for key in some if key not in failed]), np.array(failed, np.int64))

    def land(self, keys: list[int]) -> IntArray:
        for key in keys:
            destination, _ = self.queued.pop(key)
            self._memory[destination : destination + LAYOUT.stride_bytes].view(np.float32)[:] = key
        return np.array(keys, np.int64)

    backend, notice = "fake", ""

    def bytes_read(self) -> int:
        return 0

    def busy_seconds(self) -> float:
        return 0.0

    def close(self) -> bool:
        return True


class Clock:
    """Seconds that pass only where a test says so."""

    def __init__(self) -> None:
        self.now = 0.0


class Disk(FakeReader):
    """Reads one expert after the other, `read_s` each, while the clock goes on; demand first, then first come."""

    def __init__(self, memory: np.ndarray, clock: Clock, shape: MoeShape, read_s: float = 1.0) -> None:
        super().__init__(memory, 0)
        self._clock = clock
        self._shape = shape
        self._read_s = read_s
        self._free_at = 0.0  # when the read under way ends
        self._landed: list[int] = []
        self.reads: list[int] = []  # every key submitted
        self.busy_s = 0.0

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        self._catch_up()
        if not self.queued:
            self._free_at = max(self._free_at, self._clock.now)
        for key, destination, priority in zip(keys.tolist(), destinations.tolist(), priorities.tolist(), strict=True):
            assert key not in self.queued and key not in self._landed, "read twice at once"
            self.queued[key] = destination, priority
        self.reads += keys.tolist()

    def cancel(self, keys: IntArray) -> IntArray:
        self._catch_up()
        cancelled = [key for key in keys.tolist() if key in list(self._in_order())[1:]]
        for key in cancelled:
            del self.queued[key]
        return np.array(cancelled, np.int64)

    def known(self, keys: IntArray) -> IntArray:
        return np.array([key for key in keys.tolist() if key in self.queued or key in self._landed], np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        self._catch_up()
        wanted = set(keys.tolist())
        assert wanted and wanted <= self.queued.keys() | set(self._landed)
        while not wanted & set(self._landed):
            self._clock.now = self._free_at + self._read_s
            self._catch_up()
        done = [key for key in self._landed if key in wanted]
        self._landed = [key for key in self._landed if key not in wanted]
        return np.array(done, np.int64)

    def poll(self) -> ReadDone:
        self._catch_up()
        done, self._landed = self._landed, []
        return ReadDone(np.array(done, np.int64), np.array([], np.int64))

    def _in_order(self) -> list[int]:
        return sorted(self.queued, key=lambda key: -self.queued[key][1])  # stable

    def _catch_up(self) -> None:
        while self.queued and self._free_at + self._read_s <= self._clock.now:
            key = self._in_order()[0]
            self.land([key])
            self._landed.append(key)
            self._free_at += self._read_s
            self.busy_s += self._read_s


class FakeKernel:
    """Finds each expert's key at its offset; an output is the key times the token's hidden state. Takes its time."""

    def __init__(self, memory: np.ndarray, num_experts: int, clock: Clock | None = None, expert_s: float = 0.0) -> None:
        self._memory = memory
        self._num_experts = num_experts
        self._clock = clock or Clock()
        self._expert_s = expert_s
        self.batches: list[list[int]] = []  # experts of each compute call
        self.stop_after: int | None = None  # compute calls, then an interrupt

    def begin(
        self, hidden: Float32Array, ids: IntArray, weights: Float32Array, layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        self._hidden, self._ids, self._weights = hidden, ids, weights
        self._keys: dict[int, float] = {}
        experts, counts = np.unique(ids, return_counts=True)
        return experts, counts

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        if self.stop_after is not None and len(self.batches) >= self.stop_after:
            raise KeyboardInterrupt
        assert len(experts) == len(offsets) > 0
        for expert, offset in zip(experts.tolist(), offsets.tolist(), strict=True):
            assert expert in self._ids and expert not in self._keys, "not routed to, or computed twice"
            block = self._memory[offset : offset + LAYOUT.stride_bytes].view(np.float32)
            assert (block == block[0]).all() and int(block[0]) % self._num_experts == expert, "another lies there"
            self._keys[expert] = float(block[0])
            self._clock.now += self._expert_s
        self.batches.append(experts.tolist())

    def norm_outputs(self, layer: int, scale: Float32Array, eps: float) -> None:
        raise AssertionError("these outputs have no norm")

    def finish(self, out: Float32Array) -> None:
        assert self._keys.keys() == set(self._ids.ravel().tolist()), "an expert was left out"
        for place in range(self._ids.shape[1]):
            keys = np.array([self._keys[expert] for expert in self._ids[:, place].tolist()], np.float32)
            out += self._weights[:, place, None] * (keys[:, None] * self._hidden)


class Tier(ExpertTier):
    """An ExpertTier whose memory the tests can look into."""

    memory: np.ndarray


def errors_of(shape: MoeShape, slices: int = 1) -> ReadErrors:
    shards = [Path(f"experts-{layer:05d}.bin") for layer in range(shape.num_layers)]
    return ReadErrors(shards, shape.num_experts, slices=slices)


def sizes_of(large: Collection[int]) -> SlotSizes:
    """Of slots, those for the experts of these layers being twice as large as the others."""
    return slot_sizes([LAYOUT.stride_bytes * (1 + (layer in large)) for layer in range(SHAPE.num_layers)], SHAPE)


def make_tier(
    num_slots: int,
    policy: str = "lru",
    seed: int = 0,
    failing: frozenset[int] = frozenset(),
    *,
    idle_s: float = 0.0,
    load_bytes_ahead: int = LOAD_BYTES_AHEAD,
    drain_s: float = DRAIN_S,
    slices: tuple[int, ...] = (),
    sizes: SlotSizes | None = None,
    reader_of: Callable[[np.ndarray], FakeReader] | None = None,
) -> tuple[Tier, FakeReader, DevicePolicy]:
    """idle_s: the window that is measured between visits, on a clock that stands still while one of them begins.

    slices: how many an expert of each layer is cut into; a slot then holds one of them.
    sizes: of slots, none of which is smaller than the others are without. reader_of: given the memory, in place of
    FakeReader; no page is then taken ahead of its reads, which the system would do in its own time.
    """
    most = max(slices, default=1)
    shape = shape_of_slices(SHAPE, most)
    sizes = sizes or equal_slots(LAYOUT.stride_bytes, shape)
    memory = np.full(SLOTS_START + sizes.num_bytes(num_slots), 0xA5, np.uint8)
    reader = FakeReader(memory, seed, failing, most) if reader_of is None else reader_of(memory)
    chosen = make_policy(policy, SHAPE, ActivationCollection(SHAPE), num_slots)
    region = SlotRegion(memory, SLOTS_START, num_slots, sizes)
    if slices:
        exists = np.arange(most) < np.repeat(slices, SHAPE.num_experts)[:, None]
        cache = ExpertCache(shape, region, SliceScores(chosen, most), most, exists.ravel())
    else:
        cache = ExpertCache(SHAPE, region, chosen)
    times = itertools.count(0.0, idle_s)
    idle = IdleWindow(lambda: next(times), seconds=idle_s)
    loader = Loader(cache, reader, memory if reader_of is None else None, load_bytes_ahead)
    tier = Tier(cache, loader, errors_of(SHAPE, most), Profiler(), idle, drain_s)
    tier.memory = memory
    return tier, reader, chosen


def visit(tier: Tier, policy: EvictionPolicy, layer: int, ids: np.ndarray) -> list[int]:
    """One layer's visit; checks that every block is that of its expert at the moment of use."""
    policy.observe(layer, ids)
    experts, counts = np.unique(ids, return_counts=True)
    order: list[int] = []
    with tier.visit(layer, experts, counts, len(ids)) as opened:
        for batch, offsets in opened.arrivals():
            for expert, offset in zip(batch.tolist(), offsets.tolist(), strict=True):
                block = tier.memory[offset : offset + LAYOUT.stride_bytes].view(np.float32)
                assert (block == layer * SHAPE.num_experts + expert).all(), "the slot holds another expert"
                order.append(expert)
    assert sorted(order) == experts.tolist(), "each expert comes once"
    return order
