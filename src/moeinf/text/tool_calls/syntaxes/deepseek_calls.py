"""DeepSeek's calls, of which each stands between marks of its own.

V3 and R1: <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>name, a line break,
           the arguments as a fenced block of JSON, <｜tool▁call▁end｜> ... <｜tool▁calls▁end｜>
V3.1:      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜> ...
           <｜tool▁calls▁end｜>

The published templates write calls and results, but tell nothing of the tools: that is for the system message, in the
words of DeepSeek-V3.1's model card.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from moeinf.text.tool_calls.call_objects import ended_by, read_name, read_section, read_some_arguments
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import JsonMapping

_OPEN, _CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_FENCE = "```"
_CALL, _SEP, _END_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """Some answers begin with a call, without the mark of all of them."""
    yield from read_section(source, _CALL, (_CLOSE,), partial(_read_call, tools), begun=opened == _CALL)


def _read_call(tools: ToolSchemas, source: Source) -> Reading[None]:
    name = yield from read_name(source)
    yield from source.expect(_SEP)
    yield from source.space()
    if name not in tools and not (yield from source.follows("{", '"', _FENCE, _END_CALL)):
        name = yield from read_name(source)
        yield from source.space()
    fenced = yield from source.accept(_FENCE)
    if fenced:
        yield from source.accept("json")
    yield from read_some_arguments(source, name, _FENCE, _END_CALL, _CALL, _CLOSE)
    if fenced:
        yield from source.accept(_FENCE)
    yield from ended_by(source, _END_CALL, _CALL, _CLOSE)


def _describe(tools: Sequence[JsonMapping], template: str) -> str:
    name, arguments = "tool_call_name", "tool_call_arguments"
    before, behind = _around_arguments(name, template)
    call = f"{before}{arguments}{behind}"
    return "\n\n".join(
        [
            "## Tools\nYou have access to the following tools:",
            *(_described(tool["function"]) for tool in tools),
            "IMPORTANT: ALWAYS adhere to this exact format for tool use:\n"
            f"{_OPEN}{_CALL}{call}{_END_CALL}{{additional_tool_calls}}{_CLOSE}",
            f"Where:\n- `{name}` must be an exact match to one of the available tools\n"
            f"- `{arguments}` must be valid JSON that strictly follows the tool's Parameters Schema\n"
            "- For multiple tool calls, chain them directly without separators or spaces",
        ]
    )


def _around_arguments(name: str, template: str) -> tuple[str, str]:
    fenced = "```json" in template  # V3 and R1
    return (f"function{_SEP}{name}\n```json\n", "\n```") if fenced else (f"{name}{_SEP}", "")


def _frame(name: str, template: str) -> tuple[str, str]:
    before, behind = _around_arguments(name, template)
    return f"{_OPEN}{_CALL}{before}", f"{behind}{_END_CALL}{_CLOSE}"


def _described(function: JsonMapping) -> str:
    parameters = json.dumps(function["parameters"], ensure_ascii=False)
    return f"### {function['name']}\nDescription: {function['description']}\n\nParameters: {parameters}"


DEEPSEEK = Syntax(
    known_by=(_CALL,),
    opens=(_OPEN, _CALL),
    marks=(_OPEN, _CLOSE, _CALL, _SEP, _END_CALL),
    closes=(_END_CALL, _CLOSE),
    read=_read,
    describe=_describe,
    frame=_frame,
)
