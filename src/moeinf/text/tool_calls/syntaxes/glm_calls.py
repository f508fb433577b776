"""<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>: GLM-4.5 and later.

Values are plain text where the tool's JSON schema asks for text, else JSON. Hunyuan 3 has the same with other names of
its marks, one behind the name of the tool, and two around all calls:

<tool_calls:opensource><tool_call:opensource>name<tool_sep:opensource><arg_key:opensource>key</arg_key:opensource> ...

K2 Horizon has <ifm|tool_calls>, <ifm|tool_call> and so on.
"""

from __future__ import annotations

import re
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import pass_marks, read_name, whole_call
from moeinf.text.tool_calls.plain_values import Form, read_parameters
from moeinf.text.tool_calls.reading import Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Elements, Syntax
from moeinf.text.tool_calls.syntaxes.hermes import HERMES

_KEY_TEXT, _MAX_KEY_CHARS = re.compile(rf"[^<\n{TOKEN_MARK}]*"), 200


def _syntax(
    known_by: str, behind: str = "", separator: str = "", sections: tuple[str, ...] = (), front: str = ""
) -> Syntax:
    """front, behind: what the name of each mark begins and ends with. separator: the mark behind the name of a tool.
    sections: the names of what holds all calls."""

    def marks_of(name: str) -> tuple[str, str]:
        return f"<{front}{name}{behind}>", f"</{front}{name}{behind}>"

    (call, end_call), (key, end_key), (value, end_value) = map(marks_of, ("tool_call", "arg_key", "arg_value"))
    opens, closes = ([marks_of(name)[end] for name in sections] for end in (0, 1))

    def read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
        if opened in opens:
            yield from source.space()
            yield from source.expect(call)
        yield from pass_marks(source, call)
        if not behind + front and (yield from source.follows("{", "[")):  # some answers write calls as most models do
            yield from HERMES.read(source, opened, tools)
            return
        name = yield from read_tool(source)
        if name in tools and (yield from source.accept_any(end_value, end_key)):  # of parameters that are not there
            yield from source.space()
        if (yield from source.follows(key, end_call)):
            yield Name(name)
            yield from read_parameters(source, form, partial(_member, tools, name))
        elif name in tools and ((yield from source.follows(call, *closes)) or (yield from source.at_end())):
            yield from whole_call(name, "{}")
        else:
            raise NotACallError

    def read_tool(source: Source) -> Reading[str]:
        name = yield from read_name(source)
        yield from source.space()
        if separator:
            yield from source.accept(separator)
            yield from source.space()
        return name

    def read_key(source: Source) -> Reading[str]:
        yield from source.expect(key)
        text = yield from source.matching(_KEY_TEXT, _MAX_KEY_CHARS)
        yield from source.expect(end_key)
        yield from source.space()
        yield from source.expect(value)
        return text.strip()

    def begins(source: Source) -> Reading[bool]:
        try:
            yield from source.space()
            yield from read_tool(source)
        except NotACallError:
            return False
        return (yield from source.follows(key, end_call))

    form = Form(read_key=read_key, start=value, end=end_value, closes=(end_call,), opens=call, begins=begins)
    marks = [call, end_call, key, end_key, value, end_value, *([separator] if separator else []), *opens, *closes]

    def elements(name: str) -> Elements:
        before, after = "".join(f"{mark}\n" for mark in opens), "".join(f"\n{mark}" for mark in closes)
        return Elements(
            f"{before}{call}{name}{separator}\n",
            lambda name, is_text: f"{key}{name}{end_key}\n{value}",
            f"{end_value}\n",
            f"{end_call}{after}",
        )

    return Syntax(
        known_by=(known_by,),
        opens=(*opens, call),
        marks=tuple(marks),
        closes=(end_call, *closes),
        read=read,
        elements=elements,
    )


def _member(tools: ToolSchemas, name: str, key: str, value: str) -> str:
    return tools.member(name, key, value, NO_TEXT)


GLM = _syntax("<arg_key>")
HUNYUAN = _syntax("<arg_key{}>", ":opensource", "<tool_sep:opensource>", ("tool_calls",))
HORIZON = _syntax("<ifm|arg_key>", sections=("tool_calls",), front="ifm|")
