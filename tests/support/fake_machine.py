"""A device tier over host slots over a disk, none of them real, and what is computed checked at the moment of use."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import numpy as np

from moeinf._native import IdleWindow
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.slot_sizes import SlotSizes, equal_slots
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.host_link import HostLink
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.runtime.io.reader_protocol import ReadDone, Reader
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import make_policy
from moeinf.types import IntArray, Profiler
from tests.support.fake_device import COMPUTE_STREAM, FakeCopier, address_of
from tests.support.fake_reader import LAYOUT, SHAPE, SLOTS_START, FakeReader, errors_of

STRIDE = LAYOUT.stride_bytes
EQUAL = equal_slots(STRIDE, SHAPE)
NONE = np.empty(0, np.int64)


class Compute:
    """What computes: a stream with a number."""

    stream = COMPUTE_STREAM


class Machine:
    """A device of `device_slots`, a host of `host_slots`, and what is computed checked at the moment of use."""

    def __init__(
        self,
        device_slots: int,
        host_slots: int,
        *,
        policy: str = "lru",
        seed: int = 0,
        failing: frozenset[int] = frozenset(),
        pinned_bytes: int | None = None,
        copying: Mapping[str, int] | None = None,
        sizes: SlotSizes = EQUAL,
        host_sizes: SlotSizes | None = None,
    ) -> None:
        """copying: sizes of Copies other than its own. sizes: of slots; host_sizes: of the host's, if others."""
        host_sizes = host_sizes or sizes
        self.device = np.full(sizes.num_bytes(device_slots), 0x5A, np.uint8)
        self.host = np.full(SLOTS_START + host_sizes.num_bytes(host_slots), 0xA5, np.uint8)
        disk = self.opened(seed, failing)
        self.copier = FakeCopier(seed, pinned_bytes=pinned_bytes)
        self.policy = make_policy(policy, SHAPE, ActivationCollection(SHAPE), device_slots)
        errors = errors_of(SHAPE)
        self.copies = Copies(self.copier, sizes.by_key(SHAPE.num_experts), Compute(), **(copying or {}))
        cache = ExpertCache(SHAPE, SlotRegion(None, 0, device_slots, sizes), self.policy)
        behind = SlotRegion(self.host, SLOTS_START, host_slots, host_sizes)
        self.slots = HostSlots(cache, behind, disk, self.copier, errors)
        self.link = HostLink(self.slots, self.copies, lambda offsets: address_of(self.device, offsets))
        idle = IdleWindow(lag_s=self.copies.lag_s)
        self.tier = ExpertTier(cache, Loader(cache, self.link), errors, Profiler(), idle)

    def opened(self, seed: int, failing: frozenset[int]) -> Reader:
        """What reads from the disk."""
        self.disk = FakeReader(self.host, seed, failing)
        return self.disk

    def visit(self, layer: int, ids: IntArray) -> list[list[int]]:
        """One layer's visit; the batches in which its experts came."""
        self.policy.observe(layer, ids)
        experts, counts = np.unique(ids, return_counts=True)
        batches = []
        with self.tier.visit(layer, experts, counts, len(ids)) as visit:
            for batch, offsets in visit.arrivals():
                keys = batch + layer * SHAPE.num_experts
                self.copies.order_compute(keys)
                self.copier.compute()
                for key, offset in zip(keys.tolist(), offsets.tolist(), strict=True):
                    assert (self.on_device(offset) == key).all(), "the slot holds another expert, or none so far"
                batches.append(batch.tolist())
        assert sorted(chain(*batches)) == experts.tolist(), "each expert comes once"
        return batches

    def on_device(self, offset: int) -> np.ndarray:
        return self.device[offset : offset + STRIDE].view(np.float32)

    def check(self) -> None:
        self.tier.check_integrity()
        self.slots.check_integrity()
        self.link.check_integrity()

    def hold_polls(self) -> None:
        """Nothing ends on the disk unless it is waited for."""
        self.disk.poll = lambda: ReadDone(NONE, NONE)  # type: ignore[method-assign]
