"""The machine as it works: what the page draws beside the chat, sent as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.model import Model
from moeinf.errors import StoreError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.cache.table import LOADING, NO_EXPERT, RESIDENT
from moeinf.server.turns.answer_worker import Worker
from moeinf.server.turns.overview import Seen
from moeinf.types import IntArray

PERIOD_S: Final = 0.5  # from one event to the next
MOST_WATCHERS: Final = 32  # pages that look on at once
RETRY_AFTER_S: Final = 10


@dataclass(frozen=True, slots=True)
class Observed:
    """What the worker does at one moment.

    name: of the model that answers, is being loaded, or was used last. requests: all, those that wait behind the
    others.
    """

    name: str | None = None
    model: Model | None = None
    requests: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class MemoryPart:
    part: str
    bytes: int


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """One event. Counts and rates are of the time since the event before.

    resident, used, reading, missing: a bit for each expert, those of layer 0 first, the lowest bit of a byte first; in
    JSON as base64. Every layer has bits for as many experts as the largest; the `missing` ones it lacks. hit_rate: None
    where nothing was asked for. read_bytes_per_s: from the disk. stall_share: of the time; a stall counts when it ends,
    so that after a long one the share is cut to 1.
    """

    model: str | None = None
    requests: tuple[Seen, ...] = ()
    layers: int = 0
    experts: int = 0
    resident: bytes = b""
    used: bytes = b""
    reading: bytes = b""
    hit_rate: float | None = None
    read_bytes_per_s: float = 0.0
    stall_share: float = 0.0
    tokens_per_s: float = 0.0
    memory: tuple[MemoryPart, ...] = ()
    missing: bytes = b""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a model at one moment."""

    model: Model
    at_s: float
    states: npt.NDArray[np.uint8]  # [layers, experts]
    last_use: IntArray  # [layers, experts]
    stats: CacheStats
    bytes_read: int
    decoded_tokens: int


class Watch:
    """Makes the events of one watcher: each tells what has changed since the one before.

    It may look on from any thread while the model answers or is closed: what it reads is documented to allow that
    (ExpertTier.states, Activity, Reader.bytes_read), and takes 0.3 ms for 61 layers of 256 experts.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last: Counters | None = None

    def event(self, seen: Observed) -> LiveEvent:
        """What there is to tell about the worker now."""
        try:
            now = None if seen.model is None else self._read(seen.model)
        except StoreError:  # it was closed just now
            now = None
        last, self._last = self._last, now
        if now is None:
            return LiveEvent(seen.name, seen.requests)
        if last is None or last.model is not now.model:
            last = now
        elapsed_s = max(now.at_s - last.at_s, 1e-9)  # nothing has changed where no time has passed
        asked = now.stats.since(last.stats)
        return LiveEvent(
            seen.name,
            seen.requests,
            layers=len(now.states),
            experts=now.states.shape[1],
            resident=_bits(now.states == RESIDENT),
            used=_bits(now.last_use != last.last_use),
            reading=_bits(now.states == LOADING),
            hit_rate=asked.hit_rate if asked.activations > 0 else None,
            read_bytes_per_s=(now.bytes_read - last.bytes_read) / elapsed_s,
            stall_share=min(1.0, asked.stall_s / elapsed_s),
            tokens_per_s=(now.decoded_tokens - last.decoded_tokens) / elapsed_s,
            memory=memory_parts(now.model),
            missing=_bits(now.states == NO_EXPERT),
        )

    def _read(self, model: Model) -> Counters:
        activity, tier = model.activity, model.tier
        assert activity is not None, "a server opens its models for many conversations"
        return Counters(
            model,
            self._clock(),
            tier.states(),
            activity.last_use(),
            model.stats,
            model.runner.reader.bytes_read(),
            model.generator.decoded_tokens,
        )


def observed(worker: Worker) -> Observed | None:
    """What the worker does; None once the server ends. It takes no lock, and waits for nothing."""
    if worker.stopping:
        return None
    requests, loaded = tuple(worker.view.requests()), {each.stored.name: each for each in worker.opened.loaded}
    name = requests[0].model if requests else next(reversed(loaded), None)
    shown = loaded.get(name) if name is not None else None
    return Observed(name, None if shown is None else shown.model, requests)


def memory_parts(model: Model) -> tuple[MemoryPart, ...]:
    """What the memory of a model went to, in bytes. The expert cache counts the slots that it has at the moment."""
    plan = model.plan
    parts = [
        MemoryPart("expert cache", model.tier.num_bytes),
        MemoryPart("dense weights", plan.dense_bytes),
        MemoryPart("KV cache", plan.kv_bytes),
        MemoryPart("activations", plan.activation_bytes),
        MemoryPart("kept prompts", plan.prefix_bytes),
    ]
    if isinstance(plan, DevicePlan):
        parts.append(MemoryPart("experts in host memory", plan.host_bytes))
    return tuple(parts)


def live_route(observe: Callable[[], Observed | None], *, period_s: float = PERIOD_S) -> Route:
    """GET /api/live: an event every period_s seconds until the watcher leaves, or observe() returns None.

    observe() is called on the event loop, and must not wait; None says that the server ends. A watcher beyond
    MOST_WATCHERS is answered 503.
    """
    watchers = 0

    async def events() -> AsyncIterator[bytes]:
        nonlocal watchers
        if watchers >= MOST_WATCHERS:  # taken between the answer's beginning and now
            return
        watchers += 1
        try:
            watch = Watch()
            while (seen := observe()) is not None:
                yield b"data: " + msgspec.json.encode(watch.event(seen)) + b"\n\n"
                await asyncio.sleep(period_s)
        finally:
            watchers -= 1

    async def live(request: Request) -> Response:
        if watchers >= MOST_WATCHERS:
            message = f"{MOST_WATCHERS} pages look on already; close one of them"
            return JSONResponse({"error": message}, 503, {"Retry-After": str(RETRY_AFTER_S)})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    return Route("/api/live", live, methods=["GET"])


def _bits(flags: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(flags.ravel(), bitorder="little").tobytes()
