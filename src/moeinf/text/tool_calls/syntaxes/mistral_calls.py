"""[TOOL_CALLS][{"name": ..., "arguments": {...}}], and newer [TOOL_CALLS]name[ARGS]{...}: Mistral."""

from __future__ import annotations

import hashlib
import json
import re

from moeinf.text.tool_calls.call_objects import pass_marks, read_arguments, read_calls, read_name, read_some_arguments
from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_OPEN, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_ID_FORM = re.compile(r"[a-zA-Z0-9]{9}")


def _read(source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    yield from pass_marks(source, _OPEN)
    if (yield from source.peek()) in "[{":
        yield from read_calls(source)
        return
    name = yield from read_name(source)
    yield from source.space()
    if (yield from source.accept(_ID)):
        yield from source.until(_ARGS)
        yield from read_some_arguments(source, name, _OPEN)
    elif (yield from source.accept(_ARGS)) or name in tools:
        yield from read_some_arguments(source, name, _OPEN)
    else:
        yield from read_arguments(source, name)


def _call_id(given: str, name: str, number: int) -> str:
    """Nine letters and digits, which the templates insist on; the same each time for the same id."""
    if _ID_FORM.fullmatch(given):
        return given
    return hashlib.sha256(f"{given}/{name}/{number}".encode()).hexdigest()[:9]


def _frame(name: str, template: str) -> tuple[str, str]:
    if _ARGS in template:
        return f"{_OPEN}{name}{_ARGS}", ""
    return f'{_OPEN}[{{"name": {json.dumps(name)}, "arguments": ', "}]"


MISTRAL = Syntax(
    known_by=(_OPEN,), opens=(_OPEN,), marks=(_OPEN, _ID, _ARGS), closes=(), read=_read, call_id=_call_id, frame=_frame
)
