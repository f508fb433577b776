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


def read(answer: str, *, cut: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    syntax = find_syntax(ASKS)
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
