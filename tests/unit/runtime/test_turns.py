"""One request at a time: which calls are refused, which end an answer, and what closing waits for."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from moeinf.errors import StoreError, UsageError
from moeinf.runtime.turns import Turns


def letters(ended: list[str], name: str = "answer") -> Generator[str, None, None]:
    try:
        yield from "abc"
    finally:
        ended.append(name)


def elsewhere(call: Callable[[], Any]) -> Any:
    """What a call returns or raises on another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(30)


def call_alone(turns: Turns) -> None:
    with turns.alone():
        pass


def test_an_answer_has_the_model_from_its_first_piece_to_its_end() -> None:
    turns, ended = Turns("demo"), list[str]()
    waiting, answer = turns.answer(letters(ended)), turns.answer(letters(ended))
    assert next(answer) == "a"
    with pytest.raises(UsageError, match="demo is answering another request; wait until"):
        elsewhere(lambda: next(waiting))
    with pytest.raises(UsageError, match="is answering another request"):
        elsewhere(lambda: call_alone(turns))
    assert list(answer) == ["b", "c"] and ended == ["answer"]
    assert list(turns.answer(letters(ended))) == ["a", "b", "c"]


def test_an_answer_may_be_read_from_one_thread_after_the_other() -> None:
    turns = Turns("demo")
    answer = turns.answer(letters([]))
    assert [next(answer), elsewhere(lambda: next(answer)), next(answer)] == ["a", "b", "c"]


def test_the_next_request_of_the_same_thread_ends_an_answer_that_is_read_in_part() -> None:
    turns, ended = Turns("demo"), list[str]()
    first, second = turns.answer(letters(ended, "first")), turns.answer(letters(ended, "second"))
    assert next(first) == "a" and next(second) == "a" and ended == ["first"]
    with pytest.raises(UsageError, match="ended by a later request of the same thread"):
        next(first)
    assert list(second) == ["b", "c"]


@pytest.mark.parametrize("end", ["close", "forget", "error"])
def test_an_answer_that_is_not_read_on_leaves_the_model_free(end: str) -> None:
    def failing() -> Generator[str, None, None]:
        yield "a"
        raise MemoryError

    turns = Turns("demo")
    answer = turns.answer(failing())
    next(answer)
    if end == "close":
        answer.close()
    elif end == "error":
        with pytest.raises(MemoryError):
            next(answer)
    del answer
    gc.collect()
    elsewhere(lambda: call_alone(turns))


def test_what_an_answer_calls_may_neither_ask_nor_close_the_model() -> None:
    turns = Turns("demo")

    def asking() -> Generator[str, None, None]:
        for call in (lambda: call_alone(turns), lambda: next(turns.answer(letters([])))):
            with pytest.raises(UsageError, match="is answering another request"):
                call()
        with pytest.raises(UsageError, match="cannot be closed by what its own answer calls"):
            turns.close()
        yield "a"

    assert list(turns.answer(asking())) == ["a"]
    call_alone(turns)


def test_closing_waits_for_a_step_which_is_told_to_end() -> None:
    turns, steps, ended = Turns("demo"), threading.Semaphore(0), list[str]()

    def computing() -> Generator[str, None, None]:
        try:
            steps.release()
            while not turns.ending:
                threading.Event().wait(0.001)
            yield "the step has ended"
        finally:
            ended.append("answer")

    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: list(turns.answer(computing())))
        assert steps.acquire(timeout=30)
        assert turns.close()
        with pytest.raises(StoreError, match="model demo is closed"):
            read.result(30)
    assert ended == ["answer"]
    assert turns.close()
    with pytest.raises(StoreError, match="model demo is closed"):
        call_alone(turns)


def test_closing_ends_an_answer_that_another_thread_reads() -> None:
    turns, ended = Turns("demo"), list[str]()
    answer = turns.answer(letters(ended))
    next(answer)
    assert elsewhere(turns.close) and ended == ["answer"]
    with pytest.raises(StoreError, match="closed"):
        next(answer)


def test_closing_gives_up_where_a_step_does_not_end() -> None:
    turns, steps, over = Turns("demo"), threading.Semaphore(0), threading.Event()

    def stuck() -> Generator[str, None, None]:
        steps.release()
        over.wait(30)
        yield "late"

    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(lambda: next(turns.answer(stuck())))
        assert steps.acquire(timeout=30)
        assert not turns.close(0.01)
        over.set()
        with pytest.raises(StoreError, match="closed"):
            read.result(30)
    assert turns.close()


def test_an_interrupt_at_any_call_leaves_the_model_free() -> None:
    """KeyboardInterrupt where the n-th function of a request begins, as Python raises Ctrl-C."""

    def interrupted(at: int) -> bool:
        turns, seen = Turns("demo"), 0

        def count(frame: object, event: str, arg: object) -> None:
            nonlocal seen
            seen += event == "call"
            if seen == at:
                sys.settrace(None)
                raise KeyboardInterrupt

        before = sys.gettrace()
        sys.settrace(count)
        try:
            list(turns.answer(letters([])))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        elsewhere(lambda: call_alone(turns))
        return seen >= at

    at = 1
    while interrupted(at):
        at += 1
    assert at > 10


def test_a_fork_is_refused() -> None:
    turns = Turns("demo")
    answer = turns.answer(letters([]))
    next(answer)
    turns._process = os.getppid()
    assert turns.forked
    for call in (lambda: next(answer), lambda: call_alone(turns), turns.check):
        with pytest.raises(UsageError, match="opened by the process that this one was forked from"):
            call()
