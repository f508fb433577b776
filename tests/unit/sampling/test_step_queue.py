"""Which of the requests that wait for a step it takes along, and what becomes of one with which something is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import pytest

from moeinf.errors import DeviceError, NotFiniteError
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.sampling.step_queue import LEAST_PIECE, Interrupted, Seat, Steps
from moeinf.types import Float32Array


class Cache:
    length = 0


class Model:
    """Gives each part's last token as its logits; tells which parts went together."""

    def __init__(self) -> None:
        self.steps = list[list[list[int]]]()
        self.wrong: dict[int, BaseException] = {}  # by token
        self.seconds_a_token = 0.0

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        between_layers()
        self.steps.append([list(part.ids) for part in parts])
        time.sleep(self.seconds_a_token * sum(len(part.ids) for part in parts))
        for part in parts:
            if error := self.wrong.get(part.ids[-1]):
                raise error
        for part in parts:
            part.cache.length += len(part.ids)
        return np.array([[part.ids[-1]] for part in parts], np.float32)


def never() -> None:
    pass


def stop() -> None:
    raise Interrupted


def asked(
    seat: Seat, ids: Sequence[int], check: Callable[[], None] = never, *, of_tokens: int = 0, cache: Any = None
) -> Generator[None, None, Float32Array]:
    """What waits, after it has begun to."""
    waiting = seat.through(ids, cache or Cache(), check, of_tokens=of_tokens)
    next(waiting)
    return waiting


def result(waiting: Generator[None, None, Float32Array]) -> float:
    with pytest.raises(StopIteration) as ended:
        next(waiting)
    return float(ended.value.value[0, 0])


def test_tokens_of_all_answers_go_together_and_a_piece_of_one_prompt_behind_them() -> None:
    model = Model()
    steps = Steps(model)
    seats = [steps.seat() for _ in range(4)]
    waiting = [asked(seats[0], [1]), asked(seats[1], [10] * 20), asked(seats[2], [2, 3]), asked(seats[3], [11] * 30)]
    steps.run()
    assert model.steps == [[[1], [2, 3]], [[10] * 20]]
    assert [result(waiting[i]) for i in (0, 1, 2)] == [1, 10, 3]
    assert next(waiting[3], "ended") is None
    steps.run()
    assert model.steps[2:] == [[[11] * 30]] and result(waiting[3]) == 11


def test_the_shortest_prompt_is_read_first_and_every_other_time_the_oldest() -> None:
    model = Model()
    steps = Steps(model)
    seats = [steps.seat() for _ in range(3)]
    caches = [Cache() for _ in seats]

    waiting = dict[int, Generator[None, None, Float32Array]]()

    def ask(which: int, left: int) -> None:
        waiting[which] = asked(seats[which], [which] * min(left, 100), of_tokens=left, cache=caches[which])

    for which, left in enumerate((1000, 100, 50)):
        ask(which, left)
    order = []
    for _ in range(3):
        steps.run()
        order.append(model.steps[-1][0][0])
        if order[-1] == 0:
            ask(0, 1000)
    assert order == [2, 0, 1]


def test_pieces_are_short_while_others_wait() -> None:
    model = Model()
    model.seconds_a_token = 0.002
    steps = Steps(model)
    seat = steps.seat()
    assert seat.piece(4096) == 4096, "nothing was measured"
    first = asked(seat, [1] * 100)
    steps.run()
    assert result(first) == 1 and seat.piece(4096) == 4096, "nobody else waits"
    with steps.seat():
        assert LEAST_PIECE <= seat.piece(4096) <= 250
        assert seat.piece(16) == 16
        assert Seat(Steps(model, cuts=False)).piece(4096) == 4096
    assert seat.alone and seat.piece(4096) == 4096


def test_no_more_rows_go_together_than_are_computed_as_one_is() -> None:
    model = Model()
    steps = Steps(model)
    waiting = [asked(steps.seat(), [number] * 8) for number in range(10)]
    steps.run()
    assert [len(step) for step in model.steps] == [8, 2]
    assert [result(each) for each in waiting] == list(range(10))


def test_one_that_is_wrong_fails_alone() -> None:
    model = Model()
    steps = Steps(model)
    model.wrong = {2: NotFiniteError("no number")}
    waiting = [asked(steps.seat(), [number]) for number in (1, 2, 3)]
    steps.run()
    assert model.steps == [[[1], [2], [3]], [[1]], [[2]], [[3]]]
    assert result(waiting[0]) == 1 and result(waiting[2]) == 3
    with pytest.raises(NotFiniteError):
        next(waiting[1])


def test_all_fail_with_the_device() -> None:
    model = Model()
    steps = Steps(model)
    model.wrong = {2: DeviceError("the GPU is lost")}
    waiting = [asked(steps.seat(), [number]) for number in (1, 2)]
    steps.run()
    assert len(model.steps) == 1
    for each in waiting:
        with pytest.raises(DeviceError):
            next(each)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a fault of ours")])
def test_what_nobody_expects_reaches_whoever_makes_the_step_and_all_who_wait(error: BaseException) -> None:
    model = Model()
    steps = Steps(model)
    model.wrong = {2: error}
    waiting = [asked(steps.seat(), [number]) for number in (1, 2)]
    with pytest.raises(type(error)):
        steps.run()
    for each in waiting:
        with pytest.raises(type(error)):
            next(each)


def test_a_step_is_given_up_where_nobody_waits_for_it() -> None:
    model = Model()
    steps = Steps(model)
    gone, other = asked(steps.seat(), [1], stop), asked(steps.seat(), [2])
    steps.run()
    assert (result(gone), result(other)) == (1, 2), "one goes on, and takes the other along"
    waiting = [asked(steps.seat(), [number], stop) for number in (1, 2)]
    steps.run()
    assert len(model.steps) == 1
    for each in waiting:
        with pytest.raises(Interrupted):
            next(each)


def test_who_has_left_is_taken_along_no_more() -> None:
    model = Model()
    steps = Steps(model)
    with steps.seat() as seat:
        waiting = asked(seat, [1])
        waiting.close()
        steps.run()
    assert not model.steps and not steps.seats
