"""What models answer: calls of tools in every syntax, thoughts, and JSON that is held in bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from moeinf.text.tool_calls import choice
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax
from tests.support.campaign.targets.target import Target

_SYNTAXES: Final[tuple[Syntax, ...]] = (*vars(choice)["_SYNTAXES"], vars(choice)["GENERIC"])
_MOST_TEXT: Final = 2000  # characters, each of which is pushed alone
_TYPES: Final = {"a": "string", "b": "integer", "c": "array", "d": "object", "e": "boolean"}
TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in _TYPES.items()}},
        },
    }
    for name in ("get_weather", "f")
]


def _calls(data: bytes) -> None:
    """An answer with calls of tools, the same whole and letter by letter: its first byte says in which syntax."""
    if not data:
        return
    syntax, text = _SYNTAXES[data[0] % len(_SYNTAXES)], data[1:].decode(errors="replace")[:_MOST_TEXT]
    assert list(_read(syntax, [text])) == list(_read(syntax, list(text)))


def _read(syntax: Syntax, parts: list[str]) -> Iterator[tuple[str, str]]:
    """The text, then name and arguments of each call."""
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS))
    pieces = [*(piece for part in parts for piece in splitter.push(part)), *splitter.flush()]
    yield "", "".join(piece.text for piece in pieces)
    names, arguments = dict[int, str](), dict[int, str]()
    for piece in pieces:
        if piece.call is None:
            continue
        if piece.call.name is not None:
            names[piece.call.index] = piece.call.name
        arguments[piece.call.index] = arguments.get(piece.call.index, "") + piece.call.arguments
    yield from ((name, arguments.get(at, "")) for at, name in names.items())


def _seeds() -> list[bytes]:
    call = '{"name": "f", "arguments": {"a": "x", "b": 3, "c": [1, {}]}}'
    marked = ((at, "".join(syntax.opens[:1]), "".join(syntax.closes[:1])) for at, syntax in enumerate(_SYNTAXES))
    return [bytes([at]) + f"Let me see.\n{opening}{call}{closing} done".encode() for at, opening, closing in marked]


TARGETS: Final = {"calls": Target(_calls, _seeds)}
