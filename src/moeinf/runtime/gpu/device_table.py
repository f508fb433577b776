"""Decoding without the host: the device finds an expert's slot, chooses the victim, fetches what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.device import Device
from moeinf.gpu.ops import Ops
from moeinf.gpu.vector_ops import DirectTable
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.experts import Observer
from moeinf.runtime.gpu.host_tier import HostLink
from moeinf.runtime.policy.eviction import DevicePolicy
from moeinf.types import MoeShape


class DirectSlots:
    """The slot table of a device tier while the device owns it.

    Possible while every expert is on the device, or in pinned host memory that the device reads. `enter` hands the
    tier's table over, `leave` takes it back; in between, the host refreshes the scores by which victims are chosen
    after each token, and tells the observers what the token's routing was. To the scores, which so are a token old, the
    device adds what it knows: which layer runs, and what the token has used so far.
    """

    def __init__(
        self,
        device: Device,
        ops: Ops,
        tier: ExpertTier,
        link: HostLink,
        arena: DeviceArena,
        shape: MoeShape,
        policy: DevicePolicy,
        observers: Sequence[Observer],
        expert_bytes: int,
        *,
        allowed: bool,
        encoder_layers: int = 0,
    ) -> None:
        """allowed: False where the CPU is to compute experts, for which the host has to know the routing.

        encoder_layers: how many layers, the first ones, no token visits that is decoded.
        """
        self.active = False
        self._allowed = allowed
        self._device = device
        self._ops = ops
        self._tier = tier
        self._link = link
        self._arena = arena
        self._shape = shape
        self._policy = policy
        self._observers = observers
        self._expert_bytes = expert_bytes
        self._encoder_layers = encoder_layers
        self._table: DirectTable | None = None
        self._num_tables = 0
        layers, k, kind = shape.num_layers, shape.top_k, device.kind
        self._addresses = torch.zeros(k, dtype=torch.int64, device=kind)
        self._copies = torch.zeros((k, 2), dtype=torch.int64, device=kind)
        self._routings = torch.zeros((layers, k), dtype=torch.int32, device=kind)
        self._routings_host = device.pinned((layers, k), torch.int32)
        self._scores_host = device.pinned((shape.total_experts + 1,), torch.float32)
        self._misses_host = device.pinned((1,), torch.int64)

    @property
    def possible(self) -> bool:
        """Whether the device can reach every expert, and has slots for those of one token's layer."""
        tier = self._tier
        reached = tier.all_resident or (self._link.device_reaches_all and tier.num_slots >= self._shape.top_k)
        return self._allowed and reached

    @property
    def way(self) -> tuple[int, bool]:
        """Equal to what it was: so is all that the device is given for a token, and may be repeated from a recording.

        The number of the table, 0 while the host has it, and whether all experts are in the slots.
        """
        return (self._num_tables, self._tier.all_resident) if self.active else (0, False)

    def enter(self) -> None:
        """The device takes the table over; nothing may be on its way to a slot any more."""
        assert not self.active and self.possible
        self._tier.settle()
        slots = self._tier.slot_numbers()  # [layers * experts], -1 where absent
        key_of = np.full(self._arena.num_slots, -1, np.int32)
        held = np.flatnonzero(slots >= 0)
        key_of[slots[held]] = held
        if self._table is None or len(self._table.key_of) != len(key_of):
            self._table = self._new_table()
            self._num_tables += 1
        table = self._table
        table.slot_of.copy_(torch.from_numpy(slots.astype(np.int32)))
        table.key_of.copy_(torch.from_numpy(key_of))
        table.misses.zero_()
        self._link.order_compute()
        self.active = True
        self._send_scores()

    def leave(self) -> None:
        """The host takes the table back; does nothing where it has it."""
        if not self.active:
            return
        assert self._table is not None
        self._device.synchronise()
        self._tier.adopt(self._table.slot_of.cpu().numpy().astype(np.int64))
        self.active = False

    def forget(self) -> None:
        """The slots have changed: the next `enter` makes a new table."""
        assert not self.active
        self._table = None

    def slots(self, layer: int, ids: Tensor) -> Tensor:
        """Addresses [top_k] of the experts `ids` [1, top_k], which are there when what is submitted next runs."""
        table = self._table
        assert table is not None
        vectors, chosen = self._ops.vectors, ids.view(-1)
        self._routings[layer].copy_(chosen)
        vectors.claim(chosen, layer, table, self._addresses, self._copies)
        if not self._tier.all_resident:
            vectors.gather(self._copies, self._expert_bytes)
        return self._addresses

    def after_token(self) -> None:
        """Tells policy and observers what was used, counts, and sends new scores; the token is done."""
        if not self.active:
            return
        assert self._table is not None
        self._routings_host.copy_(self._routings, non_blocking=True)
        self._misses_host.copy_(self._table.misses, non_blocking=True)
        self._table.misses.zero_()
        self._device.synchronise()
        routings = self._routings_host.numpy()[self._encoder_layers :].astype(np.int64)
        for layer, ids in enumerate(routings, self._encoder_layers):
            for observer in self._observers:
                observer.observe(layer, ids[None])
        self._tier.count_direct(routings.size, int(self._misses_host[0]))
        self._send_scores()

    def _send_scores(self) -> None:
        assert self._table is not None
        if not self._tier.all_resident:
            scores, used = self._policy.token_scores()
            host = self._scores_host.numpy()
            host[:-1], host[-1] = scores.ravel(), used
            self._table.scores.copy_(self._scores_host, non_blocking=True)

    def _new_table(self) -> DirectTable:
        kind, keys = self._device.kind, self._shape.total_experts
        host = np.zeros(keys, np.int64)  # of no use where the device has every expert
        if not self._tier.all_resident:
            host = self._link.reachable_addresses()
        return DirectTable(
            slot_of=torch.full((keys,), -1, dtype=torch.int32, device=kind),
            key_of=torch.full((self._arena.num_slots,), -1, dtype=torch.int32, device=kind),
            slot_address=torch.from_numpy(self._arena.slot_addresses).to(kind),
            host=torch.from_numpy(host).to(kind),
            scores=torch.zeros(keys + 1, dtype=torch.float32, device=kind),
            misses=torch.zeros(1, dtype=torch.int64, device=kind),
            num_experts=self._shape.num_experts,
            step=self._policy.step,
        )
