"""<tool_call><function=name><parameter=key>value</parameter></function></tool_call>: Qwen3-Coder, Qwen 3.5 and 3.6.

Values are plain text between line breaks; the tool's JSON schema tells their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from moeinf.text.tool_calls.call_objects import read_name
from moeinf.text.tool_calls.reading import Fragment, Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION, _PARAMETER, _END_PARAMETER = "<function=", "</function>", "<parameter=", "</parameter>"
_NEXT_PARAMETER = re.compile(r"\n<parameter=([^>\n]*)>")


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """Some models forget the outer mark; behind the inner one alone only the name of a given tool counts."""
    if opened == _OPEN:
        yield from source.space()
        yield from source.expect(_FUNCTION)
    name = yield from read_name(source)
    yield from source.expect(">")
    yield from source.space()
    known = opened == _OPEN or name in tools
    if not known or not (yield from source.follows(_PARAMETER, _END_FUNCTION)):
        raise NotACallError
    yield Name(name)
    yield from _read_parameters(source, name, tools)
    yield from source.space()
    yield from source.accept(_CLOSE)


def _read_parameters(source: Source, name: str, tools: ToolSchemas) -> Reading[None]:
    before, ended = "{", False
    while not ended and not (yield from source.accept(_END_FUNCTION)):
        yield from source.expect(_PARAMETER)
        key, _ = yield from source.until(">")
        value, ended = yield from _read_value(source)
        for found_key, found in _with_forgotten_ends(key, value) if ended else [(key, value)]:
            yield Fragment(f"{before}{tools.member(name, found_key.strip(), _within_lines(found))}")
            before = ", "
        yield from source.space()
    yield Fragment("{}" if before == "{" else "}")


def _read_value(source: Source) -> Reading[tuple[str, bool]]:
    """The text up to the end of a parameter, or of the whole call, which is then passed over; says whether it was."""
    value = ""
    while True:
        text, mark = yield from source.until(_END_PARAMETER, _END_FUNCTION)
        if mark == _END_PARAMETER:
            return value + text, False
        behind = source.at
        yield from source.space()
        if (yield from source.accept(_CLOSE)) or (yield from source.at_end()):
            return value + text, True
        value, source.at = value + text + mark, behind


def _with_forgotten_ends(key: str, text: str) -> Iterator[tuple[str, str]]:
    """The parameters in text up to the end of a call, none of which has an end of its own."""
    start = 0
    for match in _NEXT_PARAMETER.finditer(text):
        yield key, text[start : match.start()]
        key, start = match[1], match.end()
    yield key, text[start:]


def _within_lines(value: str) -> str:
    return value.removeprefix("\n").removesuffix("\n")


QWEN_XML = Syntax(known_by=(_FUNCTION,), opens=(_OPEN, _FUNCTION), marks=(_OPEN, _CLOSE), read=_read)
