"""<tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen 2.5 and 3, Granite 4."""

from __future__ import annotations

import json

from moeinf.text.tool_calls.call_objects import pass_marks, read_calls
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE = "```"


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """One call between two marks, or several; some models leave the second mark out, or put a fence around the JSON."""
    yield from pass_marks(source, _OPEN)
    fenced = yield from source.accept(_FENCE)
    if fenced:
        yield from source.accept("json")
        yield from source.space()
    yield from read_calls(source)
    while True:
        yield from source.space()
        if fenced and (yield from source.accept(_FENCE)):
            fenced = False
            continue
        if (yield from source.accept(_CLOSE)) or (yield from source.at_end()):
            return
        behind = source.at
        if (yield from source.accept(",")):
            yield from source.space()
        if not (yield from source.follows("{", "[")):
            source.at = behind
            return
        yield from read_calls(source)


def _frame(name: str, template: str) -> tuple[str, str]:
    return f'{_OPEN}\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{_CLOSE}"


HERMES = Syntax(known_by=(_OPEN,), opens=(_OPEN,), marks=(_OPEN, _CLOSE), closes=(_CLOSE,), read=_read, frame=_frame)
