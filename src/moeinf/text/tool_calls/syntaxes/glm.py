"""<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>: GLM-4.5 and later.

Values are plain text where the tool's JSON schema asks for text, else JSON.
"""

from __future__ import annotations

from moeinf.text.tool_calls.call_objects import read_name
from moeinf.text.tool_calls.reading import Fragment, Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _END_KEY, _VALUE, _END_VALUE = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from source.space()
    name = yield from read_name(source)
    yield from source.space()
    if not (yield from source.follows(_KEY, _CLOSE)):
        raise NotACallError
    yield Name(name)
    before = "{"
    while not (yield from source.accept(_CLOSE)):
        yield from source.expect(_KEY)
        key, _ = yield from source.until(_END_KEY)
        yield from source.space()
        yield from source.expect(_VALUE)
        value, _ = yield from source.until(_END_VALUE)
        yield Fragment(f"{before}{tools.member(name, key.strip(), value, NO_TEXT)}")
        before = ", "
        yield from source.space()
    yield Fragment("{}" if before == "{" else "}")


GLM = Syntax(known_by=(_KEY,), opens=(_OPEN,), marks=(_OPEN, _CLOSE, _KEY, _END_KEY, _VALUE, _END_VALUE), read=_read)
