"""What coverage-guided fuzzing calls with bytes: readers of files, bodies and answers that strangers have written.

Each returns where the bytes are sound or refused in a line of moeinf's own; whatever else it raises is a fault.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from moeinf.errors import MoeinfError
from moeinf.gguf.header import parse_gguf
from moeinf.server.anthropic.requests import MessageRequest
from moeinf.server.body import body_of
from moeinf.server.ollama.requests import ChatRequest as OllamaChat
from moeinf.server.ollama.requests import GenerateRequest
from moeinf.server.openai.requests import ChatRequest, CompletionRequest
from moeinf.store.format import header_length, parse_header
from moeinf.store.manifest import parse
from moeinf.text.tool_calls import choice
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax

_BODIES: Final = (ChatRequest, CompletionRequest, OllamaChat, GenerateRequest, MessageRequest)
_SYNTAXES: Final[tuple[Syntax, ...]] = (*vars(choice)["_SYNTAXES"], vars(choice)["GENERIC"])
_MOST_TEXT: Final = 2000  # characters, each of which is pushed alone
_TYPES: Final = {"a": "string", "b": "integer", "c": "array", "d": "object", "e": "boolean"}
_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in _TYPES.items()}},
        },
    }
    for name in ("get_weather", "f")
]


def _refusing(call: Callable[[], object]) -> None:
    try:
        call()
    except MoeinfError as error:
        assert "\n" not in str(error) and len(str(error)) < 5000, f"no line: {str(error)[:300]!r}"


def safetensors(data: bytes) -> None:
    """A file's header: what is returned lies inside the file, without hole or overlap."""

    def read() -> None:
        length = header_length(data[:8], len(data), "x")
        found = parse_header(data[8 : 8 + length], len(data), "x")
        assert sum(each.num_bytes for each in found.values()) == len(data) - 8 - length
        assert all(8 + length <= each.offset_bytes <= len(data) for each in found.values())

    _refusing(read)


def gguf(data: bytes) -> None:
    """A file's header: each tensor lies inside the file."""

    def read() -> None:
        found = parse_gguf(lambda offset, num_bytes: data[offset : offset + num_bytes], len(data), "x")
        assert found.header_bytes <= len(data)

    _refusing(read)


def manifest(data: bytes) -> None:
    """A manifest that is read says the same when it is written and read again."""

    def read() -> None:
        found = parse(data, "x")
        assert parse(found.dumps(), "x") == found

    _refusing(read)


def body(data: bytes) -> None:
    """The body of a request: its first byte says of which route."""
    if data:
        _refusing(lambda: body_of(data[1:], _BODIES[data[0] % len(_BODIES)]))


def calls(data: bytes) -> None:
    """An answer with calls of tools, the same whole and letter by letter: its first byte says in which syntax."""
    if not data:
        return
    syntax, text = _SYNTAXES[data[0] % len(_SYNTAXES)], data[1:].decode(errors="replace")[:_MOST_TEXT]
    assert list(_read(syntax, [text])) == list(_read(syntax, list(text)))


def _read(syntax: Syntax, parts: list[str]) -> Iterator[tuple[str, str]]:
    """The text, then name and arguments of each call."""
    splitter = CallSplitter(syntax, ToolSchemas(_TOOLS))
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


TARGETS: Final = {each.__name__: each for each in (safetensors, gguf, manifest, body, calls)}


def seeds(name: str) -> list[bytes]:
    """A few sound inputs, from which fuzzing begins."""
    if name == "safetensors":
        header = json.dumps({"a": {"dtype": "F16", "shape": [2, 1], "data_offsets": [0, 4]}}).encode()
        return [len(header).to_bytes(8, "little") + header + bytes(4)]
    if name == "body":
        message = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
        asked = {"model": "m", "messages": [message], "max_tokens": 3, "stream": True, "tools": _TOOLS[:1]}
        return [bytes([at]) + json.dumps(asked | {"prompt": "x"}).encode() for at in range(len(_BODIES))]
    if name == "calls":
        call = '{"name": "f", "arguments": {"a": "x", "b": 3, "c": [1, {}]}}'
        marked = ((at, "".join(syntax.opens[:1]), "".join(syntax.closes[:1])) for at, syntax in enumerate(_SYNTAXES))
        return [bytes([at]) + f"Let me see.\n{opening}{call}{closing} done".encode() for at, opening, closing in marked]
    return [b"GGUF\x03\0\0\0" + bytes(16)] if name == "gguf" else [b"{}"]
