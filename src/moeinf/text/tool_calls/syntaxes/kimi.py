"""Kimi K2's calls:

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
... <|tool_calls_section_end|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from moeinf.text.tool_calls.call_objects import checked_name, read_arguments, read_name
from moeinf.text.tool_calls.reading import NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import MessageCall, Syntax

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_NUMBER = re.compile(r":\d+\Z")


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from source.space()
    yield from source.expect(_CALL)
    while True:
        yield from source.space()
        name = yield from read_name(source)
        yield from source.space()
        yield from source.expect(_ARGUMENTS)
        yield from read_arguments(source, checked_name(_NUMBER.sub("", name).removeprefix("functions.")))
        yield from source.space()
        if not (yield from source.accept(_END_CALL)) and not (yield from source.at_end()):
            raise NotACallError
        yield from source.space()
        if not (yield from source.accept(_CALL)):
            break
    yield from source.accept(_CLOSE)


def _call_id(given: str, name: str, number: int) -> str:
    """functions.name:n, as the model writes it; n counts the calls of the whole chat."""
    return f"functions.{name}:{number}"


def _write(calls: Sequence[MessageCall]) -> str:
    written = [
        f"{_CALL}{call['id']}{_ARGUMENTS}{json.dumps(call['function']['arguments'], ensure_ascii=False)}{_END_CALL}"
        for call in calls
    ]
    return "".join([_OPEN, *written, _CLOSE])


def _frame(name: str, template: str) -> tuple[str, str]:
    return f"{_OPEN}{_CALL}functions.{name}:0{_ARGUMENTS}", f"{_END_CALL}{_CLOSE}"


KIMI = Syntax(
    known_by=(_OPEN, "<|im_system|>tool_declare"),
    opens=(_OPEN,),
    marks=(_OPEN, _CLOSE, _CALL, _ARGUMENTS, _END_CALL),
    read=_read,
    call_id=_call_id,
    frame=_frame,
    write=_write,
)
