"""An answer that is as a whole JSON objects which name tools is calls of them, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.open_stream import open_stream
from moeinf.text.tool_calls.schemas import Schema
from tests.support.text_models import byte_level_tokenizer
from tests.support.tool_families import BY_NAME, TOOLS

TOKENIZER = byte_level_tokenizer()
OTHER = '{"name": "get_weather", "arguments": {"city": "Oslo"}}'
CALL = '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}'


def told(answer: str, size: int, *, cut: bool = False, json_calls: bool = True) -> tuple[list[str], list[Any]]:
    """The pieces of text, and the calls. size: of the pieces that come, in tokens; 0: all at once."""
    stream = open_stream(
        TOKENIZER,
        TOKENIZER.encode("<|im_start|>assistant\n").ids,
        skip_special=True,
        tags=("<think>", "</think>"),
        syntax=find_syntax(BY_NAME["qwen3"].template),
        tools=TOOLS,
        json_calls=json_calls,
    )
    ids = TOKENIZER.encode(answer).ids
    parts = [ids[at : at + size] for at in range(0, len(ids), size)] if size else [ids]
    pieces = [*(piece for part in parts for piece in stream.step(part)), *stream.flush(cut=cut)]
    names, arguments = list[str](), list[str]()
    for call in (piece.call for piece in pieces if piece.call):
        if call.name is not None:
            assert call.index == len(names)
            names.append(call.name)
            arguments.append("")
        arguments[call.index] += call.arguments
    texts = [piece.text for piece in pieces if piece.text and not piece.thought]
    return texts, [(name, json.loads(given)) for name, given in zip(names, arguments, strict=True)]


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "answer",
    [
        CALL,
        f"\n {CALL}\n",
        f"```json\n{CALL}\n```",
        f"```\n{CALL}\n```\n",
        f"``` JSON\n{CALL}```",
        CALL.replace("arguments", "parameters"),
        '{"arguments": {"city": "Rome", "days": 3}, "name": "get_weather"}',
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome", "days": 3}}',
        '{"name": "get_weather", "arguments": {"city": "Rome", "days": 3,}}',
        f"<think>\nit rains</think>\n\n{CALL}",
        f"<tools>\n{CALL}\n</tools>",
        f"<function_call> {CALL}",
        f"```xml\n<tools>\n{CALL}\n</tools>\n```",
        f"<json>```json\n{CALL}\n```</json>",
        f'{{"type": "function", "function": {CALL}}}',
        f'{{"id": "1", "type": "function", "function": {CALL.replace("arguments", "parameters")}}}',
        '{"name": "get_weather", "arguments": "{\\"city\\": \\"Rome\\", \\"days\\": 3}"}',
    ],
)
def test_such_an_answer_is_a_call(answer: str, size: int) -> None:
    assert told(answer, size) == ([], [("get_weather", {"city": "Rome", "days": 3})])


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "answer",
    [
        f"{CALL}\n{OTHER}",
        f"```json\n{CALL}\n\n{OTHER}\n```",
        f"[{CALL}, {OTHER}]",
        f"```\n[\n{CALL},\n{OTHER}]\n```",
        f"```json\n{CALL}\n```\n\n```json\n{OTHER}\n```\n",
        f"<tools>\n{CALL}\n</tools>\n<tools>\n{OTHER}\n</tools>",
        f'<tools>\n{{"type": "function", "function": {CALL}}}\n{{"type": "function", "function": {OTHER}}}\n</tools>',
        f"{CALL}\n{OTHER.replace('}}', ',}}')}",
    ],
)
def test_several_are_as_many_calls(answer: str, size: int) -> None:
    assert told(answer, size) == ([], [("get_weather", {"city": "Rome", "days": 3}), ("get_weather", {"city": "Oslo"})])


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize(
    "answer",
    [
        f"Sure: {CALL}",
        f"{CALL} is the call",
        f"```json\n{CALL}\n``` calls it",
        f"{CALL}\n{CALL} twice",
        f'{CALL}\n{{"name": "Ada", "age": 36}}',
        f"[{CALL}, 3]",
        f"{CALL}, {CALL}",
        f'{CALL}\n{{"name": "get_weather", "arguments": {{"city": "Rome", "days": NaN}}}}',
        "[]",
        f"<tools>{CALL}</tools> calls it",
        f"<p>Sure:</p> {CALL}",
        "<tools></tools>",
        f'{{"name": "get_weather", "function": {CALL}}}',
        '{"type": "function", "function": "get_weather"}',
        '{"name": "get_weather", "arguments": "city"}',
        f"```python\n{CALL}\n```",
        '{"name": "Ada", "age": 36}',
        '{"name": "get_weather"}',
        '{"name": "get_weather", "arguments": "Rome"}',
        '{"name": "get_weather", "arguments": {"days": 3}}',
        '{"name": "get_weather", "arguments": {"city": "Rome", "days": "three"}}',
        '{"name": "get_weather", "arguments": {"city": "Rome"}, "reason": "asked"}',
        '{"city": "Rome"}',
        "{}",
        "{" + " " * 100 + "}",
        "```",
        "{",
        "",
        "A sentence.",
    ],
)
def test_any_other_answer_is_text(answer: str, size: int) -> None:
    texts, calls = told(answer, size)
    assert ("".join(texts), calls) == (answer.rstrip() if not answer.strip() else answer, [])


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_call_of_no_tool_behind_one_of_a_tool_is_for_the_client_to_refuse(size: int) -> None:
    said = '{"name": "say", "arguments": {"message": "It is done."}}'
    texts, calls = told(f"{OTHER}\n{said}", size)
    assert (texts, calls) == ([], [("get_weather", {"city": "Oslo"}), ("say", {"message": "It is done."})])
    texts, calls = told(f"{said}\n{OTHER}", size)
    assert ("".join(texts), calls) == (f"{said}\n{OTHER}", [])


def test_text_is_held_back_only_while_it_may_be_a_call() -> None:
    assert told('{"name": "Ada", "age": 36}', 1)[0][0] == '{"name": "Ada', "no tool has that name"
    assert len(told("Sure, here it is.", 1)[0]) > 5
    assert told(f"{CALL} is the call", 1)[0][0].startswith(CALL)
    assert len(told('{"city": "Rome"}', 1)[0]) > 3
    assert len(told("<p>Sure, <b>here</b> it is.</p>", 1)[0]) > 3
    assert told(f"{CALL}</b>" + " <p>" * 100, 1)[0][0].startswith(CALL)
    assert len(told("[Rome](https://rome.example)", 1)[0]) > 5


def test_what_is_cut_or_switched_off_is_text() -> None:
    assert told(CALL, 1, cut=True) == ([CALL], [])
    texts, calls = told(CALL, 1, json_calls=False)
    assert "".join(texts) == CALL and not calls and len(texts) > 5


def test_a_call_in_the_models_own_form_stays_one() -> None:
    answer = f"<tool_call>{CALL}</tool_call>"
    assert told(answer, 1) == ([], [("get_weather", {"city": "Rome", "days": 3})])


def test_arguments_fit_a_schema_by_types_members_and_values() -> None:
    schema = {
        "type": "object",
        "properties": {
            "unit": {"enum": ["C", "F"]},
            "place": {"$ref": "#/$defs/place"},
            "days": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    }
    fits = Schema(schema).fits
    place = {"city": "Rome"}
    assert fits({"place": place}) and fits({"place": place, "unit": "C", "days": [1, 2]})
    assert not fits({}) and not fits({"place": {}}) and not fits({"place": {"city": 1}})
    assert not fits({"place": place, "unit": "K"}) and not fits({"place": place, "days": ["1"]})
    assert fits({"place": place, "other": 1}), "which a client tells the model"
    assert not fits([])
    assert Schema(None).fits({"any": 1}) and Schema({"type": "object"}).fits({"any": 1})
