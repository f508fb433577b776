"""The forms that answers are held to: schemas, grammars and the like, as requests say them."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from moeinf.sampling.constraint import Language, held_to, one_of
from moeinf.server.openai.response_format import openai_format
from moeinf.text.forms.json_space import AnswerStart, JsonSpace, SpaceTokens, space_between
from moeinf.text.forms.languages import GrammarError, expression
from moeinf.text.tokenizer import whole_characters
from moeinf.text.tool_calls.schemas import Schema
from tests.support.campaign.targets.target import Target, as_json, refusing

_KINDS: Final[tuple[Literal["regex", "gbnf", "lark", "choice"], ...]] = ("regex", "gbnf", "lark", "choice")


class _Stream:
    """Reads a form as the process that holds answers to it does, up to the grammar that others compile."""

    def constrain(self, forms: Any) -> tuple[bytes, bool]:
        for form in map(whole_characters, forms):
            try:
                assert expression(form)
            except GrammarError as error:
                assert str(error)
        return b"\xff", False


def _held(format: Any) -> None:
    stream: Any = _Stream()
    held_to(stream, format, 8)


def _schema(data: bytes) -> None:
    """A schema as a client sends it."""

    def read() -> None:
        try:
            schema = whole_characters(json.loads(data))  # as of a body
        except (ValueError, RecursionError):
            return
        if isinstance(schema, dict):
            _held(schema)
            format = openai_format(schema, "x")
            if format is not None:
                _held(format)

    refusing(read)


def _grammar(data: bytes) -> None:
    """The text of a language; the first byte says which."""
    if not data:
        return
    kind, text = _KINDS[data[0] % len(_KINDS)], data[1:].decode(errors="replace")
    refusing(lambda: _held(one_of(text.split("|")) if kind == "choice" else Language(kind, text)))


def _parameters(data: bytes) -> None:
    """The schema of a tool as a client sends it, and arguments: [schema, arguments]."""
    try:
        schema, arguments = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return
    found = Schema(schema)
    for name in ("a", "b", "c"):
        types = found.types(name)
        assert types is None or types
    assert found.fits(arguments) in (True, False)


def _json_space(data: bytes) -> None:
    """Space in an answer of JSON, counted whole and byte by byte; the first byte says what stands before."""
    if not data:
        return
    starts = (AnswerStart(), AnswerStart(b"<think>", b"</think>"), AnswerStart(calls=(b"<tool_call>", b"[TOOL")))
    start, written = starts[data[0] % len(starts)], data[1:]
    whole, pieces = JsonSpace(start), JsonSpace(start)
    whole.take(written)
    for at in range(len(written)):
        pieces.take(written[at : at + 1])
    assert whole.place == pieces.place or start.calls
    if not start.calls:
        assert whole.spent == pieces.spent
    count, place = space_between(written, "between")
    assert 0 <= count <= len(written)
    tokens = SpaceTokens([written[:3], b" ", b"a", written[3:9]])
    for mask in (b"\x0f", b"\x05", b"\x02"):
        left = tokens.without(mask, place)
        assert len(left) == 1 and left[0] and left[0] & ~mask[0] == 0


_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "format": "date", "enum": ["x"]},
        "b": {"type": "number", "multipleOf": 0.5},
    },
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"c": {"anyOf": [{"$ref": "#/$defs/c"}, {"type": "null"}]}},
}


_TYPES: Final[dict[str, Any]] = {
    "format": "int64",
    "nullable": True,
    "items": {},
    "oneOf": [{"const": 1}, {"allOf": [{"minimum": 1}]}],
}


def _schema_seeds() -> list[bytes]:
    inner = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA, "strict": True}}
    return as_json(_SCHEMA, inner, {"type": "regex", "pattern": "a+"}, {"type": "grammar", "grammar": 'root ::= "a"'})


def _grammar_seeds() -> list[bytes]:
    texts = (r"[a-z]+\d{2,3}(x|y)?", 'root ::= "a" [b-d]* (x | "e")\nx ::= "f"', 'start: "a" /b+/ x?\nx: "c"', "a|b")
    return [bytes([at]) + text.encode() for at, text in enumerate(texts)]


TARGETS: Final = {
    "schema": Target(_schema, _schema_seeds, lambda: ("multipleOf", "minLength", "pattern", "const", "oneOf", "$ref")),
    "grammar": Target(_grammar, _grammar_seeds),
    "parameters": Target(
        _parameters, lambda: as_json([_SCHEMA, {"a": "x", "b": 1}], [{"properties": {"a": _TYPES}}, {}])
    ),
    "json_space": Target(
        _json_space, lambda: [b'\0{"a": "b \\" c"}', b'\1<think> x </think> {"a":1}', b"\2[TOOL_CALLS]"]
    ),
}
