"""What a JSON schema says of a parameter: which schema describes it, and which types that allows."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from moeinf.types import Json, JsonMapping

_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_MAX_DEPTH = 30  # of schemas within schemas
_MAX_NAME_CHARS = 200  # of a parameter that is held against a pattern
_NUMBERS = frozenset({"number", "integer"})
# Keywords that mean something for values of these types alone, so that they tell a type where nothing else does.
_HINTS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), _NUMBERS),
    **dict.fromkeys(("minLength", "maxLength", "pattern", "format"), frozenset({"string"})),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"), frozenset({"array"})),
    **dict.fromkeys(
        ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"),
        frozenset({"object"}),
    ),
}
# The beginnings of other names of types that schemas have, as the parser of Qwen3-Coder's makers takes them.
_OTHER_NAMES: Mapping[tuple[str, ...], str] = {
    ("int", "uint", "long", "short", "unsigned"): "integer",
    ("num", "float", "double", "decimal"): "number",
    ("bool", "binary"): "boolean",
    ("dict", "map"): "object",
    ("list", "arr", "tuple"): "array",
    ("str", "text", "varchar", "char", "enum"): "string",
    ("none", "nil"): "null",
}
_NUMBER_FORMATS = {
    **dict.fromkeys(("int32", "int64"), frozenset({"integer"})),
    **dict.fromkeys(("float", "double"), _NUMBERS),
}


class Schema:
    """The schema of a tool's arguments. Each part of it is looked at once, so that circles of references end."""

    def __init__(self, root: Json) -> None:
        self._root = root

    def types(self, parameter: str) -> frozenset[str] | None:
        """The types that a parameter may have; None where the schema does not say, or contradicts itself."""
        return _Types(self._root).of(_Properties(self._root, parameter).of(self._root)) or None

    def fits(self, arguments: Json) -> bool:
        """Whether arguments have the types, the required members and the listed values of each of their parts.

        Members that the schema does not know are for the client to refuse, so that the model can go on from that.
        """
        return _fits(self._root, self._root, arguments, 0)


def _parts(root: Json, schema: JsonMapping) -> list[Json]:
    """The schemas that hold beside what a schema says itself."""
    reference = schema.get("$ref")
    referred = [_referred(root, reference)] if isinstance(reference, str) else []
    return [*_list(schema.get("allOf")), *referred]


def _fits(root: Json, schema: Json, value: Json, depth: int) -> bool:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return True
    types = _Types(root).of(schema)
    if types and not kinds_of(value) & types:
        return False
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return False
    if not all(_fits(root, part, value, depth + 1) for part in _parts(root, schema)):
        return False
    if isinstance(value, list):
        return all(_fits(root, schema.get("items"), item, depth + 1) for item in value)
    if not isinstance(value, Mapping):
        return True
    if any(isinstance(name, str) and name not in value for name in _list(schema.get("required"))):
        return False
    return all(_fits(root, _Properties(root, name).of(schema), value[name], depth + 1) for name in value)


class _Walk(ABC):
    """Goes through the schemas that hold for one value: what it says itself, and what it refers to."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self._found: dict[int, Json] = {}  # by the identity of a schema
        self._kept: list[Json] = []  # schemas that were made here, whose identity must not come again
        self._depth = 0

    def of(self, schema: Json) -> Json:
        if not isinstance(schema, Mapping) or self._depth == _MAX_DEPTH:
            return None
        if id(schema) not in self._found:
            self._found[id(schema)] = None  # for one that leads back to itself
            self._kept.append(schema)
            self._depth += 1
            self._found[id(schema)] = self._look(schema)
            self._depth -= 1
        return self._found[id(schema)]

    @abstractmethod
    def _look(self, schema: JsonMapping) -> Json: ...


class _Properties(_Walk):
    """Finds the schema of an object's property, wherever it is declared; None where it is not."""

    def __init__(self, root: Json, name: str) -> None:
        super().__init__(root)
        self._name = name

    def _look(self, schema: JsonMapping) -> Json:
        options = [[self.of(option) for option in _list(schema.get(key))] for key in ("anyOf", "oneOf")]
        either = [{"anyOf": _known(each)} for each in options if _known(each)]
        found = _known([*self._declared(schema), *map(self.of, _parts(self._root, schema)), *either])
        return found[0] if len(found) == 1 else {"allOf": found} if found else None

    def _declared(self, schema: JsonMapping) -> list[Json]:
        properties, patterns = schema.get("properties"), schema.get("patternProperties")
        found = [properties[self._name]] if isinstance(properties, Mapping) and self._name in properties else []
        if isinstance(patterns, Mapping):
            found += [each for pattern, each in patterns.items() if _matches(str(pattern), self._name)]
        other = schema.get("additionalProperties")
        return found or ([other] if isinstance(other, Mapping) else [])


class _Types(_Walk):
    """Finds the types that a schema allows: those that all of its parts allow. The empty set for a contradiction."""

    def _look(self, schema: JsonMapping) -> frozenset[str] | None:
        said = [_listed(schema), _of_values(schema), *map(self.of, _parts(self._root, schema))]
        said += [self._any_of(schema[key]) for key in ("anyOf", "oneOf") if _list(schema.get(key))]
        return frozenset.intersection(*_known(said)) if _known(said) else _hinted(schema)

    def _any_of(self, options: Sequence[Json]) -> frozenset[str] | None:
        types = [self.of(option) for option in options]
        return frozenset.union(*types) if _known(types) == types else None


def _listed(schema: JsonMapping) -> frozenset[str] | None:
    listed = schema.get("type")
    types = {_type_named(entry) for entry in (listed if isinstance(listed, list) else [listed]) if entry is not None}
    types |= {"integer"} if "number" in types else set()
    types |= {"null"} if types and schema.get("nullable") is True else set()  # as OpenAPI has it
    return frozenset(types & _ALL_TYPES) or None


def _type_named(name: object) -> str:
    word = str(name).strip().lower()
    if word in _ALL_TYPES:
        return word
    return next((known for begins, known in _OTHER_NAMES.items() if word.startswith(begins)), word)


def _of_values(schema: JsonMapping) -> frozenset[str] | None:
    values = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    return frozenset(kind for value in values for kind in kinds_of(value)) or None


def _hinted(schema: JsonMapping) -> frozenset[str] | None:
    if (found := _NUMBER_FORMATS.get(str(schema.get("format")))) is not None:
        return found
    return next((types for key, types in _HINTS.items() if key in schema), None)


def kinds_of(value: Json) -> frozenset[str]:
    """The names by which JSON schema may call a value."""
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, str):
        return frozenset({"string"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return _NUMBERS
    if isinstance(value, float):
        return frozenset({"number"})
    return frozenset({"null" if value is None else "object" if isinstance(value, Mapping) else "array"})


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name[:_MAX_NAME_CHARS]) is not None
    except re.error:
        return False


def _known(values: Sequence[Json]) -> list[Json]:
    return [value for value in values if value is not None]


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _referred(root: Json, reference: str) -> Json:
    """What a reference within the schema, such as #/$defs/Colour, refers to; None where it leads nowhere."""
    if not reference.startswith("#"):
        return None
    found = root
    for key in unquote(reference[1:]).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
        else:
            found = found.get(key) if isinstance(found, Mapping) else None
    return found
