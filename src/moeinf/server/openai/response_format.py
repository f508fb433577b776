"""The form that a request wants its answer in: OpenAI's response_format, and what other servers call it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from moeinf.sampling.constraint import AnswerFormat, Language, one_of
from moeinf.server.body import check_size
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.requests import Sampling, StructuredOutputs
from moeinf.types import Json, JsonMapping


def format_of(asked: Sampling) -> AnswerFormat | None:
    """`format` of Model.pieces. Raises Refusal, also for two forms at once, and UsageError."""
    given: dict[str, AnswerFormat] = {}
    for name, read in _READERS.items():
        value = getattr(asked, name)
        if value is not None and (form := read(value, name)) is not None:
            given[name] = form
    if len(given) > 1:
        raise Refusal(400, f"{' and '.join(given)} each say what form the answer has; give one of them")
    return next(iter(given.values()), None)


def openai_format(given: JsonMapping, where: str) -> AnswerFormat | None:
    """OpenAI's three types, with the schema where others put it, and the regex and grammar of other servers."""
    kind = given.get("type")
    if kind in (None, "text"):
        return None
    value = given.get("value")
    if kind in ("json_object", "json_schema", "json"):
        described = given.get("json_schema")
        schema = described.get("schema") if isinstance(described, dict) else given.get("schema", value)
        return "json" if kind == "json_object" and schema is None else _schema(schema, f"{where}.{kind}")
    if kind == "regex":
        return _regex(given.get("pattern", value), f"{where}.value")
    if kind == "grammar":
        return _grammar(given.get("grammar", value), f"{where}.grammar")
    raise Refusal(400, f"{where} cannot be {kind!r:.60}; it is text, json_object, json_schema, regex or grammar")


def _structured(given: StructuredOutputs, where: str) -> AnswerFormat | None:
    """vLLM's, of which one says the form."""
    said = {name: getattr(given, name) for name in ("json", "regex", "choice", "grammar")}
    said = {name: value for name, value in said.items() if value is not None}
    if given.json_object:
        said["json_object"] = True
    if len(said) > 1:
        raise Refusal(400, f"{where} has {' and '.join(said)}; give one of them")
    for name, value in said.items():
        return _KINDS[name](value, f"{where}.{name}")
    return None


def _schema(given: object, where: str) -> JsonMapping:
    """A JSON schema, as an object or as the text of one."""
    if isinstance(given, str):
        check_size(given.encode(), where)
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise Refusal(400, f"{where} is no JSON; give a schema as an object") from None
    if not isinstance(given, dict):
        raise Refusal(400, f"{where} must have a schema, which is an object")
    return given


def _regex(given: object, where: str) -> Language:
    return Language("regex", _text(given, where))


def _grammar(given: object, where: str) -> Language:
    """llama.cpp's form, whose rules have ::=, or llguidance's, which llama.cpp's server knows by its first line."""
    text = _text(given, where)
    return Language("gbnf" if "::=" in text and not text.lstrip().startswith("%llguidance") else "lark", text)


def _choice(given: object, where: str) -> Language:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise Refusal(400, f"{where} must be a list of texts")
    return one_of(given)


def _text(given: object, where: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise Refusal(400, f"{where} must be a text")
    return given


_KINDS: Mapping[str, Callable[[Json, str], AnswerFormat | None]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": lambda given, where: "json",
}
_READERS: Mapping[str, Callable[[Json, str], AnswerFormat | None]] = {
    "response_format": openai_format,
    "structured_outputs": _structured,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _schema,
    "regex": _regex,
    "ebnf": _grammar,
    "grammar": _grammar,
}
