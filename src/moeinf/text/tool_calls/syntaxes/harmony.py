"""Harmony's calls, each of which is a message of its own; moeinf.text.harmony_channels finds those.

<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
"""

from __future__ import annotations

from moeinf.text.tool_calls.call_objects import checked_name, read_some_arguments
from moeinf.text.tool_calls.reading import NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax

_PREFIX = "functions."
_KINDS = ("json", "code")  # of the text of a message, which some answers write right behind the name


def called_in(recipient: str, tools: ToolSchemas) -> str | None:
    """The tool that a message to `recipient` calls; None where that is no function."""
    name = recipient.removeprefix(_PREFIX)
    named = (name.removesuffix(kind) for kind in ("", *_KINDS))
    found = next((each for each in named if each in tools), name)
    try:
        return checked_name(found) if found in tools or recipient.startswith(_PREFIX) else None
    except NotACallError:
        return None


def _read(source: Source, name: str, tools: ToolSchemas) -> Reading[None]:
    """The text of a message that goes to a tool."""
    yield from read_some_arguments(source, name)


def _frame(name: str, template: str) -> tuple[str, str]:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>", "<|call|>"


# No mark within text opens a call: the reader is given a message, and the name in its head.
HARMONY = Syntax(known_by=("<|channel|>commentary",), opens=(), marks=(), closes=(), read=_read, frame=_frame)
