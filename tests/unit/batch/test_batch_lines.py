"""What a line of a batch asks, or what is wrong with it alone, and which files are no batch."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moeinf.batch.batch_lines import BatchLine, LineFault, lines_of
from moeinf.errors import UsageError
from moeinf.server.http_errors import Refusal
from moeinf.server.question import Question

GOOD = {"custom_id": "good", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 3}}


def lines(*given: dict[str, Any] | str, salt: str = "", raw: bool = False) -> list[BatchLine]:
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in given)
    return lines_of(text, "demo", salt, raw=raw)


def asked(line: BatchLine) -> Question:
    assert isinstance(line.what, Question), line.what
    return line.what


def test_lines_of_openai_are_read_by_the_code_of_the_server() -> None:
    body = {"model": "coder", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "stop": ["x"]}
    text, chat = lines(GOOD, GOOD | {"custom_id": "chat", "url": "/v1/chat/completions", "body": body})
    assert (text.custom_id, chat.custom_id) == ("good", "chat")
    assert asked(text).ask.raw and asked(text).ask.model == "demo" and asked(text).ask.prompt == "a"
    assert asked(chat).ask.prompt == [{"role": "user", "content": "Hi"}] and asked(chat).ask.model == "coder"
    assert asked(chat).ask.params == {"temperature": 0, "stop": ("x",)}


def test_plain_lines_need_no_more_than_a_prompt() -> None:
    prompt, messages, raw = {"prompt": "Hi", "seed": 3}, {"messages": [{"role": "user", "content": "Hi"}]}, True
    one, two, three = lines(prompt, messages, "  ", prompt | {"custom_id": "mine"})
    assert [each.custom_id for each in (one, two, three)] == ["line-1", "line-2", "mine"]
    assert asked(one).ask.prompt == asked(two).ask.prompt and asked(one).ask.params == {"seed": 3}
    [continued] = lines(prompt, raw=raw)
    assert asked(continued).ask.raw and asked(continued).ask.prompt == "Hi"


@pytest.mark.parametrize(
    "line, code",
    [
        ("no JSON", "invalid_json_line"),
        ("[1]", "invalid_json_line"),
        ({name: value for name, value in GOOD.items() if name != "custom_id"}, "missing_custom_id"),
        (GOOD | {"custom_id": 3}, "invalid_custom_id"),
        (GOOD, "duplicate_custom_id"),
        (GOOD | {"custom_id": "x", "metod": "POST"}, "unknown_field"),
        ({"custom_id": "x", "method": "POST", "url": "/v1/completions"}, "missing_body"),
        ({"custom_id": "x", "method": "POST", "body": {}}, "missing_url"),
        (GOOD | {"custom_id": "x", "method": "GET"}, "invalid_method"),
        (GOOD | {"custom_id": "x", "url": "/v1/embeddings"}, "invalid_url"),
        (GOOD | {"custom_id": "x", "body": "a"}, "invalid_body"),
        ({"prompt": 5}, "invalid_prompt"),
        ({"custom_id": "x"}, "missing_prompt"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_of_that_line_alone(line: dict[str, Any] | str, code: str) -> None:
    good, bad = lines(GOOD, line)
    assert isinstance(good.what, Question)
    assert isinstance(bad.what, LineFault) and bad.what.code == code and "line 2" in bad.what.message


@pytest.mark.parametrize(
    "body, words",
    [
        ({"prompt": "a", "max_tokns": 3}, "is max_tokens meant"),
        ({"prompt": "a", "n": 2}, "a line of a batch has one answer"),
        ({"prompt": "a", "stream": True}, "leave it out"),
        ({"messages": []}, "prompt"),
    ],
)
def test_what_the_server_would_refuse_is_refused_in_its_words(body: dict[str, Any], words: str) -> None:
    [line] = lines(GOOD | {"body": body})
    assert isinstance(line.what, Refusal) and words in str(line.what)


@pytest.mark.parametrize("text", ["", "\n \n", "Hello there\nand more", '[{"prompt": "a"}]', '{"a": 1}'])
def test_a_file_without_any_request_is_no_batch(text: str) -> None:
    with pytest.raises(UsageError, match=r"no batch|no request"):
        lines(text)


def test_the_id_of_an_answer_is_made_of_all_that_it_depends_on() -> None:
    prompt = {"prompt": "a"}
    found = lines(prompt, prompt, GOOD)
    assert len({each.id for each in found}) == 3
    assert [each.id for each in found] == [each.id for each in lines(prompt, prompt, GOOD)]
    assert found[2].id == lines(GOOD)[0].id  # wherever it stands
    others = [*lines(GOOD, salt="another model"), *lines(GOOD | {"body": {"prompt": "b"}}), *lines("", prompt)]
    assert {each.id for each in others}.isdisjoint(each.id for each in found)
