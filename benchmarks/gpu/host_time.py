"""The host's time for a layer of experts on a GPU, without one: device, kernels, copier and disk do nothing.

    python benchmarks/gpu/host_time.py [--resident 0.2] [--tokens 400] [--no-prefetch]

48 layers of 128 experts, top-8, all of them in host memory, a recorded decode step repeated. The routing is drawn: a
layer's experts are unequally popular, and a part of them was used by the token before. Printed per layer: all of the
host's work, and what of it stands between the routing and the first of the experts' products (exposed: the device
waits for it). Beside it comes what the driver takes for two launches of graphs, and for a submission of copies.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from moeinf._native import IdleWindow
from moeinf.gpu.arena import DeviceArena
from moeinf.gpu.matrix import DeviceRouting, expert_parts_of
from moeinf.gpu.program import DecodeProgram
from moeinf.runtime.cache.cache import ExpertCache
from moeinf.runtime.cache.loader import Loader
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.cache.slot_sizes import equal_slots
from moeinf.runtime.cache.table import SlotRegion
from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.gpu.copies import Copies
from moeinf.runtime.gpu.device_experts import DeviceExperts
from moeinf.runtime.gpu.device_slots import DeviceCompute, DeviceSlots
from moeinf.runtime.gpu.host_link import HostLink
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.runtime.io.reader_protocol import ReadDone
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import make_policy
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.prefetch import Prefetcher
from moeinf.types import ExpertForm, ExpertLayout, MoeShape, Profiler, TensorSpec

SHAPE = MoeShape(num_layers=48, num_experts=128, top_k=8)
LAYOUT = ExpertLayout(
    (
        TensorSpec("gate", "bf16", (4, 8), 0, 64),
        TensorSpec("up", "bf16", (4, 8), 64, 64),
        TensorSpec("down", "bf16", (8, 4), 128, 64),
    ),
    192,
    4096,
)
REPEATED = 0.6  # of a token's experts are of the token before
GUESSED = 0.8  # of the next layer's experts are in the model's guess
NONE = np.empty(0, np.int64)


class IdleDevice:
    """Replays nothing; each wait for the device is a visit, for which the routing is there when it ends."""

    kind, stream = torch.device("cpu"), 7

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []  # ids, the guess, and their weights, in the order in which they are taken
        self.waits: list[int] = []  # ns at which each wait ended
        self.launches: list[int] = []  # ns of each replay
        self.routing: Any = iter(())  # of the visits to come

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.zeros(shape, dtype=dtype)
        self.arrays.append(tensor.numpy())
        return tensor

    def synchronise(self) -> None:
        for array, values in zip(self.arrays, next(self.routing), strict=False):
            array[:] = values
        self.waits.append(time.perf_counter_ns())

    def end_capture(self) -> Any:
        return SimpleNamespace(replay=lambda: self.launches.append(time.perf_counter_ns()))

    def begin_program(self) -> None: ...

    def begin_capture(self) -> None: ...

    def drop_capture(self) -> None: ...


class IdleCopier:
    """Every copy is done as soon as it is asked for."""

    def __init__(self) -> None:
        self.tickets = self.copied = 0

    def copy(self, sources: np.ndarray, destinations: np.ndarray, num_bytes: np.ndarray, compute_stream: int) -> int:
        self.tickets += 1
        self.copied += len(sources)
        return self.tickets

    def make_wait(self, compute_stream: int, ticket: int) -> None: ...

    def done(self, ticket: int) -> bool:
        return True

    def wait(self, ticket: int) -> None: ...

    def bytes_copied(self) -> int:
        return self.copied * LAYOUT.stride_bytes

    def busy_seconds(self) -> float:
        return self.copied * 200e-6  # five experts a millisecond, so that prefetch has a window to fill


class IdleDisk:
    """Has read everything at once; nothing is asked of it afterwards."""

    backend, notice = "none", None

    def __init__(self) -> None:
        self._landed = NONE

    def submit(self, keys: np.ndarray, *_: Any) -> None:
        self._landed = np.concatenate([self._landed, keys])

    def wait_any(self, keys: np.ndarray) -> np.ndarray:
        self._landed = np.setdiff1d(self._landed, keys)
        return keys

    def poll(self) -> ReadDone:
        landed, self._landed = self._landed, NONE
        return ReadDone(landed, NONE)

    def reprioritise(self, keys: np.ndarray, priorities: np.ndarray) -> None: ...

    def cancel(self, keys: np.ndarray) -> np.ndarray:
        return NONE

    def bytes_read(self) -> int:
        return 0

    def busy_seconds(self) -> float:
        return 0.0


def routings(rng: np.random.Generator) -> Any:
    """Without end, layer by layer: ids, the guess at the next layer's, and their weights; each [1, top_k]."""
    k, num = SHAPE.top_k, SHAPE.num_experts
    popular = [rng.permutation(1 / np.arange(1, num + 1) ** 0.7) for _ in range(SHAPE.num_layers)]
    last = [rng.permutation(num)[:k] for _ in range(SHAPE.num_layers)]
    weights = np.sort(rng.dirichlet(np.ones(k)))[::-1].astype(np.float32)

    def drawn(layer: int, kept: np.ndarray, share: float) -> np.ndarray:
        chance = popular[layer].copy()
        chosen = kept[rng.random(k) < share]
        chance[chosen] = 0
        more = rng.choice(num, k - len(chosen), replace=False, p=chance / chance.sum())
        return rng.permutation(np.concatenate([chosen, more]))

    while True:
        token = [drawn(layer, last[layer], REPEATED) for layer in range(SHAPE.num_layers)]
        for layer, ids in enumerate(token):
            guess = drawn(layer + 1, token[layer + 1], GUESSED) if layer + 1 < SHAPE.num_layers else ids
            yield ids, guess, weights, weights
        last = token


@dataclass(eq=False)
class Step:
    """A decode step of experts alone, over an idle device."""

    device: Any  # of their protocols the idle ones have what a decode step calls
    tier: ExpertTier
    observers: list[Any]
    experts: DeviceExperts
    program: DecodeProgram

    @staticmethod
    def make(num_slots: int, *, prefetch: bool) -> Step:
        device: Any = IdleDevice()
        copier: Any = IdleCopier()
        disk: Any = IdleDisk()
        table: Any = SimpleNamespace(active=False)
        ops: Any = SimpleNamespace(
            matrices=SimpleNamespace(gate_up=lambda *_: None, down=lambda *_: None),
            vectors=SimpleNamespace(combine=lambda *_: None),
        )
        profiler, sizes, total = Profiler(), equal_slots(LAYOUT.stride_bytes, SHAPE), SHAPE.total_experts
        arena = DeviceArena(device, sizes.begins)
        arena.take(num_slots)
        policy = make_policy("next-use", SHAPE, ActivationCollection(SHAPE), num_slots)
        errors = ReadErrors([Path("none")] * SHAPE.num_layers, SHAPE.num_experts)
        copies = Copies(copier, sizes.by_key(SHAPE.num_experts), device)
        cache = ExpertCache(SHAPE, SlotRegion(None, 0, num_slots, sizes), policy)
        behind = SlotRegion(np.zeros(sizes.num_bytes(total), np.uint8), 0, total, sizes)
        host = HostSlots(cache, behind, disk, copier, errors)
        link = HostLink(host, copies, arena.addresses)
        tier = ExpertTier(cache, Loader(cache, link), errors, profiler, IdleWindow(lag_s=copies.lag_s))
        host.load_all(lambda done, total: None)
        observers: list[Any] = [policy]
        prefetcher = None
        if prefetch:
            predictor = LookAheadPredictor(SHAPE)
            observers.append(predictor)
            prefetcher = Prefetcher(tier, predictor, link, SHAPE)
        program = DecodeProgram(device)
        compute = DeviceCompute(device, ops, program, [expert_parts_of(LAYOUT, ExpertForm())] * SHAPE.num_layers)
        slots = DeviceSlots(tier, arena, copies, host)
        experts = DeviceExperts(compute, slots, observers, prefetcher, table, None)
        return Step(device, tier, observers, experts, program)

    def run(self) -> None:
        self.program.run(self._token, self)

    def _token(self) -> torch.Tensor:
        hidden, out = torch.zeros(1, 8), torch.zeros(1, 8)
        routing = DeviceRouting(torch.zeros(1, SHAPE.top_k, dtype=torch.int32), torch.zeros(1, SHAPE.top_k))
        for layer in range(SHAPE.num_layers):
            if self.experts.wants_expectations and layer + 1 < SHAPE.num_layers:
                self.experts.expect(layer + 1, routing)
            self.experts.run(layer, hidden, routing, out)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resident", type=float, default=0.2, help="part of the experts that the GPU holds")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--no-prefetch", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    step = Step.make(int(given.resident * SHAPE.total_experts), prefetch=not given.no_prefetch)
    drawn, device = routings(np.random.default_rng(1)), step.device
    for observer in step.observers:
        observer.begin("decode")
    totals, exposed = [], []
    for number in range(given.tokens):
        device.routing = iter(list(islice(drawn, SHAPE.num_layers)))
        device.waits.clear()
        device.launches.clear()
        began = time.perf_counter_ns()
        step.run()
        if number >= given.tokens // 4:
            totals.append((time.perf_counter_ns() - began) / 1e3 / SHAPE.num_layers)
            launches = [min(at for at in device.launches if at > wait) for wait in device.waits]
            exposed.append(np.mean(np.subtract(launches, device.waits)) / 1e3)
    stats, visits = step.tier.stats, given.tokens * SHAPE.num_layers
    print(
        f"misses {stats.misses / visits:.2f} and prefetches {stats.prefetches / visits:.2f} a layer; all "
        f"{min(totals):.1f} us a layer at least, {np.median(totals):.1f} in the median; exposed {min(exposed):.1f}, "
        f"{np.median(exposed):.1f}"
    )


if __name__ == "__main__":
    main()
