"""What the worker does, as a watcher is told it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, cast

from moeinf.config import RuntimeConfig
from moeinf.server.ask import Ask, Reading, Text
from moeinf.server.page.live import Observed, observed
from moeinf.server.turns.answer_worker import Limits, Worker
from moeinf.server.turns.job import Job
from moeinf.server.turns.overview import Seen
from tests.support.spoken_model import NamedModels, SpokenModel


def until(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")


def test_each_state_is_told_in_turn() -> None:
    may_open, may_speak = threading.Event(), threading.Semaphore(0)

    def open_model(stored: Any, config: Any, reporting: Any, on: Any) -> Any:
        reporting.progress(3, 10)
        may_open.wait()
        model = SpokenModel(stored, config, reporting, on)
        model.gate = may_speak
        return model

    async def answer(worker: Worker) -> None:
        assert observed(worker) == Observed()
        first, second = Job(Ask("a", "hi")), Job(Ask("a", "hi"))
        worker.submit(first)
        until(lambda: first.last_event)
        seen = observed(worker)
        assert seen is not None and (seen.name, seen.model) == ("a", None)
        assert seen.requests == (Seen("a", "loading", eta_s=seen.requests[0].eta_s, progress=(3, 10)),)
        worker.submit(second)
        may_open.set()
        until(lambda: isinstance(first.last_event, Text))
        seen = observed(worker)
        assert seen is not None and seen.name == "a" and seen.model is not None
        assert seen.requests == (Seen("a", "decode", tokens=1), Seen("a", "queued", position=1))
        first.last_event = Reading(5, 20, 1.5)
        seen = observed(worker)
        assert seen is not None and seen.requests[0] == Seen("a", "prefill", eta_s=1.5, progress=(5, 20))
        for _ in range(6):
            may_speak.release()
        until(lambda: not worker.view.running and not worker.view.waiting)
        seen = observed(worker)
        assert seen is not None and (seen.name, seen.requests) == ("a", ()) and seen.model is not None

    library = cast(Any, NamedModels("a"))
    limits = Limits(8)
    worker = Worker(
        library, RuntimeConfig(), keep_alive_s=None, limits=limits, open_model=open_model, longest=lambda *asked: 512
    )
    try:
        asyncio.run(answer(worker))
    finally:
        worker.stop()
    assert observed(worker) is None, "the server ends, and lets its watchers go"
