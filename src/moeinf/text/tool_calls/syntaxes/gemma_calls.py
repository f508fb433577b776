"""<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>: Gemma 4, whose texts stand between tokens.

Some answers have texts as JSON or Python write them, quoted keys, or = behind a key.
"""

from __future__ import annotations

import ast
import json
import re

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import pass_marks, read_name
from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.reading import End, Fragment, Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import Json

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_KEY, _MAX_KEY_CHARS = re.compile(rf"[^:={{}}\[\],\n{TOKEN_MARK}]*"), 200
_WORD, _MAX_WORD_CHARS = re.compile(rf"[^,{{}}\[\]{TOKEN_MARK}]*"), 4000
_MAX_DEPTH = 100


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from pass_marks(source, _OPEN)
    yield from source.expect("call:")
    # A name is matched up to what cannot be a part of it, and a brace cannot.
    name = yield from read_name(source)
    yield from source.expect("{")
    yield Name(name)
    separator = "{"
    while not (yield from _closes(source, "}")):
        key, value = yield from _read_member(source, 0)
        member = json.dumps(value, ensure_ascii=False)
        if isinstance(value, _Word):
            yield Fragment(separator + tools.member(name, key, value))
        else:
            yield Fragment(f"{separator}{json.dumps(key, ensure_ascii=False)}: {member}")
        separator = ", "
    yield Fragment("{}" if separator == "{" else "}")
    yield End()
    yield from source.space()
    yield from source.accept(_CLOSE)


class _Word(str):
    """A text without its quotes, such as some answers have: its type is the schema's."""


def _closes(source: Source, end: str) -> Reading[bool]:
    """Passes over a comma, or over the end of an object or list; says which."""
    yield from source.space()
    if (yield from source.accept(end)):
        return True
    yield from source.accept(",")
    yield from source.space()
    return (yield from source.accept(end))


def _read_member(source: Source, depth: int) -> Reading[tuple[str, Json]]:
    key = yield from _read_text(source, ":=")
    if key is None:
        key = (yield from source.matching(_KEY, _MAX_KEY_CHARS)).strip()
    yield from source.space()
    if not (yield from source.accept_any(":", "=")):
        raise NotACallError
    return key, (yield from _read_value(source, depth))


def _read_text(source: Source, behind: str) -> Reading[str | None]:
    """A text in quotes, behind which one of these characters stands; None, and nothing is read, where there is none."""
    if (yield from source.accept(_QUOTE)):
        return (yield from source.until(_QUOTE))[0]
    start = source.at
    quote = yield from source.peek()
    if quote not in "\"'":
        return None
    source.at += 1
    while True:
        try:
            yield from source.until(quote)
            end = source.at
            yield from source.space()
            ends = (yield from source.peek()) in behind
        except NotACallError:
            if source.cut:
                raise
            source.at = start
            return None
        written = source.text[start:end] if ends else ""
        source.at = end
        if ends and (len(written) - len(written[:-1].rstrip("\\"))) % 2:  # the quote is not escaped
            return _meant(written.replace(TOKEN_MARK, ""))


def _meant(written: str) -> str:
    """A text of JSON or Python, or the letters between its quotes where it is none."""
    try:
        found = json.loads(written, strict=False) if written[0] == '"' else ast.literal_eval(written)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    return found if isinstance(found, str) else written[1:-1]


def _read_value(source: Source, depth: int) -> Reading[Json]:
    yield from source.space()
    if depth == _MAX_DEPTH:
        raise NotACallError
    if (text := (yield from _read_text(source, ",}]"))) is not None:
        return text
    if (yield from source.accept("{")):
        members: dict[str, Json] = {}
        while not (yield from _closes(source, "}")):
            key, value = yield from _read_member(source, depth + 1)
            members[key] = value
        return members
    if (yield from source.accept("[")):
        items: list[Json] = []
        while not (yield from _closes(source, "]")):
            items.append((yield from _read_value(source, depth + 1)))
        return items
    word = (yield from source.matching(_WORD, _MAX_WORD_CHARS)).strip()
    if not word:
        raise NotACallError
    found = text_as_json(word)
    return _Word(word) if isinstance(found, str) or (found is None and word != "null") else found


GEMMA = Syntax(known_by=(_OPEN,), opens=(_OPEN,), marks=(_OPEN, _CLOSE, _QUOTE), closes=(_CLOSE,), read=_read)
