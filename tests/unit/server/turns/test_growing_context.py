"""A model is opened anew with a longer context where a prompt needs one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moeinf.engine.completion import Request
from moeinf.errors import ContextLengthError
from moeinf.server.ask import Ask, Ended, Event, Failed
from moeinf.server.turns.job import Job
from tests.support.spoken_model import SpokenModel
from tests.support.spoken_worker import Opened, events_of, text_of, told, worker_of


class Short(SpokenModel):
    """Each letter of a prompt is a token."""

    def begin(self, request: Request) -> Any:
        assert isinstance(request.prompt, str)
        needed = len(request.prompt) + request.room
        if needed > self.plan.context:
            raise ContextLengthError("too long", len(request.prompt), self.plan.context, "shorten it")
        return super().begin(request)


class Shorts(Opened):
    def __call__(self, *given: Any) -> Any:
        self.models.append(Short(*given))
        return self.models[-1]

    @property
    def contexts(self) -> list[int]:
        return [model.plan.context for model in self.models]


def answered(events: list[Event]) -> bool:
    return isinstance(events[-1], Ended) and text_of(events) == "one two three"


@pytest.mark.parametrize(
    ("prompt", "contexts"),
    [
        (400, [512, 2048]),  # there is to be room for an answer of 1,024 tokens, and 1,424 is rounded up
        (600, [512, 2048]),
        (3000, [512, 4096]),
        (7999, [512, 8000]),  # as far as the model may have it
    ],
)
def test_it_has_room_for_prompt_and_answer_then(prompt: int, contexts: list[int]) -> None:
    with worker_of(opened := Shorts(), longest=8000) as worker:
        assert answered(asyncio.run(events_of(worker, Ask("a", "x" * prompt))))
        assert opened.contexts == contexts and [model.closed for model in opened.models] == [True, False]
        assert answered(asyncio.run(events_of(worker, Ask("a", "x"))))
        assert opened.contexts == contexts, "it stays as it is"


def test_what_is_longer_than_the_longest_is_refused() -> None:
    with worker_of(opened := Shorts(), longest=8000) as worker:
        refused = asyncio.run(events_of(worker, Ask("a", "x" * 8000)))[-1]
        assert isinstance(refused, Failed) and isinstance(refused.error, ContextLengthError)
        assert opened.contexts == [512]
        assert (refused.error.num_tokens, refused.error.context) == (8000, 8000), "and not that which is open"


def test_a_short_answer_needs_less() -> None:
    with worker_of(opened := Shorts(), longest=8000) as worker:
        assert answered(asyncio.run(events_of(worker, Ask("a", "x" * 400, params={"num_predict": 112}))))
        assert opened.contexts == [512]


def test_a_context_that_was_asked_for_is_no_longer() -> None:
    with worker_of(opened := Shorts(), longest=8000) as worker:
        refused = asyncio.run(events_of(worker, Ask("a", "x" * 200, config={"context": 100})))[-1]
        assert isinstance(refused, Failed) and opened.contexts == [100]


def test_two_that_wait_for_room_get_it_at_once() -> None:
    async def ask_both(worker: Any) -> list[list[Event]]:
        jobs = [Job(Ask("a", "x" * length)) for length in (3000, 500)]
        for job in jobs:
            worker.submit(job)
        return [await told(job) for job in jobs]

    with worker_of(opened := Shorts(), longest=8000) as worker:
        assert all(map(answered, asyncio.run(ask_both(worker))))
        assert opened.contexts in ([512, 4096], [512, 2048, 4096]), "and never a shorter one"


def test_a_model_with_options_of_its_own_keeps_the_context_that_it_got() -> None:
    with worker_of(opened := Shorts(), longest=8000) as worker:
        own = {"threads": 1}
        assert answered(asyncio.run(events_of(worker, Ask("a", "x" * 600, config=own))))
        assert answered(asyncio.run(events_of(worker, Ask("a", "x", config=own))))
        assert opened.contexts == [512, 2048]
