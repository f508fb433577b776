"""A short run of tests/support/faults/denied_calls.py; `make denied-calls` makes a long one."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

import pytest

from moeinf.store.library import StoredModel
from tests.support.faults.denied_calls import SPARED, Denials
from tests.support.faults.forks import Forks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has filters of system calls")

# Each of these ends a command today, by a line of its own; what is refused and answered all the same is in SPARED.
ENDING = {
    "run": ("clone3", "execve", "prlimit64", "setitimer", "socketpair", "mmap", "preadv2", "lseek", "fcntl"),
    "pull": ("ftruncate", "pwrite64", "rename", "fsync", "rmdir"),
    "doctor": ("openat", "newfstatat", "mmap"),
    "serve": ("bind", "listen", "clone3", "prlimit64", "execve"),
}


@pytest.fixture(scope="module")
def denials(demo: StoredModel) -> Iterator[Denials]:
    forks = Forks()
    yield Denials(forks, demo.path.parents[1])
    forks.close()


@pytest.mark.parametrize("command", ["run", "pull", "serve"])
def test_calls_that_the_product_can_do_without_are_refused_and_the_tokens_are_the_same(
    denials: Denials, command: str
) -> None:
    for number in (errno.EPERM, errno.ENOSYS) if command == "run" else (errno.EPERM,):
        assert not denials.wrong(command, SPARED, number, must_work=True)


@pytest.mark.parametrize("command", ENDING)
def test_any_other_refused_call_ends_in_one_line_and_spares_the_store(denials: Denials, command: str) -> None:
    wrong = [denials.wrong(command, [call], errno.EPERM) for call in ENDING[command]]
    assert not any(wrong), "\n".join(filter(None, wrong))
