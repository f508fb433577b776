"""The stopwatch's laps add up."""

from __future__ import annotations

from moeinf.laps import Laps


def test_laps_add_up_to_the_whole_and_a_restart_forgets_the_pause() -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 14.0])
    laps = Laps(lambda: next(times))
    assert (laps.lap("a"), laps.lap("b")) == (1.0, 2.0)
    laps.restart()
    assert laps.lap("a") == 4.0
    assert laps.snapshot() == {"a": 5.0, "b": 2.0}
