"""Tools and choices of the Responses API."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.server.ask import Tools
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.tools import checked_tools
from moeinf.server.responses.offered_tools import OfferedTools, Origin, free_text, offered_tools

F: dict[str, Any] = {"type": "function", "name": "f", "description": "Does", "parameters": {"type": "object"}}
G: dict[str, Any] = {"type": "custom", "name": "g", "format": {"type": "text"}}
SPACE: dict[str, Any] = {"type": "namespace", "name": "ns", "description": "More", "tools": [F, G]}
SEARCH = {"type": "web_search", "external_web_access": False}


def offered(*tools: Any, choice: Any = None, one_call: bool = False) -> OfferedTools:
    return offered_tools(tools, choice, one_call=one_call)


def names(tools: Tools) -> list[str]:
    return [tool["function"]["name"] for tool in tools.offered]


def test_every_kind_of_tool_becomes_a_function() -> None:
    found = offered(F, G, SPACE, SEARCH)
    assert names(found.tools) == ["f", "g", "ns__f", "ns__g"] == list(found.origins)
    assert found.origins["ns__g"] == Origin("g", "ns", is_custom=True)
    assert found.told == [F, G, SPACE], "a tool that was left out is not told as one that was offered"
    plain = found.tools.offered[0]["function"]
    assert plain == {"name": "f", "description": "Does", "parameters": {"type": "object"}}
    assert found.tools.offered[1]["function"]["parameters"]["required"] == ["input"]


def test_a_model_is_told_the_grammar_of_a_custom_tool() -> None:
    """As newer Codex gives its apply_patch one."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    patch = {"type": "custom", "name": "apply_patch", "description": "Patches.", "format": grammar}
    regex = {**grammar, "syntax": "regex", "definition": "a|b"}
    first, second = offered(patch, G | {"format": regex}).tools.offered
    told = first["function"]["description"]
    assert told.startswith("Patches.\n\n") and told.endswith("\n\nstart: X")
    assert second["function"]["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:a|b)$"}
    assert "description" not in second["function"]


CHOICES: list[tuple[Any, list[str], str | None]] = [
    (None, ["f", "ns__f", "ns__g"], None),
    ("auto", ["f", "ns__f", "ns__g"], None),
    ("none", [], None),
    ("required", ["f", "ns__f", "ns__g"], ""),
    ({"type": "function", "name": "f"}, ["f", "ns__f", "ns__g"], "f"),
    ({"type": "custom", "name": "g", "namespace": "ns"}, ["f", "ns__f", "ns__g"], "ns__g"),
    ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, SEARCH]}, ["f"], None),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}, ["f"], ""),
]


@pytest.mark.parametrize(("choice", "left", "forced"), CHOICES)
def test_choices(choice: Any, left: list[str], forced: str | None) -> None:
    tools = offered(F, SPACE, choice=choice, one_call=True).tools
    assert (names(tools), tools.forced, tools.one_call) == (left, forced, True)


WRONG: list[tuple[list[Any], Any, str]] = [
    ([5], None, "must be an object"),
    ([{"type": "file_search", "vector_store_ids": []}], None, "'file_search' does not run here"),
    ([{"type": "function"}], None, "must have a name"),
    ([F, F], None, "two tools are called 'f'"),
    ([SPACE | {"tools": [SPACE]}], None, "a namespace must have"),
    ([SPACE | {"tools": None}], None, "a namespace must have"),
    ([F | {"parameters": "x"}], None, "JSON schema"),
    ([G | {"format": {"type": "grammar", "syntax": "ebnf", "definition": "X"}}], None, "syntax lark or regex"),
    ([G | {"format": {"type": "grammar", "syntax": "lark"}}], None, "a definition"),
    ([G | {"format": {"type": "json"}}], None, "format is text, or a grammar"),
    ([G | {"format": "text"}], None, "format is text, or a grammar"),
    ([F], "sometimes", "'sometimes'"),
    ([F], {"type": "web_search"}, "tool_choice cannot be"),
    ([F], {"type": "function"}, "name of the tool"),
    ([F], {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]}, "'h'"),
    ([F], {"type": "allowed_tools", "mode": "any", "tools": []}, "mode of allowed_tools"),
    ([F], {"type": "allowed_tools"}, "must have tools"),
]


@pytest.mark.parametrize(("tools", "choice", "named"), WRONG)
def test_what_cannot_be_is_refused(tools: list[Any], choice: Any, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        offered(*tools, choice=choice)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a\\nb"}', "a\nb"), ('{"patch": "p"}', "p"), ('"p"', "p"), ('{"a": "b", "c": 1}',) * 2, ('{"in',) * 2],
)
def test_the_text_of_a_custom_tool(arguments: str, text: str) -> None:
    assert free_text(arguments) == text


def test_a_tool_in_the_form_of_the_other_api_is_told_its_own() -> None:
    """dspy#9943 sent one API's to the other."""
    with pytest.raises(Refusal, match=r"tools\[0\]: put name, description and parameters beside type"):
        offered({"type": "function", "function": {"name": "f", "parameters": {}}})
    with pytest.raises(Refusal, match=r"tools\[0\]: put name, description and parameters into an object `function`"):
        checked_tools([{"type": "function", "name": "f", "parameters": {}}])
