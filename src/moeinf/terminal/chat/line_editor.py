"""Reads what the user types, with line editing and a history where the terminal can do that."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import History
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.shortcuts import CompleteStyle

from moeinf.config.user_text import decoded
from moeinf.store.processes.locks import locked
from moeinf.terminal.chat.keyboard import hush, lines_typed_ahead
from moeinf.terminal.chat.tab_completion import CommandCompleter
from moeinf.terminal.process.interrupt import Ended, endings_told
from moeinf.terminal.screen import moves_cursor

_MAX_ENTRIES = 1000
_HINTS = {  # what stands behind a prompt until something is typed
    ">>> ": HTML('<style color="ansibrightblack">Send a message (/? for help)</style>'),
    "... ": HTML('<style color="ansibrightblack">Use """ to end the message</style>'),
}


class LineReader(Protocol):
    keep_history: bool

    def read(self, prompt: str) -> str:
        """One entry, which may hold newlines. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        ...

    def remember(self, entry: str) -> None:
        """Puts an entry, which may be made of several that were read, into the history."""
        ...


def open_reader(history_path: Path | None) -> LineReader:
    """The reader for this terminal. history_path None: nothing is kept."""
    return EditedLines(history_path) if moves_cursor() else PlainLines()


class PlainLines:
    """Reads lines on a terminal without cursor control."""

    keep_history = False

    def read(self, prompt: str) -> str:
        return input(prompt)

    def remember(self, entry: str) -> None:
        pass


class EditedLines:
    """Reads with Emacs keys and bracketed paste. Ctrl-J begins a new line, Ctrl-C clears one that is not empty.

    A terminal is left hushed (see keyboard.py), so that what is typed meanwhile is read at the next prompt.
    """

    def __init__(self, history_path: Path | None) -> None:
        self._history = FileHistory(history_path)
        self._begun = False
        self._session: PromptSession[str] = PromptSession(
            history=self._history,
            completer=CommandCompleter(),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_key_bindings(),
            enable_suspend=True,
            prompt_continuation=lambda width, line, is_soft_wrap: "" if is_soft_wrap else "... ",
        )

    @property
    def keep_history(self) -> bool:
        return self._history.keep

    @keep_history.setter
    def keep_history(self, keep: bool) -> None:
        self._history.keep = keep

    def read(self, prompt: str) -> str:
        source = self._session.app.input
        if os.isatty(source.fileno()):
            hush(source.fileno())
            if not self._begun:
                keys: list[KeyPress] = []
                Vt100Parser(keys.append).feed_and_flush(lines_typed_ahead(source.fileno()))
                store_typeahead(source, keys)
        self._begun = True
        with endings_told(self._leave):
            line = self._session.prompt(prompt, placeholder=_HINTS.get(prompt, ""))
        output = self._session.app.output
        output.enable_bracketed_paste()  # of what is pasted until the next prompt
        output.flush()
        return line

    def remember(self, entry: str) -> None:
        self._history.add(entry)

    def _leave(self, ended: Ended) -> None:
        """Has the prompt end by this, which gives the terminal back."""
        app = self._session.app
        if app.loop is not None and app.is_running:
            app.loop.call_soon_threadsafe(lambda: app.exit(exception=ended) if not app.is_done else None)


def _key_bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("c-j")
    def newline(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def clear_or_leave(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt(), style="class:aborting")

    @bindings.add(Keys.Vt100MouseEvent)
    def ignore(event: KeyPressEvent) -> None:
        """The mouse is off: somebody typed a sequence like ESC[31m, which the library cannot take apart."""

    return bindings


class FileHistory(History):
    """The last 1000 entries in a file of mode 0600, one JSON string a line, so that newlines survive.

    A history that cannot be read or written is none: it is never worth an error.
    """

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.keep = path is not None
        self._path = path

    def append_string(self, string: str) -> None:
        """Does nothing: the library calls it with each line, and an entry may have several."""

    def add(self, entry: str) -> None:
        """Keeps an entry, unless it is empty or the last one again."""
        if entry.strip() and self.get_strings()[-1:] != [entry]:
            super().append_string(entry)

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._entries())

    def store_string(self, string: str) -> None:
        if self.keep and self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with locked(self._path.parent, folder=True):  # other chats write to the same file
                    entries = [*self._entries(), string][-_MAX_ENTRIES:]
                    _replace(self._path, "".join(json.dumps(entry) + "\n" for entry in entries))
            except OSError:
                self.keep = False

    def _entries(self) -> list[str]:
        try:
            text = decoded(self._path.read_bytes()) if self._path else ""
        except OSError:
            return []
        return [entry for entry in map(_entry, text.split("\n")) if isinstance(entry, str)]


def _entry(line: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _replace(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all; mkstemp makes it readable to its owner only."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".history")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
