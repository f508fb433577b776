"""When it will be the turn of a request that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moeinf.engine.completion import GenerationStats
from moeinf.server.ask import Ask, Eta, Queued, Reading, Text
from moeinf.server.turns.job import Job, Who
from moeinf.server.turns.overview import Overview, Seen
from moeinf.server.turns.pace import Pace, retry_after_s


def of_answers(tokens: int, token_s: float, prompt_s: float) -> GenerationStats:
    return GenerationStats(
        generated_tokens=tokens, token_s=[token_s] * (tokens - 1), total_s=prompt_s + token_s * (tokens - 1)
    )


def jobs(*asks: Ask) -> list[Job]:
    async def made() -> list[Job]:
        return [Job(ask) for ask in asks]

    return asyncio.run(made())


def test_nothing_is_said_before_an_answer_has_ended() -> None:
    assert Pace().waits_s(jobs(Ask("a", "hi")), 1, 2) == [None, None]


def test_those_that_wait_take_the_places_that_get_free_one_after_the_other() -> None:
    pace = Pace()
    pace.learn(of_answers(tokens=11, token_s=0.5, prompt_s=1.0))
    answering, reading = jobs(Ask("a", "hi"), Ask("a", "hi", params={"num_predict": 4}))
    for _ in range(5):
        answering.put(Text("word"))
    reading.put(Reading(10, 100, 2.0))
    assert pace.left_s(answering) == 6 * 0.5 and pace.left_s(reading) == 2.0 + 4 * 0.5
    assert pace.waits_s([answering, reading], 2, 3) == [3.0, 4.0, 9.0], "an answer takes 6 s"
    assert pace.waits_s([answering], 2, 2) == [0.0, 3.0]


def test_later_answers_count_more() -> None:
    pace = Pace()
    for tokens in (10, 20):
        pace.learn(of_answers(tokens, 0.1, 0.0))
    assert pace.tokens == 13.0


def test_what_is_left_follows_from_what_was_done() -> None:
    now = 100.0
    eta = Eta(1000, clock=lambda: now)  # of which earlier requests have computed as much
    assert eta.left_s(1000, 2000) is None
    now = 102.0
    assert eta.left_s(1500, 2000) == 2.0


def test_one_who_finds_the_queue_full_is_told_when_a_place_is_free() -> None:
    assert retry_after_s([7.6, 3.4, None], 5) == 3
    assert retry_after_s([None], 5) == 5 and retry_after_s([0.1], 5) == 1


def test_places_are_counted_once_for_all_who_look() -> None:
    now, counted = 0.0, list[int]()

    def waits_s(waiting: Sequence[Job]) -> list[float | None]:
        counted.append(len(waiting))
        return [1.26, None]

    async def made() -> list[Job]:
        return [Job(Ask("a", "hi")), Job(Ask("a", "hi"), Who("x", background=True))]

    first, second = asyncio.run(made())
    view = Overview(list, lambda: [first, second], waits_s, clock=lambda: now)
    assert (view.place(first), view.place(second)) == (Queued(1, 1.3), Queued(2))
    assert counted == [2]
    now = 1.0
    view.place(first)
    assert counted == [2, 2]
    assert view.requests() == [
        Seen("a", "queued", position=1, eta_s=1.3),
        Seen("a", "queued", position=2, background=True),
    ]
    first.begins()
    assert view.place(first) is None
