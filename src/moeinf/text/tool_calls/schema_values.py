"""Gives arguments that a model wrote as plain text the types that the tool's JSON schema asks for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

_MAX_DEPTH = 10  # of schemas within schemas
_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class ToolSchemas:
    """The tools of a request, as far as readers ask about them."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool.get("function") for tool in tools]
        self._schemas = {str(f.get("name")): f.get("parameters") for f in functions if isinstance(f, Mapping)}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def value(self, tool: str, parameter: str, text: str) -> Any:
        """The value of a parameter. Text that cannot be of its type stays text, for the caller to refuse."""
        root = self._schemas.get(tool)
        types = _types(_property(root, parameter), root, _MAX_DEPTH)
        structured = {"object", "array"}
        wanted = types & (structured | {"null"}) if "string" in types else types or structured
        found = _parsed(text)
        return found if _kinds(found) & wanted else text

    def member(self, tool: str, parameter: str, text: str) -> str:
        """A parameter and its value as a member of a JSON object."""
        value = self.value(tool, parameter, text)
        # Text of an answer is sound; what is escaped in JSON may be half a character, and stays escaped.
        return f"{json.dumps(parameter)}: {json.dumps(value, ensure_ascii=not isinstance(value, str))}"


def _parsed(text: str) -> Any:
    """What text means as JSON, or as one of Python's words; else the text."""
    word = text.strip()
    if word in _PYTHON_WORDS:
        return _PYTHON_WORDS[word]
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return text


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _kinds(value: Any) -> set[str]:
    """The names by which JSON schema may call a value."""
    if isinstance(value, bool):
        return {"boolean"}
    if isinstance(value, str):
        return {"string"}
    if isinstance(value, int):
        return {"integer", "number"}
    if isinstance(value, float):
        return {"number", "integer"} if value.is_integer() else {"number"}
    return {"null"} if value is None else {"object"} if isinstance(value, dict) else {"array"}


def _property(schema: Any, name: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(name) if isinstance(properties, Mapping) else None


def _types(schema: Any, root: Any, depth: int) -> set[str]:
    """The types that a schema allows; none where it does not say."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    listed = schema.get("type")
    types = {str(entry) for entry in (listed if isinstance(listed, list) else [listed]) if entry is not None}
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    types |= {kind for value in values for kind in _kinds(value)}
    for key in ("anyOf", "oneOf", "allOf"):
        for entry in _list(schema.get(key)):
            types |= _types(entry, root, depth - 1)
    if isinstance(schema.get("$ref"), str):
        types |= _types(_referred(root, schema["$ref"]), root, depth - 1)
    return types


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _referred(root: Any, reference: str) -> Any:
    """What a reference within the schema, such as #/$defs/Colour, refers to; None where it leads nowhere."""
    found = root
    for key in reference.removeprefix("#/").split("/"):
        found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
