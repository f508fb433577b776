"""A system that gives few threads, or little memory: the same tokens, or one line."""

from __future__ import annotations

import errno
import json
import signal
import sys

import pytest

from moeinf.store.library import StoredModel
from tests.support.faults.denied_calls import WORDS
from tests.support.faults.forks import Case, Forks, told_in_a_line
from tests.support.faults.reader_calls import FOR_EVER, THREAD

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library as Linux does")


@pytest.mark.parametrize(("command", "counts"), [("run", (0, 1, 6)), ("serve", (1, 3, 9))])
def test_threads_that_do_not_start_are_done_without_or_told_in_a_line(
    forks: Forks, demo: StoredModel, command: str, counts: tuple[int, ...]
) -> None:
    home = str(demo.path.parents[1])
    answer = forks.run(Case(WORDS["run"], home)).out
    for count in counts:
        done = forks.run(Case(WORDS[command], home, fault=(THREAD, count, FOR_EVER, errno.EAGAIN)))
        assert not done.hung and "Traceback" not in done.err and "report it" not in done.err, done
        if done.status == 200:
            assert json.loads(done.answer)["response"] == answer.rstrip("\n")
        elif done.status:
            assert done.status in (500, 503) and "thread" in done.answer + done.err, done
        else:
            assert done.out == answer if done.code == 0 else not told_in_a_line(done), done


def test_little_address_space_is_enough_or_told_in_a_line(forks: Forks, demo: StoredModel) -> None:
    home = str(demo.path.parents[1])
    answer, codes = forks.run(Case(WORDS["run"], home)).out, set()
    for megabytes in (150, 300, 400, 500, 4000):
        done = forks.run(Case(WORDS["run"], home, limits={"RLIMIT_AS": megabytes << 20}))
        if "OpenBLAS error" in done.err or "lost sys.stderr" in done.err:  # they end the process by themselves
            assert done.code == 1
        elif "Cannot recover from MemoryErrors" in done.err:  # so does Python, where no line of a program can help
            assert done.code == -signal.SIGABRT
        else:
            codes.add(done.code)
            assert done.out == answer if done.code == 0 else not told_in_a_line(done), done
    assert 0 in codes
