"""Calls of Kimi K3, elements of XTML, whose values are plain text and say their types:

<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k" type="string"<|sep|>value
<|close|>argument<|sep|><|close|>call<|sep|> ... <|close|>tools<|sep|>

Arguments may also be one element, <|open|>json type="object"<|sep|>{...}<|close|>json<|sep|>.
"""

from __future__ import annotations

import json
import re
from functools import partial

from moeinf.text.channels.xtml import CLOSE, OPEN, SEP
from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import read_name, read_section, whole_call
from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.reading import End, Fragment, Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_TOOLS, _END_TOOLS = f"{OPEN}tools{SEP}", f"{CLOSE}tools{SEP}"
_CALL, _END_CALL = f'{OPEN}call tool="', f"{CLOSE}call{SEP}"
_ARGUMENT, _END_ARGUMENT = f'{OPEN}argument key="', f"{CLOSE}argument{SEP}"
_JSON, _END_JSON = f"{OPEN}json", f"{CLOSE}json{SEP}"
_ATTRIBUTES, _MAX_CHARS = re.compile(rf"[^<{TOKEN_MARK}]*"), 300
_KEY = re.compile(rf'[^"{TOKEN_MARK}]*')
_TYPE = re.compile(r'\btype="(\w*)"')


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from read_section(source, _CALL, (_END_TOOLS,), partial(_read_call, tools), begun=False)


def _read_call(tools: ToolSchemas, source: Source) -> Reading[None]:
    name = yield from read_name(source)
    yield from source.expect('"')
    yield from _read_attributes(source)
    yield from source.space()
    if (yield from source.accept(_JSON)):
        yield from _read_attributes(source)
        text, _ = yield from source.until(_END_JSON)
        found = text_as_json(text)
        if not isinstance(found, dict):
            raise NotACallError
        yield from whole_call(name, json.dumps(found, ensure_ascii=False))
        yield from source.space()
        yield from source.expect(_END_CALL)
        return
    if not (yield from source.follows(_ARGUMENT, _END_CALL)):
        raise NotACallError
    yield Name(name)
    separator = "{"
    while not (yield from source.accept(_END_CALL)):
        yield Fragment(separator + (yield from _read_argument(source, tools, name)))
        separator = ", "
        yield from source.space()
    yield Fragment("{}" if separator == "{" else "}")
    yield End()


def _read_argument(source: Source, tools: ToolSchemas, name: str) -> Reading[str]:
    """An argument as a member of a JSON object."""
    yield from source.expect(_ARGUMENT)
    key = (yield from source.matching(_KEY, _MAX_CHARS)).replace("&quot;", '"').replace("&amp;", "&")
    yield from source.expect('"')
    kind = _TYPE.search((yield from _read_attributes(source)))
    value, _ = yield from source.until(_END_ARGUMENT)
    found = value if kind and kind[1] == "string" else text_as_json(value)
    if kind is None or (found is None and value.strip() != "null"):
        return tools.member(name, key, value, NO_TEXT)
    return f"{json.dumps(key)}: {json.dumps(found, ensure_ascii=False)}"


def _read_attributes(source: Source) -> Reading[str]:
    """What is left of a tag."""
    attributes = yield from source.matching(_ATTRIBUTES, _MAX_CHARS)
    yield from source.expect(SEP)
    return attributes


XTML = Syntax(
    known_by=(f"'{OPEN}' + tag", f"{OPEN}call tool="),
    opens=(_TOOLS,),
    marks=(OPEN, CLOSE, SEP),
    closes=(_END_TOOLS,),
    read=_read,
)
