"""Items of the Responses API as the messages that chat templates read."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.server.http_errors import Refusal
from moeinf.server.responses.input_items import items_of, messages_of, resolved

USER = {"role": "user", "content": "Hi"}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "done"}
PICTURE = "data:image/png;base64,aGk="


def messages(*items: Any, instructions: str | None = None) -> list[Any]:
    return messages_of(items_of(list(items)), instructions)


def called(*calls: tuple[str, str, str]) -> list[Any]:
    return [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]


def test_a_text_is_a_message_of_the_user() -> None:
    assert messages_of(items_of("Hi"), None) == [USER]


def test_what_comes_first_of_developers_is_one_system_message() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}
    system = {"role": "system", "content": "Be short."}
    first, user, later = messages(developer, USER, system, instructions="You help.")
    assert first == {"role": "system", "content": "You help.\n\nBe kind."}
    assert (user, later) == (USER, system)


def test_thoughts_words_and_calls_of_a_turn_are_one_message() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Looking."}]}
    other = CALL | {"call_id": "call_2", "namespace": "ns", "id": None}
    custom = {"type": "custom_tool_call", "call_id": "call_3", "name": "g", "input": 'a "text"'}
    _, turn, result = messages(USER, thought, said, CALL, other, custom, RESULT)
    calls = called(
        ("call_1", "f", '{"a": 1}'), ("call_2", "ns__f", '{"a": 1}'), ("call_3", "g", r'{"input": "a \"text\""}')
    )
    thoughts = {"reasoning_content": "Hm.", "thinking": "Hm."}
    assert turn == {"role": "assistant", "content": "Looking.", **thoughts, "tool_calls": calls}
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "done"}


def test_thoughts_behind_calls_are_of_the_next_turn() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": None}
    said = {"role": "assistant", "content": "Yes."}
    turns = messages(USER, CALL, RESULT, summary, said)
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[-1] == said | {"reasoning_content": "Hm.", "thinking": "Hm."}
    assert [turn["content"] for turn in messages(USER, said, said)] == ["Hi", "Yes.", "Yes."]


def test_the_result_of_a_tool_may_have_a_picture() -> None:
    parts = [{"type": "input_text", "text": "See:"}, {"type": "input_image", "image_url": PICTURE}]
    result = messages(USER, CALL, RESULT | {"output": parts})[-1]
    assert [part["type"] for part in result["content"]] == ["text", "image"]


def test_a_reference_stands_for_an_item_that_is_kept() -> None:
    items = items_of([USER, {"type": "item_reference", "id": "fc_1"}])
    assert resolved(items, {"fc_1": CALL}.get)[1] == CALL
    with pytest.raises(Refusal, match="'fc_1' is not kept"):
        resolved(items, lambda identifier: None)


WRONG: list[tuple[Any, str]] = [
    (5, r"input\[0\] must be an object"),
    ({}, "type None"),
    ({"type": ["message"]}, "type"),
    ({"type": "web_search_call", "id": "ws_1"}, "'web_search_call'"),
    ({"role": "cook", "content": "x"}, "'cook'"),
    ({"role": "tool", "content": "x"}, "function_call_output"),
    ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "'input_file'"),
    ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "image_url must be"),
    (CALL | {"arguments": {}}, "text arguments"),
    (CALL | {"call_id": None}, "text call_id"),
    (RESULT | {"output": None}, "must have output"),
    ({"type": "reasoning", "summary": "Hm."}, "lists of parts"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "g"}, "text input"),
]


@pytest.mark.parametrize(("item", "named"), WRONG)
def test_what_is_no_item_is_refused_by_its_place(item: Any, named: str) -> None:
    with pytest.raises(Refusal, match=named):
        messages(item)
