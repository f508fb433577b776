"""<|tool_call|>[{"name": ..., "arguments": {...}}]: Granite 3. Its templates know no calls in messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from moeinf.text.tool_calls.call_objects import pass_marks, read_calls
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import MessageCall, Syntax

_OPEN, _OTHER, _CLOSE = "<|tool_call|>", "<tool_call>", "</tool_call>"  # others for models that mix them up


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from pass_marks(source, opened)
    yield from read_calls(source)


def _write(calls: Sequence[MessageCall]) -> str:
    written = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls]
    return _OPEN + json.dumps(written, ensure_ascii=False)


def _frame(name: str, template: str) -> tuple[str, str]:
    return f'{_OPEN}[{{"name": {json.dumps(name)}, "arguments": ', "}]"


GRANITE = Syntax(
    known_by=(_OPEN,),
    opens=(_OPEN, _OTHER),
    marks=(_OPEN, _OTHER, _CLOSE),
    closes=(_CLOSE,),
    read=_read,
    frame=_frame,
    write=_write,
    result_role="tool_response",
)
