"""Calls as Python writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntaxes.python_calls import LFM2, LLAMA4
from tests.support.tool_families import TOOLS


def read(text: str, syntax: Any = LFM2, *, cut: bool = False) -> tuple[str, list[tuple[str, Any]]]:
    splitter = CallSplitter(syntax, ToolSchemas(TOOLS))
    pieces = [*splitter.push(text), *splitter.flush(cut=cut)]
    calls = [piece.call for piece in pieces if piece.call]
    names = {call.index: call.name for call in calls if call.name is not None}
    told = {at: "".join(call.arguments for call in calls if call.index == at) for at in names}
    return "".join(piece.text for piece in pieces), [(str(names[at]), json.loads(told[at])) for at in names]


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        ("[f(a=1, b='x')]", [("f", {"a": 1, "b": "x"})]),
        ("f(a=-1.5)", [("f", {"a": -1.5})]),
        ("[f(), g.h(x=True, y=None, z=false)]", [("f", {}), ("g.h", {"x": True, "y": None, "z": False})]),
        ('[f(a={"k": [1, (2,)]}, b="<|tool_call_end|>")]', [("f", {"a": {"k": [1, [2]]}, "b": "<|tool_call_end|>"})]),
        ('[{"name": "f", "arguments": {"a": 1}}]', [("f", {"a": 1})]),
    ],
)
def test_literals_become_json(written: str, calls: list[Any]) -> None:
    assert read(f"So:<|tool_call_start|>{written}<|tool_call_end|>") == ("So:", calls)


@pytest.mark.parametrize(
    "written", ["[f(1)]", "[f(**x)]", "[f(a=g())]", "[f(a=b)]", "[1]", "[]", "f", "[f(a=1]", "x = 1"]
)
def test_anything_else_is_text(written: str) -> None:
    text = f"<|tool_call_start|>{written}<|tool_call_end|>"
    assert read(text) == (text, [])


def test_the_last_mark_may_lack_where_the_model_has_ended_the_answer() -> None:
    assert read("<|tool_call_start|>[f(a=1)]") == ("", [("f", {"a": 1})])
    assert read("<|tool_call_start|>[f(a=1)]", cut=True) == ("", [])


def test_llama_writes_the_same_between_marks_of_its_own() -> None:
    assert read("<|python_start|>[f(a=1)]<|python_end|>", LLAMA4) == ("", [("f", {"a": 1})])
    assert read('<|python_start|>{"name": "f", "parameters": {"a": 1}}<|python_end|>', LLAMA4) == (
        "",
        [("f", {"a": 1})],
    )
