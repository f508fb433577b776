"""One thread answers requests, opens models on demand, and closes them when they are idle."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from typing import Any, cast

import pytest

from moeinf.errors import ModelNotFoundError
from moeinf.server.ask import Ask, Ended, Event, Failed, Text
from moeinf.server.http_errors import BusyError, StoppingError
from moeinf.server.turns.answer_worker import Worker
from moeinf.server.turns.job import Job, Who
from moeinf.server.turns.opened import OpenModels
from moeinf.store.library import StoredModel
from tests.support.spoken_model import NamedModels
from tests.support.spoken_worker import Opened, events_of, text_of, told, until, worker_of


def test_an_answer_comes_in_pieces() -> None:
    with worker_of(opened := Opened()) as worker:
        events = asyncio.run(events_of(worker, Ask("a", "hi")))
        assert text_of(events) == "one two three"
        assert Text("hm", thought=True) in events
        assert isinstance(events[-1], Ended) and events[-1].completion is opened.models[0].last


def test_a_model_stays_open_for_the_next_request_and_makes_room_for_another() -> None:
    with worker_of(opened := Opened()) as worker:
        for name in ("a", "a", "b", "a"):
            assert text_of(asyncio.run(events_of(worker, Ask(name, "hi")))) == "one two three"
        assert [model.stored.name for model in opened.models] == ["a", "b", "a"]
        assert [model.closed for model in opened.models] == [True, True, False]
    assert opened.models[-1].closed


def test_a_model_that_is_only_loaded_begins_to_read_what_is_used_most() -> None:
    with worker_of(opened := Opened()) as worker:
        asyncio.run(events_of(worker, Ask("a", "hi")))
        assert not opened.models[0].warm
        asyncio.run(events_of(worker, Ask("b")))
        assert opened.models[1].warm


def test_options_of_a_request_open_the_model_anew() -> None:
    with worker_of(opened := Opened()) as worker:
        for config in ({}, {"context": 64}, {"context": 64}, {}, {"context": 128}):
            asyncio.run(events_of(worker, Ask("a", "hi", config=config)))
        assert [model.config.memory.context for model in opened.models] == [None, 64, 128]


def test_an_idle_model_is_closed() -> None:
    with worker_of(opened := Opened(), keep_alive_s=0.0) as worker:
        asyncio.run(events_of(worker, Ask("a", "hi")))
        until(lambda: not worker.opened.loaded)
        asyncio.run(events_of(worker, Ask("a", "hi", keep_alive=(None,))))
        assert [each.expires for each in worker.opened.loaded] == [None]
        asyncio.run(events_of(worker, Ask("a", keep_alive=(0.0,))))
        until(lambda: not worker.opened.loaded)
        assert [model.closed for model in opened.models] == [True, True]


def test_unload_by_id() -> None:
    with worker_of(Opened()) as worker:
        assert not asyncio.run(worker.unload("id of a"))
        asyncio.run(events_of(worker, Ask("a")))
        assert asyncio.run(worker.unload("id of a"))
        assert not worker.opened.loaded


def test_an_error_ends_one_request_and_not_the_worker() -> None:
    fault = ValueError("broken")
    with worker_of(opened := Opened(fault=fault)) as worker:
        events = asyncio.run(events_of(worker, Ask("a", "hi")))
        assert events[-1] == Failed(fault) and text_of(events) == "one "
        missing = asyncio.run(events_of(worker, Ask("d", "hi")))[-1]
        assert isinstance(missing, Failed) and isinstance(missing.error, ModelNotFoundError)
        opened.models[0].fault = None
        assert text_of(asyncio.run(events_of(worker, Ask("a", "hi")))) == "one two three"


def test_what_a_search_for_a_model_raises_ends_one_request_and_not_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker_of(Opened()) as worker:
        find = worker.opened.find

        def broken(name: str) -> StoredModel:
            if name == "b":
                raise OSError("the disk is gone")
            return find(name)

        monkeypatch.setattr(worker.opened, "find", broken)
        failed = asyncio.run(events_of(worker, Ask("b", "hi")))[-1]
        assert isinstance(failed, Failed) and str(failed.error) == "the disk is gone"
        assert text_of(asyncio.run(events_of(worker, Ask("a", "hi")))) == "one two three"


def test_more_requests_than_may_wait_are_refused() -> None:
    gate = threading.Semaphore(0)

    async def ask_four(worker: Worker) -> None:
        jobs = [Job(Ask("a", "hi"), Who("me")) for _ in range(4)]
        worker.submit(jobs[0])
        while not worker.view.running:
            await asyncio.sleep(0.01)
        worker.submit(jobs[1])
        worker.submit(jobs[2])
        with pytest.raises(BusyError):
            worker.submit(jobs[3])
        jobs[1].cancel()  # whose client has gone makes room
        worker.submit(jobs[3])
        gate.release(100)
        ends = [(await told(job))[-1] for job in jobs]
        assert [type(end) for end in ends] == [Ended, Failed, Ended, Ended]

    with worker_of(Opened(gate=gate), max_queue=2) as worker:
        asyncio.run(ask_four(worker))


def test_a_cancelled_answer_ends_within_a_token() -> None:
    gate = threading.Semaphore(1)

    async def cancel_after_a_word(worker: Worker) -> list[Event | None]:
        job = Job(Ask("a", "hi"))
        worker.submit(job)
        events = []
        async for event in job.events(5.0):
            events.append(event)
            if event == Text("one "):
                job.cancel()
                gate.release()
        return events

    with worker_of(Opened(gate=gate)) as worker:
        events = asyncio.run(cancel_after_a_word(worker))
        assert Text("two ") not in events
        assert isinstance(events[-1], Ended)


def test_stopping_ends_what_runs_and_refuses_what_waits() -> None:
    gate = threading.Semaphore(1)

    async def stop_in_between(worker: Worker) -> None:
        jobs = [Job(Ask("a", "hi")), Job(Ask("a", "hi"))]
        for job in jobs:
            worker.submit(job)
        async for event in jobs[0].events(5.0):
            if event == Text("one "):
                threading.Timer(0.05, gate.release, (100,)).start()
                await asyncio.to_thread(worker.stop)
        last = (await told(jobs[1]))[-1]
        assert isinstance(last, Failed) and isinstance(last.error, StoppingError)
        with pytest.raises(StoppingError):
            worker.submit(Job(Ask("a", "hi")))

    with worker_of(opened := Opened(gate=gate)) as worker:
        asyncio.run(stop_in_between(worker))
        assert opened.models[0].closed
        assert opened.models[0].last is not None and opened.models[0].last.finish_reason == "interrupted"


def test_what_runs_is_answered_before_a_drained_worker_ends_and_what_waits_is_refused() -> None:
    gate = threading.Semaphore(1)

    async def drain(worker: Worker) -> list[Any]:
        jobs = [Job(Ask("a", "hi"), Who(client)) for client in "xyz"]
        for job in jobs:
            worker.submit(job)
        async for event in jobs[0].events(5.0):
            if event == Text("one "):
                worker.take_no_more()
                gate.release(100)
        return [(await told(job))[-1] for job in jobs[1:]]

    with worker_of(opened := Opened(gate=gate)) as worker:
        waited = asyncio.run(drain(worker))
        assert all(isinstance(last, Failed) and isinstance(last.error, StoppingError) for last in waited)
        assert opened.models[0].last is not None and opened.models[0].last.finish_reason != "interrupted"


@pytest.mark.parametrize("keep_alive_s", [1e-9, 1e6, 9.3e9, 1e10, 1e300, math.inf, None])
def test_a_request_that_keeps_a_model_for_however_long_does_not_end_the_answering(keep_alive_s: float | None) -> None:
    with worker_of(Opened()) as worker:
        for keep in ((keep_alive_s,), (60.0,)):
            events = asyncio.run(asyncio.wait_for(events_of(worker, Ask("a", "hi", keep_alive=keep)), 10.0))
            assert text_of(events) == "one two three"
            time.sleep(0.05)  # in which the thread begins to wait for the next request


def test_a_fault_between_two_requests_costs_no_later_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker_of(Opened()) as worker:
        asyncio.run(events_of(worker, Ask("a", "hi")))
        faults = iter([OverflowError("timeout doesn't fit"), ValueError("another one")])

        def idle_s(each: OpenModels) -> float | None:
            if (fault := next(faults, None)) is not None:
                raise fault
            return None

        monkeypatch.setattr(OpenModels, "idle_s", idle_s)
        for _ in range(3):
            events = asyncio.run(asyncio.wait_for(events_of(worker, Ask("a", "hi")), 10.0))
            assert text_of(events) == "one two three"


def test_a_model_that_is_open_is_found_where_its_files_have_gone() -> None:
    with worker_of(Opened()) as worker:
        asyncio.run(events_of(worker, Ask("a", "hi")))
        worker.opened.library = cast(Any, NamedModels("b"))
        assert worker.opened.find("a").name == "a"
        assert text_of(asyncio.run(events_of(worker, Ask("a", "hi")))) == "one two three"
        with pytest.raises(ModelNotFoundError):
            worker.opened.find("d")


@pytest.mark.parametrize("error", [MemoryError("for a copy of the prefixes"), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("closed_by", ["another model", "unload", "time"])
def test_a_model_whose_close_raises_costs_no_later_answer(error: BaseException, closed_by: str) -> None:
    def close() -> None:
        closed.append(True)
        raise error

    closed = list[bool]()
    with worker_of(Opened(close=close)) as worker:
        keep = (0.0,) if closed_by == "time" else (None,)
        asyncio.run(events_of(worker, Ask("a", "hi", keep_alive=keep)))
        if closed_by == "unload":
            asyncio.run(asyncio.wait_for(worker.unload("id of a"), 10.0))
        elif closed_by == "another model":
            assert text_of(asyncio.run(asyncio.wait_for(events_of(worker, Ask("b", "hi")), 10.0))) == "one two three"
        until(lambda: closed)
        for _ in range(2):
            events = asyncio.run(asyncio.wait_for(events_of(worker, Ask("a", "hi")), 10.0))
        assert text_of(events) == "one two three" and worker.alive


@pytest.mark.parametrize("fault", [SystemExit(3), GeneratorExit()])
def test_a_client_is_told_of_whatever_ends_its_answer(fault: BaseException) -> None:
    with worker_of(Opened(fault=fault)) as worker:
        for _ in range(2):
            events = asyncio.run(asyncio.wait_for(events_of(worker, Ask("a", "hi")), 10.0))
            assert isinstance(events[-1], Failed) and isinstance(events[-1].error, Exception)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_where_the_thread_ends_all_the_same_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object, **more: object) -> None:
        raise MemoryError

    async def ask(worker: Worker) -> None:
        running, waiting = Job(Ask("a", "hi")), Job(Ask("a", "hi"))
        worker.submit(running)
        worker.submit(waiting)
        monkeypatch.setattr(Worker, "_take_turn", fail)
        monkeypatch.setattr("moeinf.server.turns.opened.log.error", fail)  # what would tell of it fails, too
        gate.release(3)
        for job in (running, waiting):
            refused = (await asyncio.wait_for(told(job), 10.0))[-1]
            assert isinstance(refused, Failed) and "has ended; restart the server" in str(refused.error)
        with pytest.raises(StoppingError, match="has ended; restart the server"):
            worker.submit(Job(Ask("a", "hi")))
        assert not worker.alive and not await asyncio.wait_for(worker.unload("id of a"), 10.0)

    gate = threading.Semaphore(0)
    with worker_of(Opened(gate=gate)) as worker:
        asyncio.run(ask(worker))


def test_answers_of_a_model_are_made_side_by_side_and_another_model_waits_for_their_end() -> None:
    order = list[str]()

    async def ask(worker: Worker) -> None:
        async def asked(name: str, model: str) -> None:
            events = await events_of(worker, Ask(model, name))
            assert text_of(events) == "one two three"
            order.append(name)

        asks = (("first", "a"), ("second", "a"), ("of b", "b"), ("third", "a"))
        await asyncio.gather(*(asked(name, model) for name, model in asks))

    with worker_of(opened := Opened(parallel=2)) as worker:
        asyncio.run(asyncio.wait_for(ask(worker), 10.0))
    assert order[:2] in (["first", "second"], ["second", "first"]) and order[2:] == ["of b", "third"]
    assert [model.stored.name for model in opened.models] == ["a", "b", "a"]
    assert opened.models[0].most_at_once == 2
