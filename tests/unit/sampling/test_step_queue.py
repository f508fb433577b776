"""Which of the requests that wait for a step it takes along, and what becomes of one with which something is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import numpy as np
import pytest

from moeinf.errors import DeviceError, NotFiniteError
from moeinf.models.layers.kv_cache import NewTokens, OwnRows
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.loop import Forced, Timing, generate
from moeinf.sampling.step_queue import LEAST_PIECE, Asker, GaveWay, Interrupted, Seat, Steps
from moeinf.types import Float32Array, Phase


class Cache:
    length = 0


class LongCache(Cache):
    capacity, reach, pictures, shared = 4096, 0, (), OwnRows()

    def outgrown(self, length: int) -> bool:
        return False

    def truncate(self, length: int) -> int:
        return length


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


def order_of_reading(prompts: Sequence[tuple[str, bool, int]], piece: int = 100) -> str:
    """Of which prompt each piece is, until all are read. prompts: client, whether it is in the background, tokens."""
    model = Model()
    steps = Steps(model)
    caches = [Cache() for _ in prompts]
    seats = [steps.seat(asker=Asker(client, background)) for client, background, _ in prompts]
    waiting = dict[int, Generator[None, None, Float32Array]]()
    order = ""
    while left := [i for i, (_, _, total) in enumerate(prompts) if caches[i].length < total]:
        for i in left:
            if seats[i].waiting is None:
                count = min(piece, prompts[i][2] - caches[i].length)
                waiting[i] = asked(seats[i], [i] * count, of_tokens=prompts[i][2], cache=caches[i])
        steps.run()
        order += str(model.steps[-1][0][0])
        result(waiting[int(order[-1])])
    return order


def test_prompts_of_a_background_request_are_read_behind_those_of_chats() -> None:
    assert order_of_reading([("a", True, 200), ("b", False, 300), ("a", False, 200)]) == "21211" + "00"


def test_clients_take_turns_whatever_one_of_them_floods() -> None:
    flood = [("a", False, 300)] * 3
    assert order_of_reading([*flood, ("b", False, 400)]) == "030303" + "3" + "111222"


class Unwatched:
    timing = Timing()

    def check(self) -> None:
        pass

    def gives_way(self) -> bool:
        return False

    def begin(self, phase: Phase) -> None:
        pass

    def reading(self, start: int, end: int, total: int) -> None: ...

    def prefilled(self, done: int, total: int) -> None:
        pass


class Layers(Model):
    """Takes its time, and lets others ask between layers."""

    def step(self, parts: Sequence[NewTokens], between_layers: Callable[[], None]) -> Float32Array:
        for _ in range(4):
            between_layers()
            time.sleep(0.25 * self.seconds_a_token * sum(len(part.ids) for part in parts))
        self.seconds_a_token, seconds = 0.0, self.seconds_a_token
        try:
            return super().step(parts, between_layers)
        finally:
            self.seconds_a_token = seconds


def test_a_long_piece_gives_way_to_one_who_comes_and_a_short_one_does_not() -> None:
    comes = list[bool]()
    model = Layers()
    steps = Steps(model, pressed=lambda: bool(comes), rate=300.0)
    seat, cache = steps.seat(), Cache()
    assert seat.piece(4096) == 4096, "nobody comes"
    waiting = asked(seat, [1] * 1000, of_tokens=2000, cache=cache)
    comes.append(True)
    steps.run()
    with pytest.raises(GaveWay):
        next(waiting)
    assert not model.steps and cache.length == 0 and steps.rate == 300.0
    assert seat.piece(4096) == 150, "half a second's"
    waiting = asked(seat, [1] * 150, of_tokens=2000, cache=cache)
    steps.run()
    assert result(waiting) == 1 and cache.length == 150


def test_a_long_piece_gives_way_to_one_who_came_since_it_was_cut() -> None:
    model = Model()
    model.seconds_a_token = 0.002
    steps = Steps(model, rate=200.0)
    seat = steps.seat()
    waiting = asked(seat, [1] * seat.piece(1000), of_tokens=2000)
    other = asked(steps.seat(), [2] * 50)
    steps._shortest_first = True  # it would be the turn of the oldest
    steps.run()
    with pytest.raises(GaveWay):
        next(waiting)
    waiting = asked(seat, [1] * seat.piece(1000), of_tokens=2000)
    steps.run()
    assert model.steps == [[[2] * 50]] and result(other) == 2


def test_a_prompt_whose_piece_gave_way_is_read_in_shorter_ones_to_the_same_end() -> None:
    comes = [True, True, False]  # from the last one on
    model = Model()
    steps = Steps(model, pressed=lambda: comes.pop() if comes else False, rate=300.0)
    sequence = CachedTokens(cast(Any, LongCache()))
    with steps.seat(makes_steps=True) as seat:
        answer = generate(seat, sequence, [1] * 1999 + [2], Forced([7, 8]), Unwatched(), max_tokens=2, chunk=1000)
        assert list(answer) == [7, 8]
    read = [len(step[0]) for step in model.steps]
    assert read == [150, 500, 1000, 350, 1], "half as long as what was given up, and then as long again"
    assert sequence.tokens == [1] * 1999 + [2, 7]


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


def test_where_nobody_waits_prompts_that_are_rounded_alike_are_read_together() -> None:
    model = Model()
    steps = Steps(model, cuts=False, together=200)
    sizes = (90, 20, 100, 30, 80, 20)
    waiting = [asked(steps.seat(), [number] * size, of_tokens=size) for number, size in enumerate(sizes)]
    while sum(map(len, model.steps)) < len(sizes):
        steps.run()
    assert [result(each) for each in waiting] == [0, 1, 2, 3, 4, 5]
    assert len(model.steps) == 4  # two of three long ones, and two of three short ones, which have 64 rows at most
    for step in model.steps:
        long = len(step[0]) > 64
        assert all((len(part) > 64) == long for part in step) and sum(map(len, step)) <= (200 if long else 64)
