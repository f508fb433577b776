"""Tools that come and go within a conversation of Anthropic's API."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moeinf.server.anthropic.requests import Prompted, prompt_of
from moeinf.server.http_errors import Refusal

USER = {"role": "user", "content": "hi"}


def tool(name: str) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, "defer_loading": name == "late"}


def change(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "tool": {"type": "tool_reference", "name": name}}


def asked(*messages: dict[str, Any]) -> tuple[list[str], list[Any]]:
    """The tools that are told of, and the messages."""
    tools = [tool("early"), tool("late")]
    ask = prompt_of(msgspec.convert({"model": "m", "messages": list(messages), "tools": tools}, Prompted))
    assert isinstance(ask.prompt, list)
    return [each["function"]["name"] for each in ask.tools.offered], ask.prompt


DEFINED = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("new")}}


@pytest.mark.parametrize("role", ["system", "user"])
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([change("tool_addition", "late")], ["early", "late"]),
        ([change("tool_removal", "early")], ["late"]),
        ([change("tool_removal", "early"), change("tool_addition", "early")], ["early", "late"]),
        ([DEFINED], ["early", "late", "new"]),
        ([DEFINED, change("tool_removal", "new")], ["early", "late"]),
        ([DEFINED, change("tool_removal", "new"), change("tool_addition", "new")], ["early", "late", "new"]),
    ],
)
def test_the_tools_are_those_at_the_end_of_the_chat(role: str, changes: list[dict[str, Any]], names: list[str]) -> None:
    assert asked(USER, {"role": role, "content": changes}) == (names, [USER])
    behind = {"role": role, "content": [*changes[:1], {"type": "text", "text": "Go on."}, *changes[1:]]}
    assert asked(USER, behind) == (names, [USER, {"role": role, "content": "Go on."}])


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (change("tool_addition", "nobody"), "'nobody'"),
        ({"type": "tool_removal"}, "None"),
        ({"type": "tool_addition", "tool": {"type": "mcp_tool_reference", "name": "x"}}, "'mcp_tool_reference'"),
        ({"type": "tool_addition", "tool": {"type": "tool_definition"}}, "'tool_definition'"),
    ],
)
def test_a_change_of_no_tool_is_refused(block: dict[str, Any], named: str) -> None:
    with pytest.raises(Refusal, match=rf"messages\[1\].*{named}"):
        asked(USER, {"role": "user", "content": [block]})


def test_a_tool_that_was_found_is_told_by_its_name() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "early", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "late"}, {"type": "text", "text": "one found"}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": found}
    messages = asked(USER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]})[1]
    assert messages[-1] == {"role": "tool", "tool_call_id": "t1", "content": "late\none found"}


def test_a_chat_of_changes_alone_is_refused() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    asked = msgspec.convert(
        {
            "model": "m",
            "tools": [{"name": "f", "input_schema": {}}],
            "messages": [{"role": "user", "content": [change]}],
        },
        Prompted,
    )
    with pytest.raises(Refusal, match="nothing that a model reads"):
        prompt_of(asked)


@pytest.mark.parametrize("name", ["nobody", None, ["late"], {"late": 1}])
def test_a_change_of_what_is_no_name_is_refused(name: Any) -> None:
    with pytest.raises(Refusal, match="none of the tools"):
        asked(USER, {"role": "system", "content": [change("tool_addition", name)]})
