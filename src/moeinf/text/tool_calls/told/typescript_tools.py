"""Tools as Kimi K2.5 and its successors were trained to read them: TypeScript, which their own tokenizer writes.

A type is told with the comments that stand above it. What cannot be told so is left to the template, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moeinf.types import Json, JsonMapping, JsonObject

_STEP: Final = "  "
_OF_SCALARS: Final = {  # the words of a schema that are told in a comment
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
}
_UNITED: Final = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
_VALUES: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
}


class _Untold(Exception):
    """A schema that has no form here."""


@dataclass(frozen=True, slots=True)
class _Type:
    """write: the type, at an indent."""

    write: Callable[[str], str]
    description: str = ""
    bounds: str = ""

    def comments(self, indent: str) -> str:
        lines = [_comment(self.description, indent)] if self.description else []
        lines += [f"{indent}// {self.bounds}"] if self.bounds else []
        return "".join(f"{line}\n" for line in lines)


def sorted_deep(value: Json) -> Json:
    """The same with the members of every object in the order of their names."""
    if isinstance(value, Mapping):
        return {key: sorted_deep(item) for key, item in sorted(value.items())}
    return [sorted_deep(item) for item in value] if isinstance(value, list | tuple) else value


def as_typescript(tools: Sequence[JsonMapping]) -> str | None:
    """The tools, sorted as sorted_deep does; None where one of them has no form here."""
    try:
        functions = "\n".join(_Function(tool["function"]).told() for tool in tools)
    except (_Untold, RecursionError):
        return None
    return f"# Tools\n\n## functions\nnamespace functions {{\n{functions}\n}}\n"


class _Function:
    """One tool, with the definitions that its schema has met."""

    def __init__(self, function: JsonMapping) -> None:
        self._function = function
        self._definitions = dict[str, Json]()
        self._is_recursive = False

    def told(self) -> str:
        name, schema = self._function["name"], self._function.get("parameters") or {}
        members, further = self._members(_object(schema))
        whole, parts = f"_: {_braces(members, further, '')}", list[str]()
        if self._is_recursive:
            named = ",\n".join(member for _, member in members(_STEP))
            parts.append(f"interface parameters {{\n{named}\n}}" if named else "interface parameters {}")
            whole = "_: parameters"
        for title, definition in list(self._definitions.items()):
            body = self._type(_object(definition))
            note = f"{_comment(body.description)}\n" if body.description else ""
            parts.append(f"{note}interface {title} {body.write('')}")
        if description := _text(self._function):
            parts.append(_comment(description))
        return "\n".join([*parts, f"type {name} = ({whole}) => any;"])

    def _type(self, schema: Json) -> _Type:
        if isinstance(schema, bool):
            return _named("any" if schema else "null")
        if not schema and isinstance(schema, Mapping):
            return _named("any")
        schema, kind = _object(schema), schema.get("type")
        description = _text(schema)
        if "$ref" in schema:
            return _named(self._reference(schema["$ref"]), description)
        if "anyOf" in schema:
            types = [self._type(each) for each in _list(schema["anyOf"])]
            return _Type(lambda indent: " | ".join(each.write(indent) for each in types), description)
        if "enum" in schema:
            return _named(" | ".join(_constants(_list(schema["enum"]), schema)), description)
        if isinstance(kind, list):
            return _named(" | ".join(_united(each) for each in kind), description)
        if kind == "object":
            members, further = self._members(schema)
            return _Type(lambda indent: _braces(members, further, indent), description)
        if kind == "array":
            item = self._type(schema["items"]) if schema.get("items") else _named("any")
            return _Type(lambda indent: _array(item, indent), description, _bounds(schema, ("minItems", "maxItems")))
        if not isinstance(kind, str):
            raise _Untold
        bounds = _bounds(schema, _OF_SCALARS.get(kind, ()))
        return _named("number" if kind == "integer" else kind, description, bounds)

    def _reference(self, given: Json) -> str:
        if given == "#":
            self._is_recursive = True
            return "parameters"
        title = str(given).rpartition("/")[2]
        if not str(given).startswith("#/$defs/") or not isinstance(self._definitions.get(title), Mapping):
            raise _Untold
        return title

    def _members(self, schema: JsonMapping) -> tuple[_Members, _Type | None]:
        """What writes the members of an object, each with whether it must be given, and the type of further ones."""
        self._definitions |= _object(schema.get("$defs") or {})
        extra, further = schema.get("additionalProperties"), None
        if extra is not None:
            further = _named("never") if extra is False else self._type(extra)
        required = _list(schema.get("required", []))
        types = {name: (self._type(each), each) for name, each in _object(schema.get("properties", {})).items()}

        def written(indent: str) -> Iterable[tuple[bool, str]]:
            for name, (kind, own) in types.items():
                yield name in required, _member(name, kind, own, indent, optional=name not in required)

        return written, further


_Members = Callable[[str], Iterable[tuple[bool, str]]]


def _member(name: str, kind: _Type, schema: Json, indent: str, *, optional: bool) -> str:
    default = schema.get("default") if isinstance(schema, Mapping) else None
    told = repr(default) if isinstance(default, (int, float)) else json.dumps(default, ensure_ascii=False)
    note = "" if default is None else f"{indent}// Default: {told}\n"
    return f"{kind.comments(indent)}{note}{indent}{name}{'?' if optional else ''}: {kind.write(indent)}"


def _braces(members: _Members, further: _Type | None, indent: str) -> str:
    """An object, what must be given first."""
    inner = indent + _STEP
    lines = [member for _, member in sorted(members(inner), key=lambda member: not member[0])]
    lines += [f"{inner}[k: string]: {further.write(inner)}"] if further else []
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"


def _array(item: _Type, indent: str) -> str:
    inner = indent + _STEP
    if comments := item.comments(inner):
        return f"Array<\n{comments}{inner}{item.write(inner)}\n{indent}>"
    return f"Array<{item.write(indent)}>"


def _named(name: str, description: str = "", bounds: str = "") -> _Type:
    return _Type(lambda _: name, description, bounds)


def _constants(values: list[Json], schema: JsonMapping) -> Iterable[str]:
    kind = schema.get("type")
    if isinstance(kind, list):
        named = [each for each in kind if each != "null"] if len(kind) == 2 else kind
        if len(named) != 1:
            raise _Untold
        kind = named[0]
    for value in values:
        if value is not None and isinstance(kind, str) and not isinstance(value, _VALUES.get(kind, object)):
            raise _Untold
        yield f'"{value}"' if isinstance(value, str) else str(value)


def _united(kind: Json) -> str:
    if kind not in _UNITED:
        raise _Untold
    return _UNITED[kind]


def _bounds(schema: JsonMapping, words: Sequence[str]) -> str:
    return ", ".join(f"{word}: {schema[word]}" for word in sorted(words) if word in schema)


def _comment(text: str, indent: str = "") -> str:
    return "\n".join(f"{indent}// {line}" if line else "" for line in text.split("\n"))


def _text(schema: JsonMapping) -> str:
    found = schema.get("description") or ""
    if not isinstance(found, str):
        raise _Untold
    return found


def _object(value: Json) -> JsonObject:
    if not isinstance(value, Mapping):
        raise _Untold
    return dict(value)


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list | tuple):
        raise _Untold
    return list(value)
