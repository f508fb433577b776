"""Work for several threads, of which the system may refuse any."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from moeinf.threads import mapped


@pytest.mark.parametrize("num_started", [0, 1, 2, 100])
def test_results_come_in_order_however_many_threads_are_refused(
    monkeypatch: pytest.MonkeyPatch, num_started: int
) -> None:
    start, started = threading.Thread.start, list[Any]()

    def refuse(thread: Any) -> None:
        if len(started) == num_started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert list(mapped(lambda number: number * number, range(50), 4)) == [number * number for number in range(50)]


def test_an_error_comes_in_its_turn() -> None:
    found = mapped(lambda number: 1 // number, [1, 0, 1], 2)
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)
