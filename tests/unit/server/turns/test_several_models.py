"""Several models are open where memory has room for them, and the one that was used longest ago is closed first."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.server.ask import Ask, Ended, Text
from moeinf.server.turns import opened as opened_module
from moeinf.server.turns.answer_worker import Worker
from moeinf.server.turns.job import Job, Who
from moeinf.server.turns.opened import Loaded, OpenModels
from moeinf.server.turns.running_answers import RunningAnswers
from tests.support.spoken_model import NamedModel, NamedModels, SpokenModel
from tests.support.spoken_worker import Opened, events_of, text_of, told, until, worker_of


def names_of(opened: Opened) -> list[str]:
    return [model.stored.name for model in opened.models if not model.closed]


def test_models_stay_open_beside_each_other_and_the_one_used_longest_ago_is_closed_first() -> None:
    with worker_of(opened := Opened(), models=2) as worker:
        for name in ("a", "b", "a", "c", "a"):
            assert isinstance(asyncio.run(events_of(worker, Ask(name, "hi")))[-1], Ended)
        assert [model.stored.name for model in opened.models] == ["a", "b", "c"]
        assert names_of(opened) == ["a", "c"]
        assert [each.stored.name for each in worker.opened.loaded] == ["c", "a"]
        assert opened.models[0].on is None and opened.models[1].on is not None


def test_a_model_that_memory_has_no_room_for_takes_the_place_of_others() -> None:
    def fits(stored: NamedModel, config: RuntimeConfig, left: Machine, alone: Machine) -> bool:
        return stored.name != "c"

    with worker_of(opened := Opened(), models=3, fits=fits) as worker:
        for name in ("a", "b", "c"):
            asyncio.run(events_of(worker, Ask(name, "hi")))
        assert names_of(opened) == ["c"]
        assert opened.models[2].on is None, "nothing else is open"


def test_each_model_is_closed_in_its_own_time() -> None:
    with worker_of(opened := Opened(), models=2) as worker:
        asyncio.run(events_of(worker, Ask("a", "hi", keep_alive=(None,))))
        asyncio.run(events_of(worker, Ask("b", "hi", keep_alive=(0.0,))))
        until(lambda: names_of(opened) == ["a"])
        asyncio.run(events_of(worker, Ask("a", keep_alive=(0.0,))))
        until(lambda: not worker.opened.loaded)


def test_a_model_is_opened_while_another_one_answers() -> None:
    may_open = threading.Event()

    class Slow(Opened):
        def __call__(self, *given: Any) -> Any:
            if given[0].name == "b":
                assert may_open.wait(10.0)
            return super().__call__(*given)

    async def ask(worker: Worker) -> None:
        long = Job(Ask("a", "hi"))
        worker.submit(long)
        while not isinstance(long.last_event, Text):
            await asyncio.sleep(0.01)
        other = Job(Ask("b", "hi"))
        worker.submit(other)
        while other.waited_s is None:
            await asyncio.sleep(0.01)
        pieces = long.pieces
        while long.pieces < pieces + 5:
            await asyncio.sleep(0.01)
        assert other.last_event is None and [each.state for each in worker.view.requests()] == ["decode", "loading"]
        may_open.set()
        assert isinstance((await told(other))[-1], Ended)
        long.cancel()

    with worker_of(Slow(words=["one "] * 100_000), models=2) as worker:
        asyncio.run(asyncio.wait_for(ask(worker), 30.0))


def open_models(*open_names: str, available: int = 1000, most: int = 3, **more: Any) -> OpenModels:
    library, reporting = cast(Any, NamedModels("a", "b", "c")), cast(Any, SimpleNamespace(progress=lambda *_: None))
    config = RuntimeConfig()
    models = OpenModels(library, config, None, cast(Any, SpokenModel), lambda stored: {}, most, **more)
    models._alone = Machine(available, "machine", 2, available)
    for name in open_names:
        stored = cast(Any, NamedModel(name, f"id of {name}"))
        models.take(Loaded(stored, cast(Any, SpokenModel(stored, config, reporting, None)), config, None, {}))
    return models


def test_the_ledger_counts_what_open_models_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened_module, "machine", lambda: Machine(5000, "machine", 2, 5000))
    seen = list[int]()

    def fits(stored: Any, config: Any, left: Machine, alone: Machine) -> bool:
        seen.append(left.available_bytes)
        return left.available_bytes >= 800

    models = open_models("a", "b", fits=fits)
    cast(Any, models.loaded[0].model).planned_bytes = 150  # with a model that drafts for it
    room = models.room_for(cast(Any, NamedModel("c", "id of c")), Ask("c", "hi"), lambda loaded: False)
    assert seen == [1000 - 150 - 110, 1000 - 110]
    assert room is not None and [each.stored.name for each in room.closing] == ["a"]
    assert room.on is not None and room.on.available_bytes == 890


def test_what_is_busy_is_not_closed() -> None:
    models = open_models("a", "b", most=2)
    ask, stored = Ask("c", "hi"), cast(Any, NamedModel("c", "id of c"))
    assert models.room_for(stored, ask, lambda loaded: True) is None
    room = open_models("a", "b", most=1).room_for(stored, ask, lambda loaded: loaded.stored.name == "a")
    assert room is None, "there is no room beside the one that is busy"
    same = cast(Any, NamedModel("a", "id of a"))
    other_options = Ask("a", "hi", config={"context": 64})
    assert models.room_for(same, other_options, lambda loaded: loaded.stored.name == "a") is None


class Timed:
    """A model whose steps take so many seconds."""

    parallel = 4

    def __init__(self, name: str, seconds: float, clock: list[float], steps: list[str]) -> None:
        def step() -> None:
            steps.append(name)
            clock.append(clock[-1] + seconds)

        self.generator = SimpleNamespace(step=step)


def test_models_take_turns_by_the_time_of_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = [0.0], list[str]()
    running: RunningAnswers[Job] = RunningAnswers(lambda job, event: None, lambda: False, clock=lambda: clock[-1])
    monkeypatch.setattr("moeinf.server.turns.running_answers.answer", lambda *given: iter(lambda: None, 0))

    async def begin() -> None:
        for name, seconds in (("a", 4.0), ("b", 1.0)):
            running.begin(Job(Ask(name, "hi")), cast(Any, Timed(name, seconds, clock, steps)), 0.0)

    asyncio.run(begin())
    for _ in range(10):
        running.go_on()
    assert "".join(steps) == "abbbbabbbb"


def test_one_place_is_kept_from_background_requests() -> None:
    gate = threading.Semaphore(0)

    async def ask(worker: Worker) -> None:
        side = [Job(Ask("a", "hi"), Who("x", background=True)) for _ in range(3)]
        for job in side:
            worker.submit(job)
        while worker.view.running < 2:
            gate.release()
            await asyncio.sleep(0.02)
        assert [each.background for each in worker.view.requests()] == [True, True, True]
        chat = Job(Ask("a", "hi"), Who("x"))
        worker.submit(chat)
        while chat.waited_s is None:
            gate.release()
            await asyncio.sleep(0.02)
        gate.release(100)
        for job in (*side, chat):
            assert isinstance((await told(job))[-1], Ended)

    with worker_of(Opened(gate=gate, parallel=3, words=["one "] * 20)) as worker:
        asyncio.run(asyncio.wait_for(ask(worker), 20.0))


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_background_answer_leaves_its_place_to_a_chat_and_goes_on_behind_it(parallel: int) -> None:
    """parallel: with two, one of the places is a chat's already."""
    gate = threading.Semaphore(0)

    async def until_it_is(reached: Any) -> None:
        while not reached():
            gate.release()
            await asyncio.sleep(0.01)

    async def ask(worker: Worker) -> None:
        before, side = Job(Ask("a", "hi"), Who("x")), Job(Ask("a", "hi"), Who("x", background=True))
        for job in (*([before] if parallel > 1 else []), side):
            worker.submit(job)
        await until_it_is(lambda: side.pieces > 2)
        chat, gone, later = (
            Job(Ask("a", "hi"), Who("y")),
            Job(Ask("a", "hi")),
            Job(Ask("a", "hi"), Who("z", background=True)),
        )
        for job in (later, chat, gone):
            worker.submit(job)
        gone.cancel()
        await until_it_is(lambda: chat.waited_s is not None)
        assert "paused" in [each.state for each in worker.view.requests()]
        pieces = side.pieces
        await until_it_is(lambda: isinstance(chat.last_event, Ended))
        assert parallel > 1 or side.pieces < pieces + 5, "while the chat was told 20 words"
        before.cancel()
        await until_it_is(lambda: isinstance(side.last_event, Ended))
        gate.release(1000)
        assert text_of(await told(chat)) == text_of(await told(side)) == "one " * 20
        assert isinstance((await told(later))[-1], Ended)

    with worker_of(Opened(gate=gate, parallel=parallel, words=["one "] * 20)) as worker:
        asyncio.run(asyncio.wait_for(ask(worker), 20.0))


@pytest.mark.parametrize("models", [0, -1, 65])
def test_a_number_of_models_that_cannot_be_is_refused(models: int) -> None:
    with pytest.raises(UsageError, match="--models must be between 1 and 64"):
        ServerOptions(models=models)
