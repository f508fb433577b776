"""Arguments in plain text get the types that the schema of the tool asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.text.tool_calls.schema_values import NO_TEXT, ToolSchemas


def value_of(schema: Any, text: str, **more: Any) -> Any:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": schema}, **more}}}
    tools = ToolSchemas([tool])
    value = tools.value("f", "a", text)
    assert json.loads("{" + tools.member("f", "a", text) + "}") == {"a": value}
    return value


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, '{"name": "package.json"}', '{"name": "package.json"}'),
        ({"type": "string"}, "null", "null"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "None", None),
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, "5.0", 5.0),
        ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "integer"}, "five", "five"),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "array", "items": {}}, '["a"]', ["a"]),
        ({"type": "boolean"}, "TRUE", True),
        ({"type": "float"}, "3.14", 3.14),
        ({"type": "Integer"}, "3", 3),
        ({"type": "int64"}, "3", 3),
        ({"type": "bool"}, "true", True),
        ({"type": "dict[str, int]"}, '{"a": 1}', {"a": 1}),
        ({"type": "list"}, "[1]", [1]),
        ({"type": "varchar"}, "3", "3"),
        ({"type": "any"}, "3", "3"),
        ({"type": ["integer", "null"]}, "NULL", None),
        ({"type": "number"}, "1.", 1.0),
        ({"type": "integer"}, '"5"', 5),
        ({"type": "boolean"}, '"true"', True),
        ({"type": "integer"}, '"five"', '"five"'),
        ({"type": "string"}, '"5"', '"5"'),
        ({"type": ["string", "null"]}, '"null"', '"null"'),
        ({"type": "number"}, "+5", 5),
        ({"type": "integer"}, "1" * 5000, "1" * 5000),
        ({"type": "array"}, "['a', True, None]", ["a", True, None]),
        ({"type": "array"}, "('a', 1)", ["a", 1]),
        ({"type": "array"}, "['a', float]", ["a", "float"]),
        ({"type": "array"}, "[a b]", "[a b]"),
        ({"type": "object"}, "{'a': {'b': \"it's\"}, 1: 'x\\x41'}", {"a": {"b": "it's"}, "1": "xA"}),
        ({"type": "object"}, "{'a': 1e999}", {"a": "1e999"}),
        ({"type": "object"}, "{\"a\": true, 'b': True,}", {"a": True, "b": True}),
        ({"type": "object"}, '{"b": "half"}', {"b": "half"}),
        ({"type": "string"}, "TRUE", "TRUE"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": "integer", "nullable": True}, "7", 7),
        ({"nullable": True}, "null", "null"),
        ({"type": "string", "anyOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
        ({"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]}, "5", 5),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "5", "5"),
        ({"anyOf": [{"type": "integer"}, {}]}, "5", "5"),
        ({"oneOf": [{"type": "integer"}, {"const": True}]}, "true", True),
        ({"minimum": 0}, "5", 5),
        ({"multipleOf": 2}, "5.5", 5.5),
        ({"items": {}}, "[1]", [1]),
        ({"format": "date"}, "5", "5"),
        ({"format": "int64"}, "5", 5),
        ({"properties": {}}, "{'a': 1}", {"a": 1}),
        ({"pattern": "x"}, "[5]", "[5]"),
        ({"type": ["string", "array"]}, '["a"]', ["a"]),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"enum": [1, 2]}, "1", 1),
        ({"const": True}, "true", True),
        ({"allOf": [{"type": "integer"}]}, "1", 1),
        ({}, "5", "5"),
        ({}, "[5]", [5]),
        (True, "5", "5"),
        ({"$ref": "#/$defs/Missing"}, "5", "5"),
    ],
)
def test_the_schema_decides(schema: Any, text: str, value: Any) -> None:
    found = value_of(schema, text)
    assert found == value and type(found) is type(value)


def test_references_within_a_schema_are_followed_and_circles_end() -> None:
    assert value_of({"$ref": "#/$defs/Count"}, "5", **{"$defs": {"Count": {"type": "integer"}}}) == 5
    assert value_of({"$ref": "#/$defs/Loop"}, "5", **{"$defs": {"Loop": {"$ref": "#/$defs/Loop"}}}) == "5"


INTEGER = {"type": "integer"}
DECLARED: list[dict[str, Any]] = [
    {"properties": {"k": INTEGER}},
    {"$ref": "#/definitions/A", "definitions": {"A": {"properties": {"k": INTEGER}}}},
    {
        "$ref": "#/definitions/A%20b",
        "definitions": {"A b": {"$ref": "#/definitions/B"}, "B": {"properties": {"k": INTEGER}}},
    },
    {"$ref": "#/oneOf/1", "oneOf": [{}, {"properties": {"k": INTEGER}}]},
    {"allOf": [{"$ref": "#/$defs/B"}, {"properties": {"z": {}}}], "$defs": {"B": {"properties": {"k": INTEGER}}}},
    {"anyOf": [{"properties": {"k": INTEGER}}, {"properties": {"z": {"type": "string"}}}]},
    {"oneOf": [{"properties": {"k": INTEGER}}, {"allOf": [{"properties": {"k": {"type": "boolean"}}}]}]},
    {"additionalProperties": INTEGER},
    {"properties": {"z": {"type": "string"}}, "additionalProperties": {"$ref": "#/$defs/I"}, "$defs": {"I": INTEGER}},
    {"patternProperties": {"(": {"type": "string"}, "^k": INTEGER}, "additionalProperties": {"type": "string"}},
    {"properties": {"k": {"type": ["integer", "string"]}}, "patternProperties": {"k": INTEGER}},
    {"anyOf": [{"$ref": "#"}, {"properties": {"k": INTEGER}}]},
]


@pytest.mark.parametrize("root", DECLARED)
def test_a_parameter_has_its_type_wherever_the_schema_declares_it(root: dict[str, Any]) -> None:
    tools = ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": root}}])
    assert tools.value("f", "k", "7") == 7
    tools = ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"k": root}}}}])
    assert tools.value("f", "k", "7") == "7"


def test_a_schema_of_circles_and_branches_is_looked_at_once() -> None:
    branches = [{"$ref": f"#/$defs/{i}"} for i in range(20)]
    root = {"anyOf": branches, "$defs": {str(i): {"allOf": branches, "anyOf": branches} for i in range(20)}}
    tools = ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": root}}])
    assert tools.value("f", "k", "7") == "7"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("true", True),
        ("None", None),
        ("[5]", [5]),
        ("['a']", ["a"]),
        ("TRUE", "TRUE"),
        ("a", "a"),
        ('"a"', '"a"'),
    ],
)
def test_what_has_no_type_is_read_by_the_rule_of_its_syntax(text: str, value: Any) -> None:
    tools = ToolSchemas([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {}}}}}])
    for parameter in ("a", "unknown"):
        assert tools.value("f", parameter, text, NO_TEXT) == value
        assert tools.value("f", parameter, text) == (value if isinstance(value, list) else text)


@pytest.mark.parametrize("text", ['{"b": "\\ud83d"}', "{'b': '\\ud83d'}", '{"b": "\\ude00"}'])
def test_half_a_surrogate_pair_is_no_part_of_a_value(text: str) -> None:
    tools = ToolSchemas(
        [{"type": "function", "function": {"name": "f", "parameters": {"additionalProperties": {"type": "object"}}}}]
    )
    assert tools.member("f", "a", text) == '"a": {"b": "\ufffd"}'


def test_tools_and_parameters_that_nobody_described_take_text() -> None:
    tools = ToolSchemas([{"type": "function", "function": {"name": "f"}}, {"no": "function"}])
    assert tools.value("f", "a", "5") == tools.value("g", "a", "5") == "5"
    assert "f" in tools and "g" not in tools
