"""Schemas that nobody would write: patterns that explode, references that lead round or away, sizes beyond all bounds.

Each is JSON, as the writer of Python does not go as deep as some are.
"""

from __future__ import annotations

import json
from typing import Any, Final

_PATTERNS: Final = (
    *(
        "((((a*)*)*)*)*b",
        "\\1",
        "(a+)+b",
        "(a*)*b",
        "((a|a)*)*c",
        "^(([a-z])+.)+[A-Z]([a-z])+$",
        "(.*)*\\1",
        "(?=a)b",
        "[",
        "(",
        "a{1,100000}",
    ),
    *("(a{1,1000}){1,1000}", "^.*a.{500}$", "(?<n>a)\\k<n>", "\\p{L}+", "(x+x+)+y", "(" * 200 + "a" + ")" * 200),
    *("a|" * 5000 + "b", "[\\u0000-\\uffff]{0,10000}"),
)
_ROUND: Final = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{(i + 7) % 300}"}}} for i in range(300)}
_OBJECTS: Final[tuple[Any, ...]] = (
    *({"type": "string", "pattern": pattern} for pattern in _PATTERNS),
    *({"$ref": place} for place in ("#", "#/nope", "http://169.254.169.254/x", "file:///etc/passwd")),
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/$defs/d0", "$defs": _ROUND},
    {"enum": ["x" * 1000 + str(i) for i in range(2000)]},
    {"enum": list(range(50_000))},
    {"type": "array", "items": {"type": "string", "minLength": 10**9}},
    {"type": "array", "minItems": 20_000, "items": {"type": "array", "minItems": 20_000}},
    {"type": "string", "minLength": 10**18},
    {"type": "integer", "minimum": 10**400},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(20_000)}},
    {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"^.*a.{{{i}}}$"} for i in range(39)}},
    {"type": "object", "patternProperties": {"(a+)+b": {"type": "string"}}},
    {"oneOf": [{"type": "object", "properties": {f"k{i}": {"const": i}}} for i in range(3000)]},
    {"not": {"not": {"not": {}}}},
    {"type": ["string"] * 10_000},
    {"const": "x" * 1_000_000},
    {"type": "object", "required": [f"r{i}" for i in range(10_000)]},
    {"type": "array", "uniqueItems": True, "items": {"enum": list(range(100))}, "minItems": 90},
    {"if": {"$ref": "#"}, "then": {"$ref": "#"}},
)


def _nested(depth: int, begin: str, end: str) -> str:
    return begin * depth + '{"type": "string"}' + end * depth


BOMBS: Final = (
    *map(json.dumps, _OBJECTS),
    *(_nested(depth, '{"type": "array", "items": ', "}") for depth in (100, 1000, 5000)),
    *(_nested(depth, '{"properties": {"a": ', '}, "required": ["a"]}') for depth in (100, 1000)),
    *(_nested(depth, '{"anyOf": [{"type": "null"}, ', "]}") for depth in (16, 150)),
    *(_nested(depth, '{"allOf": [{"type": "string"}, ', "]}") for depth in (16, 300)),
)


def with_schema(model: str, schema: str) -> bytes:
    """The body of a chat that asks for this schema."""
    head = {"model": model, "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    form = f'{{"type": "json_schema", "json_schema": {{"name": "s", "schema": {schema}}}}}'
    return f'{json.dumps(head)[:-1]}, "response_format": {form}}}'.encode()
