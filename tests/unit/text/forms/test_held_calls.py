"""Where moeinf tells a model of its tools, the answer is free until it begins a call, which is sound JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from moeinf.sampling.constraint import calls_held
from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import byte_level_tokenizer, write_text_model

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
THINKS = PLAIN + "</think>"
KNOWS_TOOLS = PLAIN + "{% if tools %}<tool_call>{{ tools }}{% endif %}"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("look", {**CITY, "additionalProperties": False}), tool("end", None)]
LOOK = '<tool_call>\n{"name": "look", "arguments": {"city": "Oslo"}}\n</tool_call>'
END = '<tool_call>\n{"name": "end", "arguments": {"any": [1]}}\n</tool_call>'
OPEN = LOOK[: -len("}\n</tool_call>")]


def library(kind: str) -> Library:
    made = byte_level_tokenizer(["<s>", "</s>", "<|im_end|>"])
    if kind == "tokens":
        made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in ("<tool_call>", "</tool_call>")])
    return made


def taken(folder: Path, answer: str, tools: Sequence[Any] = TOOLS, template: str = PLAIN, kind: str = "letters") -> str:
    """What of an answer is allowed, and `.` where it may end there."""
    with Tokenizer(write_text_model(folder, template, library(kind))) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode("hi", bos=False), chat=True, tools=tools)
        constraint = calls_held(stream, tokenizer.num_ids)
        assert constraint is not None
        found = list[int]()
        for token in tokenizer.encode(answer, control_tokens=True, bos=False):
            if token not in constraint.allowed():
                break
            constraint.accept(token)
            found.append(token)
        ends = tokenizer.eos_ids & set(constraint.allowed().tolist())
        return tokenizer.decode(found, skip_special=False) + ("." if ends else "")


@pytest.mark.parametrize("kind", ["letters", "tokens"])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Hello, a < b <tool", "Hello, a < b <tool."),
        (LOOK, LOOK + "."),
        ("I look.\n" + LOOK + "\n" + END + " Done", "I look.\n" + LOOK + "\n" + END + " Done."),
        ('<tool_call>\n{"name": "seek"', '<tool_call>\n{"name": "'),
        ("<tool_call>look", "<tool_call>"),
        ('<tool_call>\n{"name": "look", "arguments": {}}', '<tool_call>\n{"name": "look", "arguments": {'),
        (OPEN + "</tool_call>", OPEN),
    ],
)
def test_text_is_free_and_calls_are_of_their_schemas(tmp_path: Path, kind: str, answer: str, expected: str) -> None:
    assert taken(tmp_path, answer, kind=kind) == expected


def test_letters_of_the_mark_within_a_call_begin_none(tmp_path: Path) -> None:
    answer = LOOK.replace("Oslo", "<tool_call>")
    assert taken(tmp_path, answer) == answer + "."


def test_thoughts_before_are_free(tmp_path: Path) -> None:
    answer = "<think>A <tool_call> here?</think>\n" + LOOK
    assert taken(tmp_path, answer, template=THINKS) == answer + "."


def test_a_schema_that_cannot_be_held_allows_any_object(tmp_path: Path) -> None:
    odd = tool("odd", {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 999_999_937}}})
    call = '<tool_call>\n{"name": "odd", "arguments": {"a": 5}}\n</tool_call>'
    assert taken(tmp_path, call, [odd, *TOOLS]) == call + "."


@pytest.mark.parametrize(
    ("template", "tools"),
    [
        (KNOWS_TOOLS, TOOLS),
        (PLAIN, []),
        (PLAIN, [tool("no name of a function", CITY)]),
        (PLAIN, [tool(f"f{i}", CITY) for i in range(129)]),
    ],
    ids=["a template with tools", "no tools", "an odd name", "too many"],
)
def test_what_is_not_held(tmp_path: Path, template: str, tools: list[Any]) -> None:
    with Tokenizer(write_text_model(tmp_path, template, library("letters"))) as tokenizer:
        stream = tokenizer.stream(tokenizer.encode("hi", bos=False), chat=True, tools=tools)
        assert calls_held(stream, tokenizer.num_ids) is None
