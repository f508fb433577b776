"""A disk that stops answering: the command can be ended, and says what it waits for."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.support.cli.hanging_disk import Hang

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library as Linux does")


@pytest.mark.parametrize("reader", ["native", "pure"])
def test_one_interrupt_ends_an_answer_that_waits_for_the_disk(hang: Hang, reader: str) -> None:
    child = hang.run("Once upon a time", "-n", "-1", "--expert-cache", "5%", "--reader", reader)
    try:
        assert child.stdout is not None and child.stdout.read(1)
        hang.mark.touch()
        hang.await_it(child)
        assert child.stderr is not None
        said = "waiting" if reader == "pure" else next(line for line in child.stderr if line.startswith("waiting"))
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=100)
    finally:
        child.kill()
    assert child.returncode == 130
    assert "Traceback" not in err and "the disk does not answer" in err
    assert reader == "pure" or re.search(r"^waiting for the disk: \d+ s for /.*/experts-0000\d\.bin$", said.strip())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_model_that_is_loading_from_a_disk_that_hangs(
    hang: Hang, number: signal.Signals, code: int
) -> None:
    hang.mark.touch()
    child = hang.run("Once upon a time", "-n", "3")  # all experts fit, and are read first
    try:
        hang.await_it(child)
        child.send_signal(number)
        _, err = child.communicate(timeout=100)
    finally:
        child.kill()
    assert child.returncode == code and "Traceback" not in err
