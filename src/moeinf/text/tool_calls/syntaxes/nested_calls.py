"""Calls whose arguments are elements within elements, each tag behind a mark that no value holds: MiniMax M3.

]<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<key>value]<]minimax[>[</key> ...
]<]minimax[>[</invoke> ... ]<]minimax[>[</tool_call>

Items of an array are elements called item. The tool's JSON schema tells the types of the arguments; within these a
value is JSON if it can be, else text.
"""

from __future__ import annotations

import json
import re
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import read_name, read_section
from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.reading import End, Fragment, Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import Json

_MARK = "]<]minimax[>["
_OPEN, _CLOSE = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_CALL, _END_CALL = f'{_MARK}<invoke name="', f"{_MARK}</invoke>"
_KEY, _MAX_KEY_CHARS = re.compile(rf"[^<>/\n{TOKEN_MARK}][^<>\n{TOKEN_MARK}]*"), 200
_ITEM = "item"
_MAX_DEPTH = 100


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from read_section(source, _CALL, (_CLOSE,), partial(_read_call, tools), begun=False)


def _read_call(tools: ToolSchemas, source: Source) -> Reading[None]:
    name = yield from read_name(source)
    yield from source.expect('">')
    if not (yield from _mark_follows(source)):
        raise NotACallError
    yield Name(name)
    separator = "{"
    while not (yield from source.accept(_END_CALL)):
        key, value = yield from _read_element(source, 0)
        if isinstance(value, str):
            member = tools.member(name, key, value, NO_TEXT)
        else:
            member = f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        yield Fragment(separator + member)
        separator = ", "
        yield from _mark_follows(source)
    yield Fragment("{}" if separator == "{" else "}")
    yield End()


def _mark_follows(source: Source) -> Reading[bool]:
    """Whether a tag comes next, behind white space that is passed over."""
    start = source.at
    yield from source.space()
    if (yield from source.follows(_MARK)):
        return True
    source.at = start
    return False


def _read_element(source: Source, depth: int) -> Reading[tuple[str, Json]]:
    """The name of an element and its value: text, as it stands there, or what the elements within it make up."""
    yield from source.expect(f"{_MARK}<")
    key = yield from source.matching(_KEY, _MAX_KEY_CHARS)
    yield from source.expect(">")
    if not key or depth == _MAX_DEPTH:
        raise NotACallError
    text, _ = yield from source.until(_MARK)
    source.at -= len(source.written(_MARK))
    end = f"{_MARK}</{key}>"
    if (yield from source.accept(end)):
        return key, text
    if text.strip():
        raise NotACallError
    parts: list[tuple[str, Json]] = []
    while not (yield from source.accept(end)):
        name, value = yield from _read_element(source, depth + 1)
        parts.append((name, _meant(value) if isinstance(value, str) else value))
        yield from _mark_follows(source)
    names = [name for name, _ in parts]
    return key, [value for _, value in parts] if set(names) == {_ITEM} else dict(parts)


def _meant(text: str) -> Json:
    """What the text of an element within an argument means: a number or a word of JSON, else text."""
    found = text_as_json(text)
    return found if isinstance(found, bool | int | float) else text


NESTED = Syntax(known_by=(_MARK,), opens=(_OPEN,), marks=(_MARK,), closes=(_CLOSE,), read=_read)
