"""What a user hears of a disk that does not answer."""

from __future__ import annotations

import pytest

from moeinf.engine.disk_wait import DiskWait
from moeinf.sampling.step_queue import Interrupted


def test_a_wait_is_told_after_five_seconds_and_then_each_thirty() -> None:
    said: list[str] = []
    wait = DiskWait(said.append)
    for tenth in range(1, 700):
        wait(tenth / 10, "/store/experts-00001.bin")
    assert said == [f"waiting for the disk: {seconds} s for /store/experts-00001.bin" for seconds in (5, 35, 65)]


def test_each_wait_counts_for_itself() -> None:
    said: list[str] = []
    wait = DiskWait(said.append)
    for seconds in (0.1, 4.9, 0.1, 4.9, 0.1, 5.0, 0.1, 5.0):
        wait(seconds, "a")
    assert len(said) == 2


def test_an_answer_that_is_to_stop_waits_no_longer() -> None:
    wait = DiskWait(lambda line: None)
    stopping = False
    wait.should_stop.append(lambda: stopping)
    wait(0.1, "a")
    stopping = True
    with pytest.raises(Interrupted):
        wait(0.2, "a")
