"""The hot path on a GPU: the experts of one layer, in device slots, copied there from host memory where missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from moeinf._native import Visit
from moeinf.gpu.device import Device
from moeinf.gpu.matrix import DeviceRouting
from moeinf.runtime.experts import tell_guess
from moeinf.runtime.gpu.cpu_experts import CpuExperts
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.gpu.device_table import DeviceTable
from moeinf.runtime.gpu.output_norms import OutputNorms
from moeinf.runtime.policy.policy_protocol import Listener
from moeinf.runtime.prefetch import Prefetcher
from moeinf.runtime.routing_check import RoutingCheck
from moeinf.types import Float32Array, IntArray, MoeShape


@dataclass(slots=True)
class Guess:
    """The model's guess at the routing of a later layer, as DeviceExperts.expect was given it."""

    layer: int
    routing: DeviceRouting


class DeviceExperts:
    """moeinf.models.layers.protocol.Experts in the slots of a device tier.

    One token: the host learns the routing (the only wait), queues copies of what is missing, and meanwhile the device
    computes what is resident; then the rest, behind its copies. All of it may be recorded (see DecodeProgram). Where
    every expert is on the device, or within its reach in pinned memory, DeviceTable takes over and the host learns
    nothing until the token is done. Many tokens: batch by batch as slots allow, copies beside products; in a recorded
    step of several beams that is host work between its graphs.

    The result does not depend on what was resident: outputs are summed in the order of the routing.
    """

    def __init__(
        self,
        compute: DeviceCompute,
        slots: DeviceSlots,
        observers: Sequence[Listener],
        prefetcher: Prefetcher | None,
        table: DeviceTable,
        cpu: CpuExperts | None,
        model: str = "MODEL",
    ) -> None:
        """model: its name, for errors."""
        device, shape = compute.device, slots.tier.shape
        self._check = RoutingCheck(model)
        self._device, self._ops, self._program, self._parts = device, compute.ops, compute.program, compute.parts
        self._tier, self._copies, self._arena = slots.tier, slots.copies, slots.arena
        self._shape = shape
        self._observers = observers
        self._prefetcher = prefetcher
        self._expecting = [each for each in observers if each.wants_guesses]
        self._table = table
        self._cpu = cpu
        self._profiler = slots.tier.profiler
        self._guess: Guess | None = None
        self._norms = OutputNorms()
        self._visit: Visit | None = None  # of one token, between the device's stretches of work
        self._arrivals: Iterator[tuple[IntArray, IntArray]] = iter(())
        k = shape.top_k
        self._ids, self._guessed_ids = (device.pinned((1, k), torch.int32) for _ in range(2))
        self._weights, self._guessed_weights = (device.pinned((1, k), torch.float32) for _ in range(2))
        self._ids_host, self._guessed_ids_host = self._ids.numpy(), self._guessed_ids.numpy()
        self._once_each = np.ones(k, np.int64)
        self._present, self._coming = Addresses(device, shape), Addresses(device, shape)

    @property
    def wants_expectations(self) -> bool:
        prefetcher = self._prefetcher
        return (
            prefetcher is not None
            and prefetcher.wants_expectations
            and not self._tier.all_resident
            and not self._table.active
        )

    def expect(self, layer: int, guess: DeviceRouting) -> None:
        self._guess = Guess(layer, guess)

    def norm_outputs(self, layer: int, scale: Tensor, eps: float) -> None:
        self._norms.add(layer, scale, eps)
        if self._cpu is not None:
            self._cpu.norm_outputs(layer, scale, eps)

    def run(self, layer: int, hidden: Tensor, routing: DeviceRouting, out: Tensor) -> None:
        """out += the experts' weighted sum; hidden, out f32 [tokens, H]; routing.ids int32.

        Raises ExpertReadError, NotFiniteError. Runs belong into a `step`.
        """
        guess, self._guess = self._guess, None
        if self._table.active:
            self._run_resident(layer, hidden, routing, out)
        elif len(hidden) == 1:
            self._run_one(layer, hidden, routing, guess, out)
        else:
            self._program.outside(lambda: self._run_many(layer, hidden, routing, guess, out))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step of the model: however it ends, also in a repetition of a recording, no visit stays open."""
        try:
            yield
        finally:
            if self._visit is not None:
                self._visit.close()
                self._visit = None

    # ---- one token, slots chosen by the device

    def _run_resident(self, layer: int, hidden: Tensor, routing: DeviceRouting, out: Tensor) -> None:
        addresses = self._table.addresses(layer, routing)
        act, outputs = self._scratch(1)
        self._compute(layer, hidden, addresses, act, outputs)
        self._ops.vectors.combine(outputs, self._norms.weights(layer, outputs, routing.weights), out)

    # ---- one token, slots chosen by the host

    def _run_one(self, layer: int, hidden: Tensor, routing: DeviceRouting, guess: Guess | None, out: Tensor) -> None:
        self._ids.copy_(routing.ids, non_blocking=True)
        if guess is not None:
            self._guessed_ids.copy_(guess.routing.ids, non_blocking=True)
            self._guessed_weights.copy_(guess.routing.weights, non_blocking=True)
        self._weights.copy_(routing.weights, non_blocking=True)
        if self._cpu is not None:
            self._cpu.hidden.copy_(hidden, non_blocking=True)
        guessed_layer = None if guess is None else guess.layer
        act, outputs = self._scratch(1)
        if self._cpu is not None:
            outputs.zero_()  # of the CPU's share
        self._program.outside(lambda: self._request(layer))
        self._compute(layer, hidden, self._present.sent(), act, outputs)
        self._program.outside(lambda: self._collect(layer, guessed_layer))
        self._compute(layer, hidden, self._coming.sent(), act, outputs)
        self._ops.vectors.combine(outputs, self._norms.weights(layer, outputs, routing.weights), out)
        if self._cpu is not None:
            out.add_(self._cpu.output)

    def _request(self, layer: int) -> None:
        """Waits for the routing, queues what it misses, and says what is there."""
        self._profiler.lap("dispatch")
        self._device.synchronise()
        self._profiler.lap("device")
        ids = self._ids_host.astype(np.int64)
        self._tell(layer, ids, self._weights.numpy())
        experts = ids[0].copy()
        experts.sort()
        if self._cpu is not None:
            experts = self._cpu.take_share(layer, experts, self._tier.prefetches.known(layer)[0])
        self._visit = self._tier.visit(layer, experts, self._once_each[: len(experts)], 1)
        assert self._visit.all_have_slots, "an expert that is still computed could lose its slot to one that waits"
        self._arrivals = self._visit.arrivals()
        self._profiler.lap("policy")
        self._put(layer, self._present, islice(self._arrivals, 1))

    def _collect(self, layer: int, guessed_layer: int | None) -> None:
        """While the device computes what was there: prefetches, the CPU's share, and the rest as it comes."""
        self._profiler.lap("dispatch")
        assert self._visit is not None
        if self._prefetcher is not None:
            if guessed_layer is not None:
                ids = self._guessed_ids_host.astype(np.int64)
                tell_guess(self._expecting, guessed_layer, ids, self._guessed_weights.numpy())
            self._prefetcher.after_routing(self._visit)
            self._profiler.lap("policy")
        if self._cpu is not None:
            self._cpu.compute(self._ids_host, self._weights.numpy())
            self._profiler.lap("cpu experts")
        self._put(layer, self._coming, self._arrivals)
        self._visit.close()

    def _put(self, layer: int, addresses: Addresses, batches: Iterator[tuple[IntArray, IntArray]]) -> None:
        landed = []
        for experts, offsets in batches:
            self._copies.order_compute(experts + layer * self._shape.num_experts)
            landed.append((experts, self._arena.addresses(offsets)))
        addresses.put(self._ids_host[0], landed)
        self._profiler.lap("dispatch")

    # ---- many tokens

    def _run_many(self, layer: int, hidden: Tensor, routing: DeviceRouting, guess: Guess | None, out: Tensor) -> None:
        ids = routing.ids.cpu().numpy().astype(np.int64)  # waits
        self._tell(layer, ids, routing.weights.cpu().numpy())
        self._profiler.lap("device")
        if guess is not None and self._prefetcher is not None:
            guessed_ids, weights = (values.cpu().numpy() for values in guess.routing)
            tell_guess(self._expecting, guess.layer, guessed_ids.astype(np.int64), weights)
        experts, counts = np.unique(ids, return_counts=True)
        order = np.argsort(last_uses(ids, experts), kind="stable")  # what the last tokens use is there at the end
        with self._tier.visit(layer, experts[order], counts[order], len(ids)) as visit:
            if self._prefetcher is not None:
                self._prefetcher.after_routing(visit)
            self._profiler.lap("policy")
            act, outputs = self._scratch(len(ids))
            matrices, parts = self._ops.matrices, self._parts[layer]
            for landed, offsets in visit.arrivals():
                self._copies.order_compute(landed + layer * self._shape.num_experts)
                groups = matrices.make_groups(ids, landed, self._arena.addresses(offsets), self._device.kind)
                matrices.gate_up_grouped(hidden, groups, parts, act)
                matrices.down_grouped(act, groups, parts, outputs)
                self._profiler.lap("dispatch")
        self._ops.vectors.combine(outputs, self._norms.weights(layer, outputs, routing.weights), out)

    # ---- both

    def _tell(self, layer: int, ids: IntArray, weights: Float32Array) -> None:
        """Tells who watches the routing, once it is sound. Raises NotFiniteError."""
        self._check(layer, ids, weights)
        for observer in self._observers:
            observer.routed(layer, ids, weights)

    def _scratch(self, tokens: int) -> tuple[Tensor, Tensor]:
        """act [tokens * top_k, intermediate] and the outputs [tokens * top_k, hidden], of each token-expert pair."""
        rows, device, parts = tokens * self._shape.top_k, self._device.kind, self._parts[0]
        return (
            torch.empty((rows, parts.up.rows), dtype=torch.float32, device=device),
            torch.empty((rows, parts.down.rows), dtype=torch.float32, device=device),
        )

    def _compute(self, layer: int, hidden: Tensor, addresses: Tensor, act: Tensor, outputs: Tensor) -> None:
        self._ops.matrices.gate_up(hidden, addresses, self._parts[layer], act)
        self._ops.matrices.down(act, addresses, self._parts[layer], outputs)


class Addresses:
    """Where on the device the blocks of one token's experts lie, in the order of its routing.

    The address is 0 for an expert that is not computed in this turn.
    """

    def __init__(self, device: Device, shape: MoeShape) -> None:
        self._of_expert = np.zeros(shape.num_experts, np.int64)
        self._staged = device.pinned((shape.top_k,), torch.int64)
        self._staged_host = self._staged.numpy()
        self._tensor = torch.zeros(shape.top_k, dtype=torch.int64, device=device.kind)

    def put(self, ids: IntArray, landed: Iterable[tuple[IntArray, IntArray]]) -> None:
        """The addresses of experts that are among `ids` [top_k], batch by batch.

        The device must have read what was put before: the host has waited for it since.
        """
        for experts, addresses in landed:
            self._of_expert[experts] = addresses
        self._staged_host[:] = self._of_expert[ids]
        self._of_expert[ids] = 0

    def sent(self) -> Tensor:
        """[top_k], on the device: what was put when this has its turn there, also in a repeated stretch."""
        return self._tensor.copy_(self._staged, non_blocking=True)


def last_uses(ids: IntArray, experts: IntArray) -> IntArray:
    """The last token of `ids` [tokens, top_k] that uses each of the experts (ascending, all of them used)."""
    last = np.zeros(len(experts), np.int64)
    tokens = np.repeat(np.arange(len(ids)), ids.shape[1])
    np.maximum.at(last, np.searchsorted(experts, ids.ravel()), tokens)
    return last
