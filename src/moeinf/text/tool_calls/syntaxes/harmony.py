"""Harmony's calls, each of which is a message of its own; moeinf.text.harmony finds those.

<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

import re

from moeinf.text.tool_calls.call_objects import checked_name, read_arguments, whole_call
from moeinf.text.tool_calls.reading import NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")


def called_in(head: str) -> str | None:
    """The tool that a message goes to, by its head (role and channel); None for a message that is no call."""
    found = _RECIPIENT.search(head)
    try:
        return checked_name(found[1]) if found else None
    except NotACallError:
        return None


def _read(source: Source, name: str, tools: ToolSchemas) -> Reading[None]:
    """The text of a message that goes to a tool: its arguments, or nothing for none."""
    yield from source.space()
    if (yield from source.at_end()):
        yield from whole_call(name, "{}")
    else:
        yield from read_arguments(source, name)


def _frame(name: str, template: str) -> tuple[str, str]:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "<|call|>"


# No mark within text opens a call: the reader is given a message, and the name in its head.
HARMONY = Syntax(known_by=("<|channel|>commentary",), opens=(), marks=(), read=_read, frame=_frame)
