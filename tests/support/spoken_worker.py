"""A worker over models that speak, and what its clients are told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from moeinf.config import RuntimeConfig
from moeinf.server.ask import Ask, Event, Text
from moeinf.server.turns.answer_worker import Limits, Worker
from moeinf.server.turns.job import Job
from tests.support.spoken_model import NamedModels, SpokenModel


class Opened:
    """Opens SpokenModels, and remembers them."""

    def __init__(self, **traits: Any) -> None:
        self.models = list[SpokenModel]()
        self._traits = traits

    def __call__(self, *given: Any) -> Any:
        model = SpokenModel(*given)
        for name, value in self._traits.items():
            setattr(model, name, value)
        self.models.append(model)
        return model


@contextmanager
def worker_of(
    opened: Opened,
    *,
    keep_alive_s: float | None = None,
    max_queue: int = 8,
    models: int = 1,
    fits: Any = None,
    longest: int = 512,
) -> Iterator[Worker]:
    library, limits = cast(Any, NamedModels("a", "b", "c")), Limits(max_queue, models)
    fits = fits or (lambda stored, config, left, alone: True)
    worker = Worker(
        library,
        RuntimeConfig(),
        keep_alive_s=keep_alive_s,
        limits=limits,
        open_model=opened,
        fits=fits,
        longest=lambda *asked: longest,
    )
    try:
        yield worker
    finally:
        assert worker.stop(10.0), "the model waits at its gate, which a test that failed did not open"


async def events_of(worker: Worker, ask: Ask) -> list[Event]:
    job = Job(ask)
    worker.submit(job)
    return await told(job)


async def told(job: Job) -> list[Event]:
    """All that a client is told."""
    return [event async for event in job.events(5.0) if event is not None]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text) and not event.thought)


def until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")
