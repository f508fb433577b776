"""Bodies of requests: nulls are absent, what is no character is replaced, and what is wrong is named."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.server.anthropic.requests import MessageRequest, Prompted
from moeinf.server.body import MOST_BARE_BYTES, MOST_VALUES, body_of
from moeinf.server.http_errors import Refusal
from moeinf.server.ollama import requests as ollama
from moeinf.server.openai.requests import ChatRequest, CompletionRequest
from moeinf.server.openai.response_format import format_of

LEAST: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    CompletionRequest: {"model": "m", "prompt": "hi"},
    MessageRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1},
    Prompted: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    ollama.ChatRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    ollama.GenerateRequest: {"model": "m", "prompt": "hi"},
    ollama.ShowRequest: {"model": "m"},
    ollama.PullRequest: {"model": "m"},
    ollama.NamedRequest: {"model": "m"},
    ollama.CopyRequest: {"source": "a", "destination": "b"},
}


def read(body: bytes, kind: type[Any]) -> Any:
    return body_of(body, kind)


def optional_fields() -> Iterator[Any]:
    for kind, least in LEAST.items():
        for field in msgspec.structs.fields(kind):
            if field.encode_name not in least:
                yield pytest.param(kind, field.encode_name, id=f"{kind.__module__}.{kind.__name__}.{field.name}")


@pytest.mark.parametrize(("kind", "name"), list(optional_fields()))
def test_a_field_that_is_null_is_one_that_is_absent(kind: type[Any], name: str) -> None:
    least = LEAST[kind]
    assert read(json.dumps(least | {name: None}).encode(), kind) == read(json.dumps(least).encode(), kind)


NESTED: list[tuple[type[Any], dict[str, Any]]] = [
    (ChatRequest, {"stream": True, "stream_options": {"include_usage": None}}),
    (MessageRequest, {"metadata": {"user_id": None}}),
    (MessageRequest, {"tool_choice": {"type": "auto", "name": None, "disable_parallel_tool_use": None}}),
    (MessageRequest, {"thinking": {"type": "adaptive", "display": None}}),
    (MessageRequest, {"output_config": {"format": None}}),
]


@pytest.mark.parametrize(("kind", "nested"), NESTED)
def test_so_is_one_within_another(kind: type[Any], nested: dict[str, Any]) -> None:
    bare = {
        name: {inner: each for inner, each in value.items() if each is not None} if isinstance(value, dict) else value
        for name, value in nested.items()
    }
    assert read(json.dumps(LEAST[kind] | nested).encode(), kind) == read(json.dumps(LEAST[kind] | bare).encode(), kind)


def test_a_null_of_a_schema_or_of_arguments_stays() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1], "default": None}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    asked = read(json.dumps(LEAST[ChatRequest] | {"tools": [tool]}).encode(), ChatRequest)
    assert asked.tools[0]["function"]["parameters"] == schema


@pytest.mark.parametrize("kind", list(LEAST))
def test_a_field_that_must_be_there_is_missed_where_it_is_null(kind: type[Any]) -> None:
    required = [each.encode_name for each in msgspec.structs.fields(kind) if each.required]
    for name in required:
        with pytest.raises(Refusal, match=name):
            read(json.dumps(LEAST[kind] | {name: None}).encode(), kind)


TEXTS = [
    (rb"\ud83d", "�"),
    (rb"\udc00", "�"),
    (rb"a\uD83Db", "a�b"),
    (rb"\ude00\ud83d", "��"),
    (rb"\ud83d\ud83d\ude00", "�\U0001f600"),
    (rb"\ud83d\n", "�\n"),
    (rb"\ud83d\\ude00", "�\\ude00"),
    (rb"\\ud83d", "\\ud83d"),
    (rb"\\\ud83d", "\\�"),
    (rb"\ud83d\u0041", "�A"),
    (b"\xed\xa0\xbd", "���"),
    (b"a\xffb", "a�b"),
    (b"\xf0\x9f\x98", "�"),
]


@pytest.mark.parametrize(("written", "meant"), TEXTS)
@pytest.mark.parametrize(
    ("kind", "form"),
    [
        (ChatRequest, b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}'),
        (MessageRequest, b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "%s"}]}'),
        (ollama.ChatRequest, b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}'),
    ],
)
def test_what_is_no_character_becomes_the_sign_for_that(
    written: bytes, meant: str, kind: type[Any], form: bytes
) -> None:
    assert msgspec.to_builtins(read(form % written, kind).messages[0])["content"] == meant


@given(st.text(st.characters() | st.characters(categories=["Cs"]), max_size=8))
def test_any_text_is_read_with_its_halves_replaced(text: str) -> None:
    asked = read(json.dumps({"model": "m", "prompt": text}).encode(), CompletionRequest)
    assert asked.prompt == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b'{"model": 5, "prompt": "x"}', "model"),
        (b'{"model": "m", "prompt": "x", "max_tokens": "many"}', "max_tokens"),
        (b'{"model": "m", "prompt": "x", "temperature": 1e400}', "temperature"),
        (b'{"model": "m", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", "seed"),
        (b'{"model": "m", "prompt": "x", "unknown": 1e400}', "out of range"),
        (b'{"model": "m", "prompt": "\\ud83d", "seed": "x"}', "seed"),
        (b"", "missing"),
        (b'{"model": "m"', "no JSON"),
        (b"\xff", "no JSON"),
        (b'{"model": "m", "prompt": NaN}', "no JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, named: str) -> None:
    with pytest.raises(Refusal, match=named) as caught:
        read(body, CompletionRequest)
    assert caught.value.status == 400


@pytest.mark.parametrize("name", ["max_tokens", "seed", "top_k", "n"])
def test_a_whole_number_may_be_written_with_a_point(name: str) -> None:
    body = b'{"model": "m", "prompt": "x", "%s": 8.0}' % name.encode()
    assert (value := getattr(read(body, CompletionRequest), name)) == 8 and isinstance(value, int)
    with pytest.raises(Refusal, match=name):
        read(body.replace(b"8.0", b"8.5"), CompletionRequest)


@pytest.mark.parametrize("kind", list(LEAST))
def test_a_body_may_begin_with_a_byte_order_mark(kind: type[Any]) -> None:
    body = json.dumps(LEAST[kind]).encode()
    assert read(codecs.BOM_UTF8 + body, kind) == read(body, kind)
    with pytest.raises(Refusal, match="missing"):
        read(codecs.BOM_UTF8, kind)


@pytest.mark.parametrize("value", ["[]", "{}", "1", '"a,[{"', r'"\\\","', '{"a":[]}'])
def test_json_of_many_values_is_refused_before_it_is_read(value: str) -> None:
    values = value.count("[]") + (value != "[]")
    for count, refused in ((MOST_VALUES // values + 1, True), (MOST_VALUES // values // 3, False)):
        body = f'{{"model": "m", "prompt": [{",".join([value] * count)}]}}'.encode()
        if refused:
            with pytest.raises(Refusal, match="more than 200,000 values") as caught:
                read(body, CompletionRequest)
            assert caught.value.status == 413
        else:
            assert len(read(body, CompletionRequest).prompt) == count


@pytest.mark.parametrize("text", [",[{" * 200_000, '\\"' * 200_000, "\\" * 200_001, '\\,"' * 100_000])
def test_a_long_text_may_hold_any_marks(text: str) -> None:
    assert read(json.dumps({"model": "m", "prompt": text}).encode(), CompletionRequest).prompt == text


@pytest.mark.parametrize("number", [b"9" * 4000, b"4.9406564584124654" + b"1" * 40 + b"e-324"])
def test_json_of_many_long_numbers_is_refused_before_it_is_read(number: bytes) -> None:
    body = b'{"model": "m", "prompt": "x", "unknown": [%s]}' % b",".join(
        [number] * (MOST_BARE_BYTES // len(number) + 1)
    )
    with pytest.raises(Refusal, match="more than 2 MiB beside texts") as caught:
        read(body, CompletionRequest)
    assert caught.value.status == 413


def test_other_threads_may_go_on_between_two_numbers() -> None:
    """Each is read by a call of Python, between two of which another thread may take the interpreter."""
    number, count, calls = b"4.9406564584124654" + b"1" * 40 + b"e-324", 20_000, [0]
    body = b'{"model": "m", "prompt": "x", "unknown": [%s]}' % b",".join([number] * count)

    def called(_: object, event: str, __: object) -> None:
        calls[0] += event == "call"

    sys.setprofile(called)
    try:
        read(body, CompletionRequest)
    finally:
        sys.setprofile(None)
    assert calls[0] >= count


def test_the_text_of_a_schema_or_of_arguments_is_bounded_like_a_body() -> None:
    many = f"[{'[],' * MOST_VALUES}1]"
    call = {"function": {"name": "f", "arguments": many}}
    with pytest.raises(Refusal, match="arguments has more than"):
        read(
            json.dumps(LEAST[ChatRequest] | {"messages": [{"role": "user", "tool_calls": [call]}]}).encode(),
            ChatRequest,
        )
    with pytest.raises(Refusal, match="guided_json has more than"):
        format_of(read(json.dumps(LEAST[ChatRequest] | {"guided_json": many}).encode(), ChatRequest))
