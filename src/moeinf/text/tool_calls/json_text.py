"""Reads JSON text as it comes, and passes on what is certain.

Nothing is repaired but what a string can only mean one way: control characters as they are, such as line breaks, and
backslashes before characters that JSON knows no escape for, as in regular expressions.
"""

from __future__ import annotations

import json
import re
from typing import Any

from moeinf.text.stream import TOKEN_MARK
from moeinf.text.tool_calls.reading import Fragment, NotACallError, Reading, Result, Source

_MAX_DEPTH = 100  # of arrays and objects; far below what parsers of clients bear
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[-+.\w]+")
_LITERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false|null", re.ASCII)
_CLOSERS = {"{": "}", "[": "]"}


def read_json(source: Source) -> Reading[None]:
    """Yields the text of one JSON value as Fragments. Raises NotACallError behind the last that was well formed."""
    scanner = _Scanner()
    while True:
        text = scanner.take(source)
        if text:
            yield Fragment(text)
        if scanner.failed:
            raise NotACallError
        if scanner.done:
            return
        yield from source.more()


def joined(reading: Reading[Result]) -> Reading[str]:
    """The fragments of a reading as one text, which nobody else sees."""
    text = ""
    for event in reading:
        if event is None:
            yield None
        elif isinstance(event, Fragment):
            text += event.text
    return text


def read_value(source: Source) -> Reading[Any]:
    """One JSON value, once it is whole."""
    text = yield from joined(read_json(source))
    try:
        return json.loads(text)
    except ValueError:  # a number of more digits than Python reads
        raise NotACallError from None


class _Scanner:
    """A pushdown automaton over the characters of one JSON value."""

    def __init__(self) -> None:
        self.done = self.failed = False
        self._closers: list[str] = []
        self._state = "value"  # or first value, first key, key, colon, after, string, key string

    def take(self, source: Source) -> str:
        """Passes over what is certain, up to the end of the value or to what is no JSON; returns its text."""
        taken: list[str] = []
        while not self.done and source.at < len(source.text):
            step = self._step(source.text, source.at)
            if step is None:
                break
            text, num_chars = step
            taken.append(text)
            source.at += num_chars
        return "".join(taken)

    def _step(self, text: str, at: int) -> tuple[str, int] | None:
        """What comes next, and how many characters stand for it. None where it is not known yet, or is no JSON."""
        char = text[at]
        if self._state.endswith("string"):
            return self._in_string(text, at)
        if char in " \t\r\n":
            return char, 1
        if self._state == "colon":
            return self._to("value", char) if char == ":" else self._fail()
        if self._state == "after":
            return self._behind_value(char)
        if char == '"':
            return self._to("key string" if self._state.endswith("key") else "string", char)
        if self._state.startswith("first") and char == self._closers[-1]:
            return self._close(char)
        if self._state.endswith("key"):
            return self._fail()
        if char in _CLOSERS:
            return self._open(char)
        return self._word(text, at)

    def _in_string(self, text: str, at: int) -> tuple[str, int] | None:
        if plain := _PLAIN.match(text, at):
            return plain[0].replace(TOKEN_MARK, ""), len(plain[0])
        if text[at] == '"':
            return self._to("colon", '"') if self._state == "key string" else self._end_value('"')
        if text[at] != "\\":
            return json.dumps(text[at])[1:-1], 1
        escape = text[at : at + 2]
        if len(escape) < 2:
            return None
        if escape[1] == "u":
            digits = text[at + 2 : at + 6]
            if len(digits) < 4:
                return None
            return (escape + digits, 6) if re.fullmatch(r"[0-9a-fA-F]{4}", digits) else ("\\\\u", 2)
        if escape[1] in '"\\/bfnrt':
            return escape, 2
        return ("'", 2) if escape[1] == "'" else ("\\\\", 1)

    def _word(self, text: str, at: int) -> tuple[str, int] | None:
        """A number, or a literal, which ends where another character follows."""
        word = _WORD.match(text, at)
        if word is None:
            return self._fail()
        if word.end() == len(text):
            return None
        return self._end_value(word[0]) if _LITERAL.fullmatch(word[0]) else self._fail()

    def _open(self, char: str) -> tuple[str, int] | None:
        if len(self._closers) == _MAX_DEPTH:
            return self._fail()
        self._closers.append(_CLOSERS[char])
        return self._to("first key" if char == "{" else "first value", char)

    def _behind_value(self, char: str) -> tuple[str, int] | None:
        if char == self._closers[-1]:
            return self._close(char)
        return self._to("key" if self._closers[-1] == "}" else "value", char) if char == "," else self._fail()

    def _close(self, char: str) -> tuple[str, int]:
        self._closers.pop()
        return self._end_value(char)

    def _end_value(self, text: str) -> tuple[str, int]:
        self._state, self.done = "after", not self._closers
        return text, len(text)

    def _to(self, state: str, char: str) -> tuple[str, int]:
        self._state = state
        return char, 1

    def _fail(self) -> tuple[str, int] | None:
        self.failed = True
        return None
