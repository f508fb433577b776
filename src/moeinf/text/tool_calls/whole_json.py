"""Answers that are as a whole JSON objects which name tools of the request: many small models call tools so.

There may be several, one behind the other or in a list, each of them or all in a fence or in tags, but nothing else
beside them: coders that are asked for <tool_call> write <tools>, for example. The first name is a tool's, and arguments
fit the schema of their tool. Text is held back only while the answer can still be such.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from moeinf.text.text_stream import CallPart, Piece
from moeinf.text.tool_calls.call_stream import TextStream
from moeinf.text.tool_calls.json_text import text_as_json, values_in
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.types import Json, JsonObject

_FRAME: Final = r"```[ \t]*(?:(?:json|xml)[ \t]*)?(?:\n|(?=[\[{<])|$)|</?\w+>"
_OPENED = re.compile(rf"\s*(?:(?:{_FRAME})\s*)*(?=[{{\[])", re.IGNORECASE)
_BESIDE = re.compile(rf"\s*(?:{_FRAME})\s*", re.IGNORECASE)
_BEGUN = re.compile(rf"\s*(?:(?:{_FRAME})\s*)*(?:`{{1,2}}|```[ \t]*[jsonxml]*|</?\w*)?", re.IGNORECASE)
_NO_OBJECT = re.compile(r"\[\s*[^\s{]")
_MOST_BEFORE: Final = 64  # characters up to the object, and up to the end of its first key
_NAME = re.compile(r'\[?\s*\{\s*"name"\s*:\s*"([^"\\]*)"')
_FIRST_KEY = re.compile(r'\[?\s*\{\s*"([^"\\]*)"')
_ARGUMENTS: Final = ("arguments", "parameters")
_FUNCTION: Final = "function"  # which holds both in OpenAI's API
_OTHERS: Final = ("type", "id")  # which some models write as well


class WholeJson:
    """Turns token ids into text, thoughts and calls, as the stream that it is given, and such an answer into calls."""

    def __init__(self, stream: TextStream, tools: ToolSchemas) -> None:
        self._stream, self._tools = stream, tools
        self._held: str | None = ""  # None once the answer is no such one
        self._object = _Object()

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return [each for piece in self._stream.step(ids) for each in self._taken(piece)]

    def flush(self, *, cut: bool = False) -> list[Piece]:
        pieces = [each for piece in self._stream.flush(cut=cut) for each in self._taken(piece)]
        held, self._held = self._held, None
        calls = [] if cut or not held else self._calls(held)
        if calls:
            return pieces + calls
        return [*pieces, *([Piece(held)] if held else [])]

    def _taken(self, piece: Piece) -> list[Piece]:
        """What is certain once this piece comes."""
        if self._held is None:
            return [piece]
        if piece.call is None and (piece.thought or not piece.text):
            return [piece]
        held = self._held + piece.text
        if piece.call is None and self._object.may_be(held, piece.text, self._tools):
            self._held = held
            return []
        before, self._held = self._held, None
        return [Piece(before), piece] if before else [piece]

    def _calls(self, text: str) -> list[Piece]:
        """The calls that an answer is; none for any other."""
        pieces = list[Piece]()
        values = values_in(text, beside=_BESIDE)
        for number, found in enumerate(values[0] if len(values) == 1 and isinstance(values[0], list) else values):
            named = _named(found)
            if named is None:
                return []
            name, arguments = named
            if name in self._tools:
                if not self._tools.fits(name, arguments):
                    return []
            elif number == 0:  # behind a call, what calls no tool is one that a client refuses
                return []
            pieces += (
                Piece("", call=CallPart(number, name, "")),
                Piece("", call=CallPart(number, None, json.dumps(arguments, ensure_ascii=False))),
            )
        return pieces


class _Object:
    """How far the objects of an answer have come. Each letter is looked at once."""

    def __init__(self) -> None:
        self._begun = self._named = self._quoted = self._escaped = False
        self._depth, self._at = 0, 0
        self._beside = ""  # what stands beside the objects, behind the last of them

    def may_be(self, text: str, added: str, tools: ToolSchemas) -> bool:
        """Whether the answer may still be such. text: all of it, which ends with what was added."""
        if not self._begun:
            opened = _OPENED.match(text)
            if opened is None:
                return _may_be_frames(text)
            self._begun, self._at = True, opened.end()
        if not self._named and not self._may_be_named(text[self._at :], tools):
            return False
        for char in text[max(self._at, len(text) - len(added)) :]:
            self._take(char)
        return not self._beside or _may_be_frames(self._beside)

    def _may_be_named(self, text: str, tools: ToolSchemas) -> bool:
        """Whether the object may name a tool, as far as it has come."""
        if (name := _NAME.match(text)) is not None:
            self._named = True
            return name[1] in tools
        if (key := _FIRST_KEY.match(text)) is not None:
            self._named = key[1] != "name"  # it comes later; the end of the answer tells
            return key[1] in ("name", _FUNCTION, *_ARGUMENTS, *_OTHERS)
        return len(text) <= _MOST_BEFORE and _NO_OBJECT.match(text) is None

    def _take(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quoted:
            self._escaped, self._quoted = char == "\\", char != '"'
        elif char == '"' and self._depth:
            self._quoted = True
        elif char in "{[":
            self._depth += 1
            self._beside = ""
        elif char in "}]" and self._depth:
            self._depth -= 1
        elif not self._depth:
            self._beside += char


def _may_be_frames(text: str) -> bool:
    return len(text) <= _MOST_BEFORE and _BEGUN.fullmatch(text) is not None


def _named(found: Json) -> tuple[str, JsonObject] | None:
    """What a value calls, and with which arguments; None for a value that is no call."""
    if isinstance(found, dict) and isinstance(found.get(_FUNCTION), dict) and set(found) <= {_FUNCTION, *_OTHERS}:
        found = found[_FUNCTION]
    if not isinstance(found, dict) or set(found) - {"name", *_ARGUMENTS, *_OTHERS}:
        return None
    name, given = found.get("name"), [found[key] for key in _ARGUMENTS if key in found]
    if not isinstance(name, str) or len(given) != 1:
        return None
    arguments = text_as_json(given[0]) if isinstance(given[0], str) else given[0]
    return (name, arguments) if isinstance(arguments, dict) else None
