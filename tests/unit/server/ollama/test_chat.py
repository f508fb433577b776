"""What a request of ollama's API asks a model for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from moeinf.errors import MoeinfError
from moeinf.server.body import checked
from moeinf.server.ollama.chat import chat_ask, generate_ask, message_of
from moeinf.server.ollama.requests import ChatMessage, ChatRequest, GenerateRequest


def read(kind: Any, **fields: Any) -> Any:
    return msgspec.convert(checked({"model": "m"} | fields, kind), kind)


def chat(**fields: Any) -> Any:
    return chat_ask(read(ChatRequest, **fields))


def generate(**fields: Any) -> Any:
    return generate_ask(read(GenerateRequest, **fields))


def test_messages_come_with_lower_case_roles_and_plain_text() -> None:
    messages = [{"role": "assistant", "content": None}, {"role": "User", "content": [{"type": "text", "text": "a"}]}]
    assert chat(messages=messages).prompt == [{"role": "assistant", "content": ""}, {"role": "user", "content": "a"}]


def test_thoughts_of_earlier_answers_have_the_names_that_templates_read() -> None:
    told = message_of(ChatMessage("assistant", "a", "hm"), "messages[0]")
    assert told == {"role": "assistant", "content": "a", "thinking": "hm", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "wizard", "content": "a"},
        {"content": "a"},
        {"role": "user", "images": [1]},
        {"role": "assistant", "tool_calls": "f"},
        {"role": "assistant", "tool_calls": {"a": 1}},
        {"role": "assistant", "tool_calls": ["a"]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]},
        {"role": "tool", "tool_name": ["a"]},
    ],
)
def test_a_message_that_no_model_reads_is_refused_by_its_place(message: dict[str, Any]) -> None:
    with pytest.raises((MoeinfError, msgspec.ValidationError), match=r"messages\[1\]"):
        chat(messages=[{"role": "user", "content": "a"}, message])


def test_no_messages_and_no_prompt_load_the_model() -> None:
    assert chat().prompt is chat(messages=[]).prompt is generate().prompt is generate(prompt="").prompt is None


def test_generate_takes_a_system_message_a_text_or_a_raw_one() -> None:
    assert generate(prompt="a", system="s").prompt == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
    ]
    assert (generate(prompt="a").prompt, generate(prompt="a").raw) == ("a", False)
    assert (generate(prompt="a", raw=True).prompt, generate(prompt="a", raw=True).raw) == ("a", True)


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "b"}, {"images": ["?"]}, {"template": "{{ . }}"}, {"context": [1]}, {"raw": True, "system": "s"}],
)
def test_generate_refuses_what_would_change_the_answer(fields: dict[str, Any]) -> None:
    with pytest.raises(MoeinfError):
        generate(prompt="a", **fields)


def test_format_is_json_or_a_schema() -> None:
    assert generate(prompt="a", format="json").format == "json"
    assert generate(prompt="a", format={"type": "object"}).format == {"type": "object"}
    assert generate(prompt="a", format="").format is None
    with pytest.raises(MoeinfError, match="invalid format"):
        generate(prompt="a", format="yaml")


def test_empty_fields_that_clients_send_along_are_not_refused() -> None:
    assert generate(prompt="a", suffix="", images=[], template="", context=[], format="").prompt == "a"
    assert chat(messages=[{"role": "user", "content": "a"}], tools=[]).prompt


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, (0.0,)), ("5m", (300.0,)), (-1, (None,)), ("-1", (None,)), (None, ())]
)
def test_keep_alive_is_a_number_of_seconds_or_a_duration(given: Any, seconds: tuple[float | None, ...]) -> None:
    assert generate(prompt="a", keep_alive=given).keep_alive == seconds
