"""Calls whose parts are named in attributes, and whose values are plain text:

MiniMax M2:    <minimax:tool_call><invoke name="f"><parameter name="key">value</parameter></invoke> ...
               </minimax:tool_call>
DeepSeek V3.2: <｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="key" string="true">value
               </｜DSML｜parameter></｜DSML｜invoke> ... </｜DSML｜function_calls>; V4 writes tool_calls there,
               V4.1 calls, with a space in front of the name of each tag

Some answers leave out what holds the calls, or close one without parameters at once: <invoke name="f"/>.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import read_name, read_section, whole_call
from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.plain_values import Form, read_parameters
from moeinf.text.tool_calls.reading import Name, NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas
from moeinf.text.tool_calls.syntax import Elements, Syntax

_KEY, _MAX_KEY_CHARS = re.compile(rf'[^<>"\n{TOKEN_MARK}]*'), 200
_IS_TEXT, _IS_JSON = ' string="true"', ' string="false"'  # DeepSeek's, which stay with a key: none has such letters
_DSML = "｜DSML｜"


def _syntax(sections: Sequence[str], mark: str, known_by: str, tokens: Sequence[str]) -> Syntax:
    """sections: the names of what holds all calls. mark: what stands in front of the name of each tag.

    tokens: those of the marks, or their parts, that may be tokens of a vocabulary.
    """
    opens = [f"<{section}>" for section in sections]
    closes = [f"</{section}>" for section in sections]
    call, end_call = f'<{mark}invoke name="', f"</{mark}invoke>"
    parameter, end_parameter = f'<{mark}parameter name="', f"</{mark}parameter>"

    def read_key(source: Source) -> Reading[str]:
        yield from source.expect(parameter)
        key = yield from source.matching(_KEY, _MAX_KEY_CHARS)
        yield from source.expect('"')
        for kind in (_IS_TEXT, _IS_JSON):
            if (yield from source.accept(kind)):
                key += kind
        yield from source.expect(">")
        return key

    def begins(source: Source) -> Reading[bool]:
        try:
            yield from _read_name(source)
        except NotACallError:
            return False
        return True

    form = Form(read_key=read_key, start=parameter, end=end_parameter, closes=(end_call,), opens=call, begins=begins)

    def read_one(tools: ToolSchemas, alone: bool, source: Source) -> Reading[None]:
        """alone: whether nothing holds the call, so that a given tool alone counts."""
        name = yield from read_name(source)
        if alone and name not in tools:
            raise NotACallError
        if (yield from source.accept_any('"/>', '" />')):
            yield from whole_call(name, "{}")
            return
        yield from source.expect('">')
        yield from source.space()
        if not (yield from source.follows(parameter, end_call)):
            raise NotACallError
        yield Name(name)
        yield from read_parameters(source, form, partial(_member, tools, name))

    def read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
        alone = opened == call
        yield from read_section(source, call, closes, partial(read_one, tools, alone), begun=alone)

    return Syntax(known_by=(known_by,), opens=(*opens, call), marks=tuple(tokens), closes=tuple(closes), read=read)


def _read_name(source: Source) -> Reading[str]:
    name = yield from read_name(source)
    yield from source.expect('">')
    return name


def _member(tools: ToolSchemas, name: str, key: str, value: str) -> str:
    kind = next((each for each in (_IS_TEXT, _IS_JSON) if key.endswith(each)), "")
    key, found = key.removesuffix(kind), value if kind == _IS_TEXT else text_as_json(value)
    if kind and found is not None:
        return f"{json.dumps(key)}: {json.dumps(found, ensure_ascii=False)}"
    return tools.member(name, key, value, NO_TEXT)


def _elements(name: str) -> Elements:
    return Elements(
        f'<minimax:tool_call>\n<invoke name="{name}">\n',
        lambda key, is_text: f'<parameter name="{key}">',
        "</parameter>\n",
        "</invoke>\n</minimax:tool_call>",
    )


def _dsml_elements(section: str, mark: str, name: str) -> Elements:
    """mark: what stands in front of the name of each tag."""
    return Elements(
        f'<{mark}{section}>\n<{mark}invoke name="{name}">\n',
        lambda key, is_text: f'<{mark}parameter name="{key}"{_IS_TEXT if is_text else _IS_JSON}>',
        f"</{mark}parameter>\n",
        f"</{mark}invoke>\n</{mark}{section}>",
    )


MINIMAX = replace(
    _syntax(("minimax:tool_call",), "", "<minimax:tool_call>", ("<minimax:tool_call>", "</minimax:tool_call>")),
    elements=_elements,
)
_V3, _V4 = "function_calls", "tool_calls"
_SECTIONS = (_V3, _V4, "toolcalls")  # the last as some answers of V4 have it
_BOTH = _syntax([f"{_DSML}{section}" for section in _SECTIONS], _DSML, _DSML, (_DSML,))
DSML_V4 = replace(
    _BOTH, known_by=(f"{_DSML}{_V4}>", f"dsml_token + '{_V4}>"), elements=partial(_dsml_elements, _V4, _DSML)
)
DSML = replace(_BOTH, elements=partial(_dsml_elements, _V3, _DSML))
_SPACED = f"{_DSML} "
DSML_V41 = replace(
    _syntax((f"{_SPACED}calls",), _SPACED, f"{_SPACED}calls>", (_DSML,)),
    known_by=(f"{_SPACED}calls>", "dsml_token + ' calls>"),
    elements=partial(_dsml_elements, "calls", _SPACED),
)
