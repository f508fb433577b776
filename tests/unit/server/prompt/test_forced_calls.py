"""What an answer is held to that must be a call of a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf.engine.stored.facts import StoredFacts
from moeinf.sampling.constraint import FramedJson
from moeinf.server.http_errors import Refusal
from moeinf.server.prompt.forced_calls import forced_calls
from moeinf.store.library import StoredModel
from tests.support.tool_families import BY_NAME, TOOLS


def facts(folder: Path, family: str) -> StoredFacts:
    return StoredFacts(StoredModel("m", "0" * 12, BY_NAME[family].write(folder)))


def test_the_arguments_are_held_to_the_schema_of_each_tool(tmp_path: Path) -> None:
    model = facts(tmp_path, "kimi")
    begins = "<|tool_calls_section_begin|><|tool_call_begin|>functions."
    weather, note = (FramedJson(tool["function"]["parameters"], f"{begins}{tool['function']['name']}"
        ":0<|tool_call_argument_begin|>", "<|tool_call_end|><|tool_calls_section_end|>") for tool in TOOLS)  # fmt: skip
    assert forced_calls(model, TOOLS, None) == [weather, note]
    assert forced_calls(model, TOOLS, "note") == [note]
    bare = {"type": "function", "function": {"name": "f", "parameters": None}}
    assert [form.schema for form in forced_calls(model, [bare], None)] == [{"type": "object"}]  # type: ignore[union-attr]


def test_where_arguments_are_no_json_only_some_call_can_be_had(tmp_path: Path) -> None:
    model = facts(tmp_path, "glm")
    assert forced_calls(model, TOOLS, None) == "call"
    with pytest.raises(Refusal, match="cannot be held to one tool"):
        forced_calls(model, TOOLS, "note")
