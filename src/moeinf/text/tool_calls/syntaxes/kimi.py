"""Kimi K2's calls:

<|tool_calls_section_begin|><|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
... <|tool_calls_section_end|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial

from moeinf.text.tool_calls.call_objects import checked_name, ended_by, read_name, read_section, read_some_arguments
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import MessageCall, Syntax

_OPEN, _CLOSE = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _END_CALL = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
# As some answers have them.
_OPEN_ONE, _CLOSE_ONE = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"
_CLOSES = (_CLOSE, _CLOSE_ONE)
_NUMBER = re.compile(r":\d+\Z")
_SLOPPY_ID = re.compile(r"(?:functions[.:_]?)?(.*?)[:_]?(\d*)")


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """Some answers begin with a call, without the mark of its section."""
    yield from read_section(source, _CALL, _CLOSES, partial(_read_call, tools), begun=opened == _CALL)


def _read_call(tools: ToolSchemas, source: Source) -> Reading[None]:
    given = yield from read_name(source)
    yield from source.space()
    yield from source.expect(_ARGUMENTS)
    name = checked_name(_called(given, tools))
    yield from read_some_arguments(source, name, _END_CALL, _CALL, *_CLOSES)
    yield from ended_by(source, _END_CALL, _CALL, *_CLOSES)


def _called(given: str, tools: ToolSchemas) -> str:
    """The tool that an id calls. Some answers leave out a point or a colon of it, or write lines instead
    (functionsexec5, functions_exec_5)."""
    name = _NUMBER.sub("", given).removeprefix("functions.")
    if name in tools:
        return name
    sloppy = _SLOPPY_ID.fullmatch(given)
    assert sloppy is not None  # as all its parts may be empty
    named = (sloppy[1] + sloppy[2][:num_digits] for num_digits in range(len(sloppy[2]), -1, -1))
    return next((each for each in named if each in tools), name)


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
    opens=(_OPEN, _OPEN_ONE, _CALL),
    marks=(_OPEN, _OPEN_ONE, *_CLOSES, _CALL, _ARGUMENTS, _END_CALL),
    closes=(_END_CALL, *_CLOSES),
    read=_read,
    call_id=_call_id,
    frame=_frame,
    write=_write,
)
