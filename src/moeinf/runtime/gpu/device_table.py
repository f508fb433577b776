"""Device-resident decode: the device finds an expert's slot, chooses the victim, and fetches what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.gpu.vector_ops import SlotTensors
from moeinf.runtime.cache.tier import Lease
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.policy.policy_protocol import DevicePolicy, Listener
from moeinf.types import IntArray


class DeviceTable:
    """The slot table of a device tier while the device owns it.

    Possible while every expert is on the device, or in pinned host memory that the device reads. `enter` leases the
    slots from the tier, `leave` gives them back. In between, the host tells the observers after each token what its
    routing was, and sends new scores by which the device chooses victims. These are a token old; the device adds what
    it knows itself: which layer runs, and what the token has used so far.
    """

    def __init__(
        self,
        compute: DeviceCompute,
        slots: DeviceSlots,
        policy: DevicePolicy,
        observers: Sequence[Listener],
        *,
        allowed: bool,
        encoder_layers: int = 0,
    ) -> None:
        """allowed: False where the CPU is to compute experts, for which the host has to know the routing.

        encoder_layers: how many layers, the first ones, no token visits that is decoded.
        """
        device, shape = compute.device, slots.tier.shape
        self._allowed = allowed
        self._device = device
        self._ops = compute.ops
        self._tier, self._copies, self._host, self._arena = slots.tier, slots.copies, slots.host, slots.arena
        self._shape = shape
        self._policy = policy
        self._observers = observers
        self._wants_weights = any(each.wants_weights for each in observers)
        self._sizes = slots.tier.sizes
        self._encoder_layers = encoder_layers
        self._lease: Lease | None = None
        self._table: SlotTensors | None = None
        self._num_tables = 0
        layers, k, kind = shape.num_layers, shape.top_k, device.kind
        self._addresses = torch.zeros(k, dtype=torch.int64, device=kind)
        self._to_fetch = torch.zeros((k, 2), dtype=torch.int64, device=kind)
        self._routings = torch.zeros((layers, k), dtype=torch.int32, device=kind)
        self._routings_host = device.pinned((layers, k), torch.int32)
        self._weights = torch.zeros((layers, k), dtype=torch.float32, device=kind)  # only where somebody wants them
        self._weights_host = device.pinned((layers, k), torch.float32)
        self._scores_host = device.pinned((shape.num_keys + 1,), torch.float32)
        self._misses_host = device.pinned((len(self._sizes.class_bytes),), torch.int64)

    @property
    def active(self) -> bool:
        """Whether the device owns the slots now."""
        return self._lease is not None

    @property
    def possible(self) -> bool:
        """Whether the device can reach every expert, and has slots of each size for those of one token's layer."""
        tier = self._tier
        reached = tier.all_resident or (self._host.device_reaches_all and tier.num_slots >= self._sizes.least_slots)
        return self._allowed and reached

    @property
    def mode(self) -> tuple[int, bool]:
        """As long as this is equal, the device is given the same for each token, which may be repeated as recorded.

        It is the number of the device's table, 0 while the host has the slots, and whether the slots hold all experts.
        """
        return (self._num_tables, self._tier.all_resident) if self.active else (0, False)

    def enter(self) -> None:
        """The device takes the slots over. May wait for reads."""
        assert not self.active and self.possible
        lease = self._tier.lease()
        try:
            self._send(lease.slots)
        except BaseException:
            self._tier.reclaim(lease.slots)
            raise
        self._lease = lease

    def _send(self, slots: IntArray) -> None:
        """Brings the numbers of the slots, and the scores, to the device."""
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
        self._copies.order_compute()
        self._send_scores()

    def leave(self) -> None:
        """The host takes the slots back; does nothing where it has them."""
        if not self.active:
            return
        assert self._table is not None
        self._device.synchronise()
        self._tier.reclaim(self._table.slot_of.cpu().numpy().astype(np.int64))
        self._lease = None

    def forget(self) -> None:
        """The slots have changed: the next `enter` makes a new table."""
        assert not self.active
        self._table = None

    def addresses(self, layer: int, routing: DeviceRouting) -> Tensor:
        """Addresses [top_k] of the experts of one token, which are there when what is submitted next runs."""
        table = self._table
        assert table is not None
        vectors, chosen = self._ops.vectors, routing.ids.view(-1)
        self._routings[layer].copy_(chosen)
        if self._wants_weights:
            self._weights[layer].copy_(routing.weights.view(-1))
        vectors.claim(chosen, layer, table, self._addresses, self._to_fetch)
        if not self._tier.all_resident:
            vectors.gather(self._to_fetch, self._sizes.layer_bytes[layer])
        return self._addresses

    def after_token(self) -> None:
        """Tells policy and observers what was used, counts, and sends new scores; the token is done."""
        if self._lease is None:
            return
        assert self._table is not None
        self._routings_host.copy_(self._routings, non_blocking=True)
        self._misses_host.copy_(self._table.misses, non_blocking=True)
        self._table.misses.zero_()
        if self._wants_weights:
            self._weights_host.copy_(self._weights, non_blocking=True)
        self._device.synchronise()
        routings = self._routings_host.numpy()[self._encoder_layers :].astype(np.int64)
        for layer, ids in enumerate(routings, self._encoder_layers):
            for observer in self._observers:
                observer.routed(layer, ids[None], self._weights_host[layer].numpy()[None])
        self._lease.count(routings.size, self._misses_host.tolist())
        self._send_scores()

    def _send_scores(self) -> None:
        assert self._table is not None
        if not self._tier.all_resident:
            scores, used = self._policy.token_scores()
            host = self._scores_host.numpy()
            host[:-1], host[-1] = scores.ravel(), used
            self._table.scores.copy_(self._scores_host, non_blocking=True)

    def _new_table(self) -> SlotTensors:
        kind, keys = self._device.kind, self._shape.num_keys
        host = np.zeros(keys, np.int64)  # of no use where the device has every expert
        if not self._tier.all_resident:
            host = self._host.device_addresses()
        return SlotTensors(
            slot_of=torch.full((keys,), -1, dtype=torch.int32, device=kind),
            key_of=torch.full((self._arena.num_slots,), -1, dtype=torch.int32, device=kind),
            slot_address=torch.from_numpy(self._arena.slot_addresses).to(kind),
            slot_class=torch.from_numpy(self._sizes.order[: self._arena.num_slots].astype(np.int32)).to(kind),
            host=torch.from_numpy(host).to(kind),
            scores=torch.zeros(keys + 1, dtype=torch.float32, device=kind),
            misses=torch.zeros(len(self._sizes.class_bytes), dtype=torch.int64, device=kind),
            num_experts=self._shape.num_experts,
            step=self._policy.step,
            layer_class=self._sizes.of_layers.tolist(),
        )
