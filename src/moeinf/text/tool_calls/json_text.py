"""Reads JSON text as it comes, and passes on what is certain.

What is well formed passes as it is. What is not becomes JSON where it can only mean one thing: Python's words and
TRUE; numbers such as 1. and .5; other words, such as NaN or 007, which become strings, for the caller to refuse; single
quotes; a comma behind the last item; control characters within strings; backslashes before characters that JSON knows
no escape for, as in regular expressions; and half a surrogate pair, which becomes U+FFFD.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.reading import Fragment, NotACallError, Reading, Result, Source
from moeinf.types import Json

_MAX_DEPTH = 100  # of arrays and objects; far below what parsers of clients bear
_MAX_DIGITS = 4000  # of a number; Python reads 4,300
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\"\\\x00-\x1f]+")}
_WORD = re.compile(r"[-+.\w]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_LOOSE_NUMBER = re.compile(r"([-+]?)(0|[1-9]\d*|)(?:(\.)(\d*))?((?:[eE][-+]?\d+)?)", re.ASCII)
_LITERALS = {"true": "true", "false": "false", "null": "null", "none": "null"}
_CLOSERS = {"{": "}", "[": "]"}
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_MAX_ESCAPE_CHARS = 12  # of a pair


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
    parts: list[str] = []
    for event in reading:
        if event is None:
            yield None
        elif isinstance(event, Fragment):
            parts.append(event.text)
    return "".join(parts)


def read_value(source: Source) -> Reading[Json]:
    """One JSON value, once it is whole."""
    return json.loads((yield from joined(read_json(source))))


def text_as_json(text: str) -> Json:
    """What a whole text means as JSON; None where it means nothing."""
    values = values_in(text)
    return values[0] if len(values) == 1 else None


def values_in(text: str, *, beside: re.Pattern[str] | None = None) -> list[Json]:
    """The JSON values that stand one behind the other; none where there is anything else in the text.

    beside: what may stand in front of each of them, and behind the last, all the same.
    """
    source, values = Source(), list[Json]()
    source.text, source.ended = f"{text.strip()} ", True  # with a character behind a word, so that it is whole
    try:
        while True:
            while beside is not None and (passed := beside.match(source.text, source.at)) is not None:
                source.at = passed.end()
            if not source.text[source.at :].strip():
                return values
            fragments = [event.text for event in read_json(source) if isinstance(event, Fragment)]
            values.append(json.loads("".join(fragments)))
    except NotACallError:
        return []


def begun_json(text: str) -> Json:
    """What a text that may have been cut off means as JSON, as far as it came; None where it means nothing."""
    source = Source()
    source.text = text.strip()
    closed = _Scanner().closed(source)
    return json.loads(closed) if closed else None


class _Scanner:
    """A pushdown automaton over the characters of one JSON value."""

    def __init__(self) -> None:
        self.done = self.failed = False
        self._closers: list[str] = []
        self._state = "value"  # or first value, first key, key, colon, after, string, key string
        self._quote = '"'  # that ends a string
        self._comma = ""  # that was read, with the space behind it, and is certain once another item follows

    def take(self, source: Source) -> str:
        """Passes over what is certain, up to the end of the value or to what is no JSON; returns its text."""
        return "".join(self._steps(source))

    def closed(self, source: Source) -> str:
        """Takes all of a text; returns what is certain of it with the ends that it lacks, "" for what is no JSON."""
        text = sound = ""
        for step in self._steps(source):
            text += step
            if self._state in ("after", "first key", "first value"):
                sound = text + "".join(reversed(self._closers))
        if self.failed or (self.done and source.at < len(source.text)):
            return ""
        return f'{text}"{"".join(reversed(self._closers))}' if self._state == "string" else sound

    def _steps(self, source: Source) -> Iterator[str]:
        while not self.done and source.at < len(source.text):
            step = self._step(source.text, source.at)
            if step is None:
                return
            source.at += step[1]
            yield step[0]

    def _step(self, text: str, at: int) -> tuple[str, int] | None:
        """What comes next, and how many characters stand for it. None where it is not known yet, or is no JSON."""
        char = text[at]
        if self._state.endswith("string"):
            return self._in_string(text, at)
        if char in " \t\r\n":
            return self._space(char)
        if self._state == "colon":
            return self._to("value", char) if char == ":" else self._fail()
        if self._state == "after":
            return self._behind_value(char)
        if (self._comma or self._state.startswith("first")) and char == self._closers[-1]:
            self._comma = self._comma[1:]
            return self._close(char)
        if char in _PLAIN:
            self._quote = char
            return self._to("key string" if self._state.endswith("key") else "string", '"')
        if self._state.endswith("key"):
            return self._fail()
        return self._open(char) if char in _CLOSERS else self._word(text, at)

    def _space(self, char: str) -> tuple[str, int]:
        if not self._comma:
            return char, 1
        self._comma += char
        return "", 1

    def _in_string(self, text: str, at: int) -> tuple[str, int] | None:
        if plain := _PLAIN[self._quote].match(text, at):
            return plain[0].replace(TOKEN_MARK, ""), len(plain[0])
        if text[at] == self._quote:
            return self._to("colon", '"') if self._state == "key string" else self._end_value('"')
        return _escaped(text, at) if text[at] == "\\" else (json.dumps(text[at])[1:-1], 1)

    def _word(self, text: str, at: int) -> tuple[str, int] | None:
        """A number, or a literal, which ends where another character follows."""
        word = _WORD.match(text, at)
        if word is None:
            return self._fail()
        if word.end() == len(text):
            return None
        return self._end_value(_meant(word[0]), len(word[0]))

    def _open(self, char: str) -> tuple[str, int] | None:
        if len(self._closers) == _MAX_DEPTH:
            return self._fail()
        self._closers.append(_CLOSERS[char])
        return self._to("first key" if char == "{" else "first value", char)

    def _behind_value(self, char: str) -> tuple[str, int] | None:
        if char == self._closers[-1]:
            return self._close(char)
        if char != ",":
            return self._fail()
        self._state, self._comma = "key" if self._closers[-1] == "}" else "value", ","
        return "", 1

    def _close(self, char: str) -> tuple[str, int]:
        self._closers.pop()
        return self._end_value(char)

    def _end_value(self, text: str, num_chars: int = 1) -> tuple[str, int]:
        self._state, self.done = "after", not self._closers
        return self._with_comma(text), num_chars

    def _to(self, state: str, char: str) -> tuple[str, int]:
        self._state = state
        return self._with_comma(char), 1

    def _with_comma(self, text: str) -> str:
        comma, self._comma = self._comma, ""
        return comma + text

    def _fail(self) -> tuple[str, int] | None:
        self.failed = True
        return None


def _escaped(text: str, at: int) -> tuple[str, int] | None:
    """What an escape within a string stands for, and how many characters it has; None where more has to come."""
    escape = text[at : at + 2]
    if len(escape) < 2:
        return None
    if escape[1] != "u":
        return (escape, 2) if escape[1] in '"\\/bfnrt' else ("'", 2) if escape[1] == "'" else ("\\\\", 1)
    code = _ESCAPE.match(text, at)
    if code is None:
        return None if len(text) < at + 6 else ("\\\\u", 2)
    if code[1][0] not in "dD" or code[1][1] in "01234567":
        return code[0], 6
    if len(text) < at + _MAX_ESCAPE_CHARS and not any(quote in text[at:] for quote in _PLAIN):
        return None
    low = _ESCAPE.match(text, at + 6)
    is_pair = code[1][1] in "89abAB" and low is not None and low[1][0] in "dD" and low[1][1] in "cdefCDEF"
    return (text[at : at + 12], 12) if is_pair else ("\ufffd", 6)


def _meant(word: str) -> str:
    """A word as JSON: a number or a literal; else a string."""
    if len(word) <= _MAX_DIGITS:
        if word.lower() in _LITERALS:
            return _LITERALS[word.lower()]
        if _NUMBER.fullmatch(word) and math.isfinite(float(word)):
            return word
        loose = _LOOSE_NUMBER.fullmatch(word)
        if loose and (loose[2] or loose[4]) and math.isfinite(float(word)):
            fraction = f".{loose[4] or '0'}" if loose[3] else ""
            return f"{loose[1].replace('+', '')}{loose[2] or '0'}{fraction}{loose[5]}"
    return json.dumps(word, ensure_ascii=False)
