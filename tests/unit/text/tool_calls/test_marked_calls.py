"""Calls in JSON between marks of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from tests.support.tool_families import TOOLS

ASKS = "Calls are <tool_calls>[{...}]</tool_calls>."  # as Hunyuan A13B's template says


def read(answer: str, *, cut: bool = False, asks: str = ASKS) -> tuple[str, list[tuple[str, Any]]]:
    syntax = find_syntax(asks)
    assert syntax is not None
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS))
    pieces = [*(piece for char in answer for piece in splitter.push(char)), *splitter.flush(cut=cut)]
    calls = [piece.call for piece in pieces if piece.call]
    names = {call.index: call.name for call in calls if call.name is not None}
    told = {at: "".join(call.arguments for call in calls if call.index == at) for at in names}
    return "".join(piece.text for piece in pieces), [(str(names[at]), json.loads(told[at])) for at in names]


def test_a_list_is_read() -> None:
    two = '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}]'
    assert read(f"So:\n<tool_calls>{two}</tool_calls>") == ("So:", [("f", {"a": 1}), ("g", {})])


@pytest.mark.parametrize("text", ["<tool_calls>none</tool_calls>", "<tool_calls>[]</tool_calls>", "<tool_calls>"])
def test_what_is_no_list_of_calls_is_text(text: str) -> None:
    assert read(text) == (text, [])


def test_what_is_cut_leaves_no_marks() -> None:
    assert read('So: <tool_calls>[{"na', cut=True)[0].strip() == "So:"


HORIZON = (
    "<ifm|tool_calls>\n<ifm|tool_call>$NAME\n<ifm|arg_key>$KEY</ifm|arg_key>\n<ifm|arg_value>$VALUE</ifm|arg_value>"
)


@pytest.mark.parametrize("cut", [False, True])
def test_calls_of_k2_horizon_are_read(cut: bool) -> None:
    """In the form that its template asks for: plain text, and JSON for what is none."""
    members = {"city": "Rome, <arg_key>", "days": "3"}
    told = "\n".join(f"<ifm|arg_key>{k}</ifm|arg_key>\n<ifm|arg_value>{v}</ifm|arg_value>" for k, v in members.items())
    call = f"<ifm|tool_call>get_weather\n{told}\n</ifm|tool_call>"
    note = (
        "\n<ifm|tool_call>note\n<ifm|arg_key>tags</ifm|arg_key>\n<ifm|arg_value>[1]</ifm|arg_value>\n</ifm|tool_call>"
    )
    answer = f"So:\n<ifm|tool_calls>\n{call}{note}" + ("" if cut else "\n</ifm|tool_calls>")
    calls = [("get_weather", {"city": "Rome, <arg_key>", "days": 3}), ("note", {"tags": [1]})]
    assert read(answer, cut=cut, asks=HORIZON) == ("So:", calls)
