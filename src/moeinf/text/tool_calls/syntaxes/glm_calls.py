"""<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>: GLM-4.5 and later.

Values are plain text where the tool's JSON schema asks for text, else JSON.
"""

from __future__ import annotations

import re
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import pass_marks, read_name, whole_call
from moeinf.text.tool_calls.plain_values import Form, read_parameters
from moeinf.text.tool_calls.reading import Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.hermes import HERMES

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_KEY_TEXT, _MAX_KEY_CHARS = re.compile(rf"[^<\n{TOKEN_MARK}]*"), 200


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from pass_marks(source, _OPEN)
    if (yield from source.follows("{", "[")):  # some answers write calls as most models do
        yield from HERMES.read(source, opened, tools)
        return
    name = yield from _read_name(source)
    if (yield from source.follows(_KEY, _CLOSE)):
        yield Name(name)
        yield from read_parameters(source, _FORM, partial(_member, tools, name))
    elif name in tools and ((yield from source.follows(_OPEN)) or (yield from source.at_end())):
        yield from whole_call(name, "{}")
    else:
        raise NotACallError


def _read_name(source: Source) -> Reading[str]:
    name = yield from read_name(source)
    yield from source.space()
    return name


def _read_key(source: Source) -> Reading[str]:
    yield from source.expect(_KEY)
    key = yield from source.matching(_KEY_TEXT, _MAX_KEY_CHARS)
    yield from source.expect(_END_KEY)
    yield from source.space()
    yield from source.expect(_VALUE)
    return key.strip()


def _begins(source: Source) -> Reading[bool]:
    try:
        yield from source.space()
        yield from _read_name(source)
    except NotACallError:
        return False
    return (yield from source.follows(_KEY, _CLOSE))


def _member(tools: ToolSchemas, name: str, key: str, value: str) -> str:
    return tools.member(name, key, value, NO_TEXT)


_FORM = Form(read_key=_read_key, end=_END_VALUE, closes=(_CLOSE,), opens=_OPEN, begins=_begins)
GLM = Syntax(
    known_by=(_KEY,),
    opens=(_OPEN,),
    marks=(_OPEN, _CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE),
    closes=(_CLOSE,),
    read=_read,
)
