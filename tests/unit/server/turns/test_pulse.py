"""A thread that does nothing while somebody waits is told from one that works, however slowly."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from moeinf.server.turns.pulse import Pulse
from tests.support.spoken_worker import until

LOOK_S = 0.01
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="no clock of another thread there")


class Threads:
    """A thread of a pulse that waits until it is let go, and whether somebody waits for it."""

    def __init__(self) -> None:
        self.go_on, self.wanted = threading.Event(), True
        self.pulse = Pulse(lambda: self.wanted, LOOK_S)

    def start(self, wait_s: float | None) -> threading.Thread:
        """wait_s: after which it looks whether it is let go, again and again; None: it sleeps until it is."""

        def run() -> None:
            while not self.go_on.wait(wait_s):
                pass

        thread = threading.Thread(target=self.pulse.of(run))
        thread.start()
        return thread


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.go_on.set()
    made.pulse.end()


def test_a_thread_that_sleeps_while_somebody_waits_hangs_until_it_goes_on(threads: Threads) -> None:
    threads.start(None)
    until(lambda: threads.pulse.hangs)
    threads.start(LOOK_S / 10)  # another one of these goes on
    until(lambda: not threads.pulse.hangs)


def test_nothing_hangs_where_nobody_waits(threads: Threads) -> None:
    threads.start(None)
    until(lambda: threads.pulse.hangs)
    threads.wanted = False
    until(lambda: not threads.pulse.hangs)


def test_a_thread_that_has_ended_is_forgotten(threads: Threads) -> None:
    ended = threads.start(LOOK_S)
    threads.start(None)
    threads.go_on.set()
    ended.join()
    until(lambda: not threads.pulse._clocks)
    assert not threads.pulse.hangs
