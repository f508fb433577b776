"""Results stand in the order of their calls before a template, or the pictures in them, are looked at."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.engine.vision.parts import without_pictures
from moeinf.text.tool_calls.told.result_order import in_order_of_calls

USER = {"role": "user", "content": "q"}


def turn(*called: tuple[str, str]) -> dict[str, Any]:
    calls = [{"id": given, "type": "function", "function": {"name": name, "arguments": "{}"}} for given, name in called]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(content: Any, given: Any = None, name: Any = None, role: str = "tool") -> dict[str, Any]:
    return {"role": role, "content": content, "tool_call_id": given, "name": name}


AB = turn(("a", "f"), ("b", "g"))


@pytest.mark.parametrize(  # the order of the contents
    ("chat", "order"),
    [
        ([AB, result("2", "b"), result("1", "a")], "12"),
        ([AB, result("1", "a"), result("2", "b")], "12"),
        ([turn(("", "f"), ("", "g")), result("2", name="g"), result("1", name="f")], "12"),
        ([AB, result("2", "b", role="function"), result("1", "a", role="function")], "12"),
        ([turn(("a", "f")), turn(("b", "g")), result("2", "b"), result("1", "a")], "12"),
        ([turn(("x", "f"), ("x", "g")), result("2", "x", "g"), result("1", "x", "f")], "12"),
        ([turn(("a", "f"), ("b", "f")), result("1", name="f"), result("2", name="f")], "12"),
        ([turn(("a", "f"), ("b", "g"), ("c", "h")), result("3", "c"), result("?", "z"), result("1", "a")], "1?3"),
        ([AB, result("1", "a"), USER, result("2", "b"), AB, result("4", "b"), result("3", "a")], "12q34"),
        ([USER, AB, USER, result("2", "b"), USER, result("1", "a")], "q12qq"),
        ([AB, USER, result("1", name="f"), {"role": "assistant", "content": "!"}, result("2", "b")], "q1!2"),
        ([AB, result("1"), result("2")], "12"),
        ([result("2", "b"), result("1", "a")], "21"),
        ([{"role": "assistant", "tool_calls": "?"}, result("2", "b"), result("1", "a")], "21"),
        ([{"role": "assistant", "tool_calls": [None, {}, {"function": {}}]}, result("1", 3), result("2", [])], "12"),
        ([{"role": "assistant", "function_call": {"name": "f"}}, result("1", name="f", role="function")], "1"),
    ],
)
def test_results_get_the_order_of_their_calls(chat: list[dict[str, Any]], order: str) -> None:
    made = in_order_of_calls(chat)
    assert "".join(message["content"] for message in made if message.get("content")) == order
    assert sorted(map(id, made)) == sorted(map(id, chat)) and in_order_of_calls(made) == made


def test_pictures_in_results_come_in_that_order() -> None:
    pictures = [[{"type": "image", "image": data}] for data in (b"2", b"1")]
    messages, found = without_pictures([AB, result(pictures[0], "b"), result(pictures[1], "a")])
    assert [picture.data for picture in found] == [b"1", b"2"]
    assert [message["tool_call_id"] for message in messages[1:]] == ["a", "b"]
