"""<tool_call><function=name><parameter=key>value</parameter></function></tool_call>: Qwen3-Coder, Qwen 3.5 and 3.6.

Values are plain text between line breaks; the tool's JSON schema tells their types.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from moeinf.text.tool_calls.call_objects import pass_marks, read_name
from moeinf.text.tool_calls.plain_values import Form, read_parameters
from moeinf.text.tool_calls.reading import Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Elements, Syntax
from moeinf.text.tool_calls.syntaxes.hermes import HERMES

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION, _PARAMETER, _END_PARAMETER = "<function=", "</function>", "<parameter=", "</parameter>"
_KEY, _MAX_KEY_CHARS = re.compile(r"[^<>\n]*"), 200


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """Some models forget the outer mark; behind the inner one alone only the name of a given tool counts."""
    if opened == _OPEN:
        yield from pass_marks(source, _OPEN)
        if (yield from source.follows("{", "[")):  # some answers write calls as most models do
            yield from HERMES.read(source, opened, tools)
            return
        yield from source.expect(_FUNCTION)
    name = yield from _read_name(source)
    yield from source.space()
    known = opened == _OPEN or name in tools
    if not known or not (yield from source.follows(_PARAMETER, _END_FUNCTION)):
        raise NotACallError
    yield Name(name)
    form = replace(_FORM, goes_on=partial(_goes_on, tools)) if opened == _OPEN else _INNER_FORM
    yield from read_parameters(source, form, partial(_member, tools, name))
    if opened != _OPEN:
        yield from source.space()
        yield from source.accept(_CLOSE)


def _read_name(source: Source) -> Reading[str]:
    """The name that ends with the mark it stands in, which some answers put in quotes."""
    quote = '"' if (yield from source.accept('"')) else ""
    name = yield from read_name(source)
    yield from source.expect(f"{quote}>")
    return name


def _read_key(source: Source) -> Reading[str]:
    yield from source.expect(_PARAMETER)
    key = yield from source.matching(_KEY, _MAX_KEY_CHARS)
    yield from source.expect(">")
    key = key.strip()
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key


def _begins(source: Source) -> Reading[bool]:
    yield from source.space()
    return (yield from source.accept(_FUNCTION))


def _goes_on(tools: ToolSchemas, source: Source) -> Reading[bool]:
    """Whether a call of a given tool begins here, behind one that was not closed by the outer mark."""
    try:
        yield from source.expect(_FUNCTION)
        if (yield from _read_name(source)) not in tools:
            return False
        yield from source.space()
        return (yield from source.follows(_PARAMETER, _END_FUNCTION))
    except NotACallError:
        return False


def _begins_inside(source: Source) -> Reading[bool]:
    """Whether a call begins behind the inner mark."""
    try:
        yield from _read_name(source)
    except NotACallError:
        return False
    return True


def _member(tools: ToolSchemas, name: str, key: str, value: str) -> str:
    return tools.member(name, key, value.removeprefix("\n").removesuffix("\n"))


_FORM = Form(
    read_key=_read_key,
    start=_PARAMETER,
    end=_END_PARAMETER,
    closes=(_END_FUNCTION, _CLOSE),
    opens=_OPEN,
    begins=_begins,
    lined=True,
    next_key=re.compile(r"\n<parameter=([^<>\n]*)>"),
    inner=(_FUNCTION, _END_FUNCTION),
)
_INNER_FORM = replace(_FORM, closes=(_END_FUNCTION,), opens=_FUNCTION, begins=_begins_inside)


def _elements(name: str) -> Elements:
    return Elements(
        f"{_OPEN}\n{_FUNCTION}{name}>\n",
        lambda key, is_text: f"{_PARAMETER}{key}>\n",
        f"\n{_END_PARAMETER}\n",
        f"{_END_FUNCTION}\n{_CLOSE}",
    )


QWEN_XML = Syntax(
    known_by=(_FUNCTION,),
    opens=(_OPEN, _FUNCTION),
    marks=(_OPEN, _CLOSE),
    closes=(_CLOSE,),
    read=_read,
    elements=_elements,
)
