"""Calls that are demanded are calls for the reader, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeinf.text.tokenizer import Tokenizer
from moeinf.text.tool_calls.frames import framed_calls
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.deepseek import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.granite import GRANITE
from moeinf.text.tool_calls.syntaxes.harmony import HARMONY
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from tests.support.text_models import byte_level_tokenizer

TEMPLATE = "{% for tool in tools or [] %}{{ tool }}{% endfor %}{{ messages }}"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


@pytest.mark.parametrize(
    ("syntax", "prompt", "marks"),
    [
        (HERMES, "hi", ["<tool_call>", "</tool_call>"]),
        (GRANITE, "hi", ["<|tool_call|>"]),
        (HARMONY, "<|start|>assistant", ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>"]),
    ],
    ids=["hermes", "granite", "harmony"],
)
def test_what_stands_in_a_frame_is_read_as_a_call(
    model_folder: Callable[..., Path], syntax: Syntax, prompt: str, marks: list[str]
) -> None:
    tools = [tool("other"), tool("look_up", parameters=SCHEMA)]
    form = framed_calls(syntax, tools)[1]
    folder = model_folder(TEMPLATE + syntax.known_by[0], byte_level_tokenizer(["<s>", "</s>", *marks]))
    with Tokenizer(folder) as tokenizer:
        ids = tokenizer.encode(prompt, control_tokens=True, bos=False)
        stream = tokenizer.stream(ids, chat=True, tools=tools)
        answer = form["prefix"] + '{"a": 1}' + form["suffix"]
        answer_ids = tokenizer.encode(answer, control_tokens=True, bos=False)
        pieces = [piece for token in answer_ids for piece in stream.step(token)]
        calls = [piece.call for piece in [*pieces, *stream.flush()] if piece.call is not None]
        assert [call.name for call in calls if call.name is not None] == ["look_up"]
        assert "".join(call.arguments for call in calls) == '{"a": 1}'
        assert not any(piece.text for piece in pieces)


@pytest.mark.parametrize("said", [{}, {"parameters": None}, {"parameters": {}}])
def test_arguments_are_an_object_whatever_the_tool_says(said: dict[str, Any]) -> None:
    [form] = framed_calls(HERMES, [tool("x", **said)])
    assert form["schema"] == '{"type": "object"}'


def test_there_are_no_frames_for_other_syntaxes_and_for_too_many_schemas() -> None:
    assert framed_calls(DEEPSEEK, [tool("x")]) == []
    assert framed_calls(HERMES, [tool("x", parameters={"description": "x" * 70_000})]) == []
