"""Tools as Kimi K2.5 reads them, held to what its own tokenizer wrote."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.text.templates.chats import ChatTemplates
from moeinf.text.tool_calls.told.typescript_tools import as_typescript, sorted_deep
from tests.support.true_configs import PUBLISHED

WEATHER = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["C", "F"], "default": "C"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7, "description": "How many"},
        "place": {"$ref": "#/$defs/Place"},
        "tags": {"type": "array", "items": {"type": "string", "description": "A word"}, "maxItems": 3},
        "rows": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        "more": {"type": "object", "additionalProperties": {"type": ["string", "null"]}},
        "any": {},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
    "$defs": {
        "Place": {
            "type": "object",
            "description": "Where",
            "properties": {"city": {"type": "string"}, "near": {"$ref": "#/$defs/Place"}},
            "required": ["city"],
        }
    },
}
WALK = {"type": "object", "properties": {"next": {"$ref": "#"}, "done": {"type": "boolean", "default": False}}}
TOLD = """# Tools

## functions
namespace functions {
// Where
interface Place {
  city: string,
  near?: Place
}
// The weather
// of days
type weather = (_: {
  // How many
  // maximum: 7, minimum: 1
  days: number,
  place: Place,
  any?: any,
  more?: {
    [k: string]: string | null
  },
  rows?: Array<number | null>,
  // maxItems: 3
  tags?: Array<
    // A word
    string
  >,
  // Default: "C"
  unit?: "C" | "F",
  [k: string]: never
}) => any;
type now = (_: {}) => any;
interface parameters {
  // Default: False
  done?: boolean,
  next?: parameters
}
type walk = (_: parameters) => any;
}
"""


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    own = {} if parameters is None else {"parameters": parameters}
    return {"type": "function", "function": {"name": name, **more, **own}}


TOOLS = [tool("weather", WEATHER, description="The weather\nof days"), tool("now"), tool("walk", WALK)]


def test_tools_are_told_as_kimis_tokenizer_tells_them() -> None:
    assert as_typescript(sorted_deep(TOOLS)) == TOLD
    source = (PUBLISHED / "kimi-k2.5" / "chat_template.jinja").read_text(encoding="utf-8")
    templates = ChatTemplates(source, source, {}, [])
    chat = [{"role": "user", "content": "q"}]
    assert f"<|im_system|>tool_declare<|im_middle|>{TOLD}<|im_end|>" in templates.render(chat, {"tools": TOOLS})[0]
    assert ">mine<" in templates.render(chat, {"tools": TOOLS, "tools_ts_str": "mine"})[0]
    assert "tool_declare" not in templates.render(chat, {})[0]


@pytest.mark.parametrize(
    "schema",
    [
        {"title": "no type"},
        {"$ref": "#/$defs/Missing"},
        {"$ref": "#/definitions/Place"},
        {"enum": ["a", 1], "type": "string"},
        {"type": ["weird"]},
        {"type": 3},
        {"type": "string", "description": 3},
        [],
    ],
)
def test_what_has_no_form_is_left_to_the_template(schema: Any) -> None:
    tools = [tool("now"), tool("f", {"type": "object", "properties": {"a": schema}})]
    assert as_typescript(tools) is None
    source = (PUBLISHED / "kimi-k2.5" / "chat_template.jinja").read_text(encoding="utf-8")
    text, _ = ChatTemplates(source, source, {}, []).render([{"role": "user", "content": "q"}], {"tools": tools})
    assert '<|im_middle|>[{"function":{"name":"now"},"type":"function"}' in text


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2-thinking"])
def test_members_of_tools_are_sorted_for_kimi(name: str) -> None:
    source = (PUBLISHED / name / "chat_template.jinja").read_text(encoding="utf-8")
    tools = [tool("f", {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "string"}}})]
    text, _ = ChatTemplates(source, source, {}, []).render([{"role": "user", "content": "q"}], {"tools": tools})
    members = '{"a": {"type": "string"}, "b": {"type": "string"}}'
    own = f'{{"name": "f", "parameters": {{"properties": {members}, "type": "object"}}}}'
    assert f'[{{"function": {own}, "type": "function"}}]' in text
