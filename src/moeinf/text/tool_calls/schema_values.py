"""Gives arguments that a model wrote as plain text the types that the tool's JSON schema asks for."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence

from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.schemas import Schema, kinds_of
from moeinf.types import Json, JsonMapping

_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ANY_CASE = {word.lower(): value for word, value in _WORDS.items()}
_BITS = {"1": True, "0": False}
STRUCTURED = frozenset({"object", "array"})
NO_TEXT = STRUCTURED | {"number", "integer", "boolean", "null"}


class ToolSchemas:
    """The tools of a request, as far as readers ask about them."""

    def __init__(self, tools: Sequence[JsonMapping]) -> None:
        functions = [tool.get("function") for tool in tools]
        self._schemas = {str(f.get("name")): Schema(f.get("parameters")) for f in functions if isinstance(f, Mapping)}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def fits(self, tool: str, arguments: Json) -> bool:
        """Whether arguments are such as the tool's schema asks for."""
        return self._schemas[tool].fits(arguments)

    def value(self, tool: str, parameter: str, text: str, untyped: frozenset[str] = STRUCTURED) -> Json:
        """The value of a parameter, also where it stands in quotes that its type does not have.

        Text that cannot be of its type stays text, for the caller to refuse.
        untyped: what text may be beside text where the schema does not say, which is a syntax's own rule.
        """
        types = self._schemas[tool].types(parameter) if tool in self._schemas else None
        if types is None:
            return _as_one_of(untyped, text, loose=False)
        if "string" in types:
            return _as_one_of(types & (STRUCTURED | {"null"}), text, loose=True)
        value, quoted = _as_one_of(types, text, loose=True), _as_json(text)
        if value == text and isinstance(quoted, str):
            inner = _as_one_of(types, quoted, loose=False)
            return value if inner == quoted else inner
        return value

    def member(self, tool: str, parameter: str, text: str, untyped: frozenset[str] = STRUCTURED) -> str:
        """A parameter and its value as a member of a JSON object."""
        member = (
            f"{json.dumps(parameter)}: {json.dumps(self.value(tool, parameter, text, untyped), ensure_ascii=False)}"
        )
        return member.encode("utf-16", "surrogatepass").decode(
            "utf-16", "replace"
        )  # half a pair can be escaped in JSON


def _as_one_of(types: frozenset[str], text: str, *, loose: bool) -> Json:
    """What text means as JSON or in Python's spelling, where that has one of these types; else the text.

    loose: whether the schema asks for these types, so that TRUE and the like can only mean one thing.
    """
    word = text.strip()
    if word in _WORDS or (loose and word.lower() in _ANY_CASE):
        value = _WORDS.get(word, _ANY_CASE.get(word.lower()))
        return value if kinds_of(value) & types else text
    for read in (_as_json, _as_python, text_as_json) if loose else (_as_json, _as_python):
        found = read(text) if types else None
        if found is not None and kinds_of(found) & types:
            return found
    return text


def _as_json(text: str) -> Json:
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return value


def _as_python(text: str) -> Json:
    """A list, tuple or dict as Python writes it; None for other text, and for what JSON has no form for."""
    if not text.lstrip().startswith(("[", "{", "(")):
        return None
    try:
        return json.loads(json.dumps(ast.literal_eval(text.strip()), allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
