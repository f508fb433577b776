"""Answers of a given form: which tokens may come next, so that the answer is JSON, or JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, Protocol

import numpy as np

from moeinf.errors import TextError, UsageError
from moeinf.text.tokenizer import TextStream, whole_characters
from moeinf.types import IntArray, JsonMapping

_MOST_BYTES = 64 << 10  # of a schema or grammar
_MOST_FORMS = 128


@dataclass(frozen=True, slots=True)
class FramedJson:
    """JSON of a schema between two texts, in which the names of control tokens mean those tokens: a call of a tool.

    Thoughts may come before it. Of gpt-oss the prefix is all that follows its analysis: `<|channel|>commentary ...`.
    """

    schema: JsonMapping
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a call between two texts: JSON of a schema, one of some texts, or without either any text.

    required: whether the call must have it.
    """

    opening: str
    end: str
    schema: JsonMapping | None = None
    choices: Sequence[str] = ()
    required: bool = True


@dataclass(frozen=True, slots=True)
class FramedValues:
    """Values, in this order, between two texts, as FramedJson: a call of a tool whose arguments are no JSON."""

    values: Sequence[Value]
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Language:
    """Text that is no JSON of a schema, in whole. Its letters never mean control tokens.

    regex: a regular expression as Rust's regex crate reads it. lark: a grammar of llguidance's dialect, with a rule
    `start`. gbnf: one as llama.cpp reads it, with a rule `root`. choice: the JSON of a list of texts (see `one_of`).
    """

    kind: Literal["regex", "lark", "gbnf", "choice"]
    text: str


def one_of(choices: Sequence[str]) -> Language:
    """The language of these texts. Raises UsageError where there are none, or where one is no text."""
    if isinstance(choices, str) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise UsageError("format: choices are a list of texts, none of them empty")
    return Language("choice", json.dumps(whole_characters(choices)))


# "json": any object. A mapping: a JSON schema. Several framed ones: one of them. An answer may also be calls of the
# tools that the model is given, unless it is framed; with "call" it has to be.
AnswerFormat = str | JsonMapping | Language | Sequence[FramedJson | FramedValues]


class Constraint(Protocol):
    """What the next token of one answer may be."""

    @property
    def complete(self) -> bool:
        """Whether nothing may follow, so that the answer ends without a token that says so."""
        ...

    def allowed(self) -> IntArray:
        """The ids of the tokens that may come next, ascending; one that ends the answer only where it may end."""
        ...

    def accept(self, token: int) -> None:
        """Goes on behind a token, one of those that were allowed."""
        ...


class GrammarConstraint:
    """An answer of a form, as the worker behind a text stream follows it. Thoughts before the answer are free."""

    def __init__(self, stream: TextStream, first: tuple[bytes, bool], num_ids: int) -> None:
        """first: what may come first, and whether nothing may. num_ids: ids from there on mean nothing."""
        self._stream, self._num_ids = stream, num_ids
        self._mask, self.complete = first

    def allowed(self) -> IntArray:
        """Raises UsageError where the vocabulary lacks what has to come."""
        bits = np.unpackbits(np.frombuffer(self._mask, np.uint8), bitorder="little").view(np.bool_)
        ids = np.flatnonzero(bits[: self._num_ids])
        if not len(ids):
            raise UsageError("format: this model has no token for what the schema wants here; change the schema")
        return ids

    def accept(self, token: int) -> None:
        self._mask, self.complete = self._stream.accept(token)

    def until_complete(self, tokens: Iterable[int | None]) -> Iterator[int | None]:
        """Passes on the tokens of an answer, and ends it where it is complete: before another one is computed."""
        for token in tokens:
            yield token
            if token is not None and self.complete:
                return


def held_to(stream: TextStream, format: AnswerFormat, num_ids: int) -> GrammarConstraint:
    """Holds an answer to a form. num_ids: as of GrammarConstraint.

    Raises UsageError for what is no form, and for a schema with a feature that is not supported.
    """
    return GrammarConstraint(stream, stream.constrain(_forms(format)), num_ids)


def calls_held(stream: TextStream, num_ids: int) -> GrammarConstraint | None:
    """Leaves an answer free but for calls of tools, where the stream's model is told of tools by moeinf alone."""
    first = stream.hold_calls()
    return None if first is None else GrammarConstraint(stream, first, num_ids)


def _forms(format: AnswerFormat) -> list[dict[str, str]]:
    """The forms as the worker wants them: prefix, schema or the like as text, suffix. Raises UsageError."""
    if format == "call":
        return []
    if isinstance(format, Language):
        return [{"prefix": "", format.kind: _short(format.text, f"the {format.kind}"), "suffix": ""}]
    if format == "json":
        format = {"type": "object"}
    if isinstance(format, Mapping):
        format = [FramedJson(format)]
    if isinstance(format, str) or not all(isinstance(form, FramedJson | FramedValues) for form in format) or not format:
        raise UsageError(f'format must be "json" or a JSON schema (an object), not {str(format)[:40]!r}')
    if len(format) > _MOST_FORMS:
        raise UsageError(f"format: {len(format)} forms are too many; give at most {_MOST_FORMS}")
    return [{"prefix": form.prefix, **_held(form), "suffix": form.suffix} for form in format]


def _held(form: FramedJson | FramedValues) -> dict[str, str]:
    if isinstance(form, FramedJson):
        return {"schema": _schema_text(form.schema)}
    for value in form.values:
        _schema_text(value.schema or {})
    return {"values": _short(json.dumps(whole_characters([asdict(each) for each in form.values])), "the schema")}


def _schema_text(schema: JsonMapping) -> str:
    try:
        text = json.dumps(whole_characters(schema), allow_nan=False)
    except (TypeError, ValueError, RecursionError, TextError) as error:
        raise UsageError(f"format: the schema is no JSON ({error}); give an object as json.loads makes it") from error
    return _short(text, "the schema")


def _short(text: str, what: str) -> str:
    if len(text) > _MOST_BYTES:
        raise UsageError(f"format: {what} has {len(text)} bytes; at most {_MOST_BYTES >> 10} KiB are taken")
    return text
