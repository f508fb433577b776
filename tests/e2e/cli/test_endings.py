"""SIGTERM and SIGHUP end any command as Ctrl-C does, also where it is the first process of a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest

from tests.support.cli.commands import COMMAND

ANSWER = ("run", "demo", "Once upon a time", "-n", "-1", "--temperature", "1.5", "-t", "1", "-q")
FIRST = ("unshare", "-Urpf", "--mount-proc")  # as the first process of a container

# A command that says when a function is called.
AT = """
import os
real = {0}
def told(*args, **kwargs):
    os.write(1, b"here\\n")
    return real(*args, **kwargs)
{0} = told
from moeinf.__main__ import main
main()
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """start(*words) -> the process, with its standard output in a pipe."""
    children = []

    def begin(*words: str, **changes: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            words,
            env=environment | changes,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def may_be_first() -> bool:
    return subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0


first_process = pytest.mark.skipif(not may_be_first(), reason="no user namespaces here (unshare -Urpf)")


def first_of(child: subprocess.Popen[bytes]) -> int:
    """The process that unshare has started, which is number 1 to itself."""
    return int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_answer_ends_where_it_is(start: Start, number: signal.Signals, code: int) -> None:
    child = start(*COMMAND, *ANSWER)
    assert child.stdout is not None and child.stdout.read(1)
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert child.returncode == code and b"Traceback" not in err


@first_process
def test_an_answer_ends_as_the_first_process(start: Start) -> None:
    child = start(*FIRST, *COMMAND, *ANSWER)
    assert child.stdout is not None and child.stdout.read(1)
    os.kill(first_of(child), signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 143 and b"Traceback" not in err


@first_process
@pytest.mark.parametrize("words", [["doctor"], ["pull", "demo"]], ids=" ".join)
def test_work_that_is_ended_leaves_no_more_than_it_may(start: Start, words: list[str], tmp_path: Path) -> None:
    code = AT.format("os.fsync")  # in the middle of what it writes
    child = start(*FIRST, sys.executable, "-c", code, *words, MOEINF_HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    os.kill(first_of(child), signal.SIGTERM)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 143 and b"Traceback" not in err
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"partial", "models", "names", ".lock"} and (words[0] == "pull") == (b"goes on where" in err)


def test_a_measurement_that_is_killed_leaves_nothing(start: Start, tmp_path: Path) -> None:
    code = AT.format("os.fsync")
    child = start(sys.executable, "-c", code, "doctor", MOEINF_HOME=str(tmp_path), TMPDIR=str(tmp_path))
    assert child.stdout is not None and child.stdout.readline() == b"here\n"
    child.kill()
    child.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_ends_it_at_once(start: Start) -> None:
    """The first one is being heeded: what is opened is closed, which takes as long as it takes."""
    code = """
import os, signal, time
from moeinf.terminal.process.interrupt import unwind_at_endings
unwind_at_endings()
try:
    os.kill(os.getpid(), signal.SIGHUP)
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""
    assert start(sys.executable, "-c", code).wait(30) == -signal.SIGTERM
    if may_be_first():
        assert start(*FIRST, sys.executable, "-c", code).wait(30) == 143


def test_nohup_is_heeded(start: Start) -> None:
    code = (
        "import os, signal, sys; from moeinf.terminal.process.interrupt import unwind_at_endings; unwind_at_endings(); "
        "os.kill(os.getpid(), signal.SIGHUP); sys.exit(7)"
    )
    assert start("nohup", sys.executable, "-c", code).wait(30) == 7


def test_a_chat_at_its_prompt_ends_and_leaves_the_terminal_as_it_was(environment: dict[str, str]) -> None:
    child = pexpect.spawn(COMMAND[0], [*COMMAND[1:], "run", "demo"], env=environment, timeout=60, dimensions=(24, 80))
    try:
        child.expect_exact(">>> ")
        child.kill(signal.SIGTERM)
        child.expect(pexpect.EOF)
        child.wait()
        assert child.exitstatus == 143 and b"Traceback" not in child.before and b"\x1b[?2004l" in child.before
    finally:
        child.close(force=True)


def test_a_terminal_that_is_closed_ends_the_chat_on_it(environment: dict[str, str]) -> None:
    """SIGHUP comes, and nothing can be written to the terminal any more."""
    child = pexpect.spawn(COMMAND[0], [*COMMAND[1:], "run", "demo"], env=environment, timeout=60, dimensions=(24, 80))
    try:
        child.expect_exact(">>> ")
        child.ptyproc.fileobj.close()
        assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 129
    finally:
        child.ptyproc.closed = child.closed = child.terminated = True
