"""What is known of a syntax of tool calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from moeinf.text.tool_calls.reading import Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.types import JsonMapping

# A call of a message, as templates get it: {"id": ..., "function": {"name": ..., "arguments": {...}}}.
MessageCall = JsonMapping


class Elements(NamedTuple):
    """A call whose arguments stand in plain text between marks.

    before, behind: what stands around all of them. opening: what stands in front of a value, given its key and whether
    it is text. end: what stands behind one.
    """

    before: str
    opening: Callable[[str, bool], str]
    end: str
    behind: str


@dataclass(frozen=True)
class Syntax:
    """How a family of models writes calls.

    known_by: text of a chat template that tells it. opens: the marks of an answer behind which calls may stand.
    marks: all that may be tokens of the vocabulary. closes: those behind a call, and behind all of them.
    read: the reader of what stands behind a mark, which it is given.
    call_id: the id that a template wants for the n-th call of a chat, where it wants a form of its own.
    describe: what the model is told of its tools, where its templates do not; given the tools and the template.
    frame: what stands before and behind the arguments of a single call, given the tool's name and the template; None
    where arguments are no JSON. elements: the same where they are values in plain text, given the tool's name.
    write, write_result, result_role: calls as the model writes them, what becomes of the text of a result, and the role
    of results, for templates that leave calls out.
    """

    known_by: tuple[str, ...]
    opens: tuple[str, ...]
    marks: tuple[str, ...]
    closes: tuple[str, ...]
    read: Callable[[Source, str, ToolSchemas], Reading[None]]
    call_id: Callable[[str, str, int], str] | None = None  # of its id so far, its tool's name, and n
    describe: Callable[[Sequence[JsonMapping], str], str] | None = None
    frame: Callable[[str, str], tuple[str, str]] | None = None
    elements: Callable[[str], Elements] | None = None
    write: Callable[[Sequence[MessageCall]], str] | None = None
    write_result: Callable[[str], str] | None = None
    result_role: str = "tool"
