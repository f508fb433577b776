"""Each call of the readers fails in turn, with many errnos and from several calls on."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from moeinf.store.library import StoredModel
from tests.support.faults import reader_calls
from tests.support.faults.forks import Case, Forks, told_in_a_line
from tests.support.faults.reader_calls import DIRECT_OPEN, DIRECT_READ, FOR_EVER, OPEN, READ
from tests.support.faults.seccomp import numbers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library as Linux does")


def test_readers_bring_the_bytes_or_say_which_file_they_cannot_read(preloaded: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", reader_calls.__name__],
        env=os.environ | preloaded,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"^(\d+) cases", done.stdout)[0]) > 2500


def by_threads(words: Sequence[str], home: str, kind: int, skipped: int, number: int) -> Case:
    """A command whose reads are calls of pread, as there is no io_uring, and from some call on fail."""
    return Case(words, home, [numbers()["io_uring_setup"]], errno.ENOSYS, fault=(kind, skipped, FOR_EVER, number))


@pytest.mark.parametrize(
    ("kind", "skipped", "number"),
    [
        (DIRECT_OPEN, 0, errno.EOPNOTSUPP),
        (DIRECT_READ, 12, errno.EINVAL),  # not at the block that is read to try
    ],
)
def test_a_run_whose_direct_reads_are_refused_says_so_once_and_answers_the_same(
    forks: Forks, demo: StoredModel, kind: int, skipped: int, number: int
) -> None:
    home = str(demo.path.parents[1])
    words = ["run", "demo", "--expert-cache", "33%", "--seed", "7", "-n", "6", "-q", "The king said"]
    expected = forks.run(Case(words, home))
    done = forks.run(by_threads(words, home, kind, skipped, number))
    assert (done.code, done.out) == (0, expected.out), done
    assert "O_DIRECT" not in expected.err
    assert done.err.count("O_DIRECT refused for") == 1 and os.strerror(number) in done.err


@pytest.mark.parametrize(("kind", "number"), [(OPEN, errno.EMFILE), (READ, errno.EPERM)])
def test_a_run_that_cannot_read_at_all_ends_in_a_line_that_costs_no_sound_store(
    forks: Forks, demo: StoredModel, kind: int, number: int
) -> None:
    home = str(demo.path.parents[1])
    done = forks.run(by_threads(["run", "demo", "-n", "3", "-q", "x"], home, kind, 0, number))
    assert done.code == 1 and not told_in_a_line(done), done
    assert os.strerror(number) in done.err and "pull` it again" not in done.err
