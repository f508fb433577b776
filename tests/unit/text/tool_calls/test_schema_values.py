"""Arguments in plain text get the types that the schema of the tool asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.text.tool_calls.schema_values import ToolSchemas


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
        ({"type": "object"}, '{"b": "\\ud800"}', {"b": "\ud800"}),
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


def test_tools_and_parameters_that_nobody_described_take_text() -> None:
    tools = ToolSchemas([{"type": "function", "function": {"name": "f"}}, {"no": "function"}])
    assert tools.value("f", "a", "5") == tools.value("g", "a", "5") == "5"
    assert "f" in tools and "g" not in tools
