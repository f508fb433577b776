"""What stands around the arguments of a call is what the model's syntax reads as one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeinf.sampling.constraint import FramedJson, held_to
from moeinf.text.tokenizer import Tokenizer
from moeinf.text.tool_calls.choice import find_syntax
from tests.support.tool_families import CHAT, FAMILIES, TOOLS, Family

ARGUMENTS = '{"city": "Rome", "days": 3}'
_PLAIN = ("qwen3-coder", "glm", "kimi-k3", "dsml-v4.1")  # whose arguments are no JSON
FRAMED = [family for family in FAMILIES if family.name not in _PLAIN]


@pytest.mark.parametrize("family", FRAMED, ids=lambda family: family.name)
def test_a_call_that_was_forced_is_read_as_one(family: Family, tmp_path: Path) -> None:
    syntax = find_syntax(family.template)
    assert syntax is not None and syntax.frame is not None
    prefix, suffix = syntax.frame("get_weather", family.template)
    form = FramedJson(TOOLS[0]["function"]["parameters"], prefix, suffix)
    with Tokenizer(family.write(tmp_path)) as tokenizer:
        prompt = tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": TOOLS})[0])
        stream = tokenizer.stream(prompt, chat=True, tools=TOOLS)
        constraint = held_to(stream, [form], tokenizer.num_ids)
        thought = "Hm.</think>" if family.name == "deepseek-r1" else ""  # whose prompt has opened it
        pieces = []
        for token in tokenizer.encode(f"{thought}{prefix}{ARGUMENTS}{suffix}", control_tokens=True, added=False):
            assert not constraint.complete and token in constraint.allowed()
            constraint.accept(token)
            if token not in tokenizer.eos_ids:
                pieces += stream.step(token)
        assert constraint.complete or set(constraint.allowed()) <= tokenizer.eos_ids
        pieces += stream.flush()
    calls = [piece.call for piece in pieces if piece.call is not None]
    assert [call.name for call in calls if call.name is not None] == ["get_weather"]
    assert json.loads("".join(call.arguments for call in calls)) == json.loads(ARGUMENTS)
    assert "".join(piece.text for piece in pieces if not piece.thought) == ""


def test_calls_whose_arguments_are_no_json_have_no_frame() -> None:
    for family in FAMILIES:
        syntax = find_syntax(family.template)
        assert syntax is not None and (syntax.frame is None) == (family not in FRAMED)
