"""What is typed on a terminal, key by key."""

from __future__ import annotations

import io
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.output.vt100 import Vt100_Output

from moeinf.store.library import StoredModel
from moeinf.terminal.chat.help import HELP, words_of
from moeinf.terminal.chat.line_editor import EditedLines
from moeinf.terminal.chat.tab_completion import CommandCompleter

COLUMNS, ROWS = 40, 12
Type = Callable[..., str]


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def type_keys(shown: io.StringIO, tmp_path: Path) -> Iterator[Type]:
    """type_keys(keys, prompt=">>> ") -> the line that was read; all are of one session."""
    output = Vt100_Output(shown, lambda: Size(rows=ROWS, columns=COLUMNS), term="xterm", enable_cpr=False)
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=output):
        reader = EditedLines(tmp_path / "history")

        def read(keys: str, prompt: str = ">>> ", remember: str = "") -> str:
            pipe.send_text(keys)
            line = reader.read(prompt)
            reader.remember(remember or line)
            return line

        yield read


def screen_of(shown: io.StringIO) -> list[str]:
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(COLUMNS, ROWS)
    pyte.Stream(screen).feed(shown.getvalue())
    return [line.rstrip() for line in screen.display if line.strip()]


@pytest.mark.parametrize("sequence", ["\x1b[31m", "\x1b[1;2M", "\x1b[<0;1m", "\x1b[M~~~", "\x1b[5;5R"])
def test_a_sequence_that_no_key_sends_does_not_end_the_chat(type_keys: Type, sequence: str) -> None:
    assert type_keys(f"a{sequence}b\r\r") == "ab"  # the second for the question that follows an error


def test_a_line_that_is_too_long_for_the_screen_goes_on_without_a_prompt(type_keys: Type, shown: io.StringIO) -> None:
    assert type_keys("x" * 100 + "\r") == "x" * 100
    assert screen_of(shown) == [">>> " + "x" * 36, "x" * 40, "x" * 24]


def test_a_new_line_in_a_message_has_the_prompt_of_a_block(type_keys: Type, shown: io.StringIO) -> None:
    assert type_keys("one\ntwo\r") == "one\ntwo"
    assert screen_of(shown) == [">>> one", "... two"]


def test_only_an_empty_first_line_says_what_to_do(type_keys: Type, shown: io.StringIO) -> None:
    type_keys("\r")
    assert "Send a message" in shown.getvalue()
    shown.seek(0)
    shown.truncate()
    type_keys("\r", prompt="... ")
    assert "Send a message" not in shown.getvalue()


def test_an_entry_of_several_lines_comes_back_as_one(type_keys: Type) -> None:
    type_keys('"""a\r', remember='"""a\nb"""')
    type_keys("next\r")
    assert type_keys("\x1b[A\x1b[A\r") == '"""a\nb"""'


@pytest.fixture
def terminal(shown: io.StringIO, tmp_path: Path) -> Iterator[tuple[io.FileIO, EditedLines]]:
    """The keyboard of a terminal, and what reads from it."""
    keyboard, terminal = os.openpty()
    output = Vt100_Output(shown, lambda: Size(rows=ROWS, columns=COLUMNS), term="xterm", enable_cpr=False)
    with (
        os.fdopen(keyboard, "r+b", buffering=0) as keys,
        os.fdopen(terminal) as stdin,
        create_app_session(input=Vt100Input(stdin), output=output),
    ):
        yield keys, EditedLines(tmp_path / "history")


def test_lines_typed_before_the_first_prompt_are_entered_one_by_one(terminal: tuple[io.FileIO, EditedLines]) -> None:
    keys, reader = terminal
    keys.write("/stats\rtwö\r\x04".encode())
    assert [reader.read(">>> "), reader.read(">>> ")] == ["/stats", "twö"]
    with pytest.raises(EOFError):
        reader.read(">>> ")


def test_keys_between_two_prompts_stay_what_they_are_and_are_not_echoed(
    terminal: tuple[io.FileIO, EditedLines], shown: io.StringIO
) -> None:
    keys, reader = terminal
    keys.write(b"first\r")
    assert reader.read(">>> ") == "first"
    while select.select([keys], [], [], 0)[0]:
        keys.read(4096)  # which was echoed, as there had been no prompt yet
    assert shown.getvalue().endswith("\x1b[?2004h"), "a paste meanwhile is told as one"
    keys.write(b"a\nb\rnext\r")  # Ctrl-J begins a new line, Enter ends the message
    assert not select.select([keys], [], [], 0.1)[0], "the terminal has echoed it"
    assert [reader.read(">>> "), reader.read(">>> ")] == ["a\nb", "next"]
    keys.write(b"\x1b[200~one\rtwo\x1b[201~\r")
    assert reader.read(">>> ") == "one\ntwo"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("/sa\tx", "/save x"),
        ("/set para\ttempe\t1", "/set parameter temperature 1"),
        ("/set verb\t", "/set verbose "),
        ("/show te\t", "/show template "),
        ("/? sho\trt\t", "/? shortcuts "),
        ("/nothing\t", "/nothing"),
        ("say /sa\t", "say /sa"),
    ],
)
def test_tab_completes_commands_and_nothing_else(type_keys: Type, keys: str, line: str) -> None:
    assert type_keys(f"{keys}\r") == line


def test_tab_completes_the_names_of_models_and_pictures(
    type_keys: Type, demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    (tmp_path / "picture.png").touch()
    assert type_keys("/load de\t\r") == "/load demo "
    assert type_keys(f"/read {tmp_path}/pic\t\r") == f"/read {tmp_path}/picture.png"


def test_every_command_that_help_lists_is_completed_and_known() -> None:
    words = [words for words in words_of(HELP) if " " not in words]
    assert {"/set", "/load", "/save", "/read", "/bye", "/?"} <= set(words)
    for word in words:
        [*found] = CommandCompleter().get_completions(Document(word[:-1]), CompleteEvent())
        assert word in [each.text.rstrip() for each in found]
