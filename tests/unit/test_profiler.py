"""The laps of a profiler add up."""

from __future__ import annotations

from moeinf.types import Profiler


def test_laps_add_up_to_the_whole_and_a_restart_forgets_the_pause() -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0])
    profiler = Profiler(lambda: next(times))
    assert (profiler.lap("a"), profiler.lap("b")) == (1.0, 2.0)
    profiler.restart()
    assert profiler.lap("a") == 4.0
    assert profiler.snapshot() == {"a": 5.0, "b": 2.0}
