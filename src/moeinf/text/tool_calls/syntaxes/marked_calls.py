"""Calls in JSON between marks of their own:

Hunyuan A13B: <tool_calls>[{"name": "f", "arguments": {...}}]</tool_calls>
North Mini:   <|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {...}}]<|END_ACTION|>
Solar Open:   <|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{...}<|tool_call:end|> ... <|calls|>
"""

from __future__ import annotations

import json
import re
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import ended_by, pass_marks, read_calls, read_name, read_some_arguments
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_ACTION, _END_ACTION = "<|START_ACTION|>", "<|END_ACTION|>"
_LIST, _END_LIST = "<tool_calls>", "</tool_calls>"
_CALLS, _END_CALLS = "<|tool_calls|>", "<|calls|>"
_CALL, _NAME, _ARGUMENTS, _END_CALL = (f"<|tool_call:{part}|>" for part in ("begin", "name", "args", "end"))
_ID, _MAX_ID_CHARS = re.compile(rf"[^<\n{TOKEN_MARK}]*"), 200


def _read_list(end: str, source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from pass_marks(source, opened)
    yield from read_calls(source)
    yield from source.space()
    yield from source.accept(end)


def _frame_list(name: str, template: str) -> tuple[str, str]:
    return f'{_LIST}[{{"name": {json.dumps(name)}, "arguments": ', f"}}]{_END_LIST}"


def _frame_action(name: str, template: str) -> tuple[str, str]:
    before = f'{_ACTION}[\n    {{"tool_call_id": "0", "tool_name": {json.dumps(name)}, "parameters": '
    return before, f"}}\n]{_END_ACTION}"


def _read_solar(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    if opened == _CALLS:
        yield from source.space()
        yield from source.expect(_CALL)
    while True:
        yield from source.matching(_ID, _MAX_ID_CHARS)
        yield from source.expect(_NAME)
        name = yield from read_name(source)
        yield from source.expect(_ARGUMENTS)
        yield from read_some_arguments(source, name, _END_CALL, _CALL, _END_CALLS)
        yield from ended_by(source, _END_CALL, _CALL, _END_CALLS)
        behind = source.at
        yield from source.space()
        if not (yield from source.accept(_CALL)):
            source.at = behind
            return


def _frame_solar(name: str, template: str) -> tuple[str, str]:
    return f"{_CALLS}{_CALL}call000000{_NAME}{name}{_ARGUMENTS}", f"{_END_CALL}{_END_CALLS}"


HUNYUAN_A13B = Syntax(
    known_by=(f"{_LIST}[",),
    opens=(_LIST,),
    marks=(_LIST, _END_LIST),
    closes=(_END_LIST,),
    read=partial(_read_list, _END_LIST),
    frame=_frame_list,
)
NORTH = Syntax(
    known_by=(_ACTION,),
    opens=(_ACTION,),
    marks=(_ACTION, _END_ACTION),
    closes=(_END_ACTION,),
    read=partial(_read_list, _END_ACTION),
    frame=_frame_action,
)
SOLAR = Syntax(
    known_by=(_CALL,),
    opens=(_CALLS, _CALL),
    marks=(_CALLS, _END_CALLS, _CALL, _NAME, _ARGUMENTS, _END_CALL),
    closes=(_END_CALL, _END_CALLS),
    read=_read_solar,
    frame=_frame_solar,
)
