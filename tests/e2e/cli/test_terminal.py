"""The command on a real terminal."""

from __future__ import annotations

import io
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from moeinf.store.library import Library
from tests.support.cli.commands import COMMAND

Spawn = Callable[..., pexpect.spawn]
ENDLESS = ("-n", "2000", "--temperature", "0", "-t", "1")


@pytest.fixture
def spawn(environment: dict[str, str], tmp_path: Path) -> Iterator[Spawn]:
    children = []

    def start(*words: str, **changes: str) -> pexpect.spawn:
        child = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], *words],
            env=environment | changes,
            encoding="utf-8",
            timeout=60,
            dimensions=(24, 80),
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


def screen_of(text: str, rows: int = 24) -> Any:
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(80, rows)
    pyte.Stream(screen).feed(text)
    return screen


def lines_of(screen: Any) -> list[str]:
    return [line.rstrip() for line in screen.display if line.strip()]


def test_a_chat_from_the_first_prompt_to_ctrl_d(spawn: Spawn, home: Path) -> None:
    child = spawn("run", "demo", "-n", "400", "--temperature", "0", "-t", "1")
    child.expect("demo:latest · ")  # where the memory went
    child.expect(">>> ")
    child.send("/dance\r")
    child.expect_exact("Unknown command '/dance'. Type /? for help")
    child.expect(">>> ")
    child.send("Once upon a time\r")
    child.expect("base model")
    child.expect("the")  # some of the answer
    child.send("\x03")
    child.expect_exact("[interrupted]")
    child.expect(">>> ")
    child.send("/set parameter num_predict 5\r")
    child.expect_exact("Set parameter 'num_predict' to '5'")
    child.expect(">>> ")
    child.send('"""a block\r')
    child.expect_exact("...")
    child.send('of two lines"""\r')
    child.expect(">>> ")
    child.send("\x1b[200~pasted\nlines\x1b[201~")  # a paste does not submit
    child.send("\r")
    child.expect(">>> ")
    child.send("half a line\x03")  # cleared
    child.send("\x03")
    child.expect_exact("Use Ctrl + d or /bye to exit.")
    child.expect(">>> ")
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0
    history = (home / "history").read_text()
    assert '"pasted\\nlines"' in history and (home / "history").stat().st_mode & 0o777 == 0o600


def test_what_is_typed_during_an_answer_is_not_echoed_and_a_chat_can_be_saved(spawn: Spawn, home: Path) -> None:
    child = spawn("run", "demo", "-n", "400", "--temperature", "0", "-t", "1", "-q")
    child.logfile_read = shown = io.StringIO()
    child.expect(">>> ")
    child.send("Once upon a time\r")
    child.expect("the")
    child.send("/save kept\r")
    child.expect_exact("Saved this chat")
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.wait()
    screen = screen_of(shown.getvalue(), rows=99)
    assert [line for line in lines_of(screen) if "/save kept" in line] == [">>> /save kept"]
    again = spawn("run", "kept", "-q")
    again.expect_exact(">>> Once upon a time")  # what was said
    again.expect_exact(">>> ")
    again.send("/bye\r")
    again.expect(pexpect.EOF)
    again.wait()
    Library(home).remove("kept")
    assert (child.exitstatus, again.exitstatus) == (0, 0)


def test_a_dumb_terminal_gets_plain_lines(spawn: Spawn) -> None:
    child = spawn("run", "demo", "-n", "90", TERM="dumb", MOEINF_NOHISTORY="1")  # long enough to be wrapped
    child.logfile_read = shown = io.StringIO()
    child.expect(">>> ")
    child.sendline("Once")
    child.expect(">>> ")
    child.sendline("/bye")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0 and "\x1b" not in shown.getvalue()


@pytest.mark.parametrize("words", [("pull", "demo:chat"), ("verify", "demo"), ("run", "demo", "Once", "-n", "90")])
def test_what_draws_elsewhere_writes_plain_lines_on_a_dumb_terminal(
    words: tuple[str, ...], spawn: Spawn, tmp_path: Path
) -> None:
    store = {"MOEINF_HOME": str(tmp_path)} if words[0] == "pull" else {}  # the store of other tests has one model
    child = spawn(*words, TERM="dumb", **store)
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0 and "\x1b" not in child.before


def test_one_answer_on_a_terminal_ends_with_an_empty_line(spawn: Spawn) -> None:
    child = spawn("run", "demo", "Once upon a time", "-n", "5", "--seed", "1", "-q")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0 and child.before.endswith("\r\n\r\n")


def test_sigint_in_the_middle_of_an_answer_ends_it_with_130(environment: dict[str, str]) -> None:
    child = subprocess.Popen(
        [*COMMAND, "run", "demo", "Once upon a time", *ENDLESS],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert child.stdout is not None and child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert out.endswith(b"\n") and b"Traceback" not in err and b"\x1b" not in err


def test_a_pull_on_a_terminal_ends_with_success_and_leaves_no_bar(spawn: Spawn, tmp_path: Path) -> None:
    child = spawn("pull", "demo", MOEINF_HOME=str(tmp_path))
    child.expect(pexpect.EOF)
    child.wait()
    screen = screen_of(child.before)
    assert child.exitstatus == 0 and lines_of(screen) == ["pulling manifest", "success"]
    assert not screen.cursor.hidden
