"""A thread that does nothing while somebody waits is told from one that works, however slowly."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from moeinf.server.turns import pulse
from moeinf.server.turns.pulse import Pulse, kept_waiting_s
from tests.support.spoken_worker import until

LOOK_S = 0.01
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="no clock of another thread there")


class Threads:
    """Threads of a pulse that go on until they are let go, whether somebody waits for them, and what they got."""

    def __init__(self) -> None:
        self.go_on, self.wanted, self.got = threading.Event(), True, 0
        self.pulse = Pulse(lambda: self.wanted, self.get, LOOK_S)
        self.reads = False

    def get(self) -> int:
        self.got += self.reads
        return self.got

    def start(self, *, computes: bool = False) -> threading.Thread:
        """computes: without a pause; else it sleeps until it is let go."""

        def run() -> None:
            while not (self.go_on.is_set() if computes else self.go_on.wait()):
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
    threads.start()
    until(lambda: threads.pulse.hangs)
    threads.start(computes=True)  # another one of these goes on
    until(lambda: not threads.pulse.hangs)


def test_a_thread_that_gets_something_now_and_then_does_not_hang(threads: Threads) -> None:
    threads.start()
    until(lambda: threads.pulse.hangs)
    threads.reads = True
    until(lambda: not threads.pulse.hangs)


def test_a_thread_that_the_system_keeps_waiting_does_not_hang(
    threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.start()
    until(lambda: threads.pulse.hangs)
    waits = itertools.count()
    monkeypatch.setattr(pulse, "kept_waiting_s", lambda thread: next(waits) * LOOK_S)
    until(lambda: not threads.pulse.hangs)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say so there")
def test_a_thread_is_kept_waiting_where_it_shares_a_processor() -> None:
    go_on, cores = threading.Event(), os.sched_getaffinity(0)
    found = list[float]()

    def run() -> None:
        os.sched_setaffinity(0, {min(cores)})  # of this thread alone
        while not go_on.is_set():
            hashlib.sha256(bytes(1 << 20))  # which lets others run
        found.append(kept_waiting_s(threading.get_native_id()))

    both = [threading.Thread(target=run) for _ in range(2)]
    for thread in both:
        thread.start()
    time.sleep(0.3)
    go_on.set()
    for thread in both:
        thread.join()
    assert min(found) > 0 and kept_waiting_s(2**30) == 0


def test_nothing_hangs_where_nobody_waits(threads: Threads) -> None:
    threads.start()
    until(lambda: threads.pulse.hangs)
    threads.wanted = False
    until(lambda: not threads.pulse.hangs)


def test_a_thread_that_has_ended_is_forgotten(threads: Threads) -> None:
    ended = threads.start()
    threads.go_on.set()
    ended.join()
    until(lambda: not threads.pulse._clocks)
    assert not threads.pulse.hangs
