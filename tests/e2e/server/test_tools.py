"""Tools over the APIs of OpenAI, Anthropic and ollama, with a model that calls one and tells what it found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest
from anthropic.types import ThinkingBlock

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from tests.support.caller import ARGUMENTS, LOOK_UP, write_caller
from tests.support.live_server import live_server

ASKED: list[Any] = [{"role": "user", "content": "user"}]
FUNCTION = LOOK_UP["function"]
TOOL: Any = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
    "cache_control": {"type": "ephemeral"},
}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("caller")
    with live_server(pull(str(write_caller(folder / "caller")), home=folder / "home")) as running:
        yield running


@pytest.fixture
def of_openai(caller: HttpServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{caller.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def of_anthropic(caller: HttpServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=caller.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def of_ollama(caller: HttpServer) -> ollama.Client:
    return ollama.Client(caller.url)


def test_a_call_and_its_result_by_openais_client(of_openai: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "caller", "tools": [LOOK_UP]}
    choice = of_openai.chat.completions.create(**asked, messages=ASKED).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    assert (call.function.name, json.loads(call.function.arguments)) == ("look_up", ARGUMENTS)
    assert choice.message.content == "Looking." and choice.message.model_extra == {
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
    }
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "red."}
    answer = of_openai.chat.completions.create(**asked, messages=[*ASKED, choice.message, result]).choices[0]
    assert (answer.message.content or "").strip() == "It is red."
    assert (answer.message.tool_calls, answer.finish_reason) == (None, "stop")


def test_a_call_streamed_to_openais_client(of_openai: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "caller", "tools": [LOOK_UP], "messages": ASKED}
    chunks = list(of_openai.chat.completions.create(**asked, stream=True))
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    assert [part.id is not None for part in parts] == [True] + [False] * (len(parts) - 1)
    assert {part.index for part in parts} == {0} and len(parts) > 1
    assert parts[0].type == "function" and parts[0].function is not None and parts[0].function.name == "look_up"
    text = "".join(part.function.arguments or "" for part in parts if part.function)
    assert json.loads(text) == ARGUMENTS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    with of_openai.chat.completions.stream(model="caller", tools=[LOOK_UP], messages=ASKED) as stream:  # type: ignore[list-item]
        whole = stream.get_final_completion().choices[0].message
    assert whole.tool_calls is not None and json.loads(whole.tool_calls[0].function.arguments) == ARGUMENTS


def test_a_call_and_its_result_by_anthropics_client(of_anthropic: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": "caller", "max_tokens": 50, "tools": [TOOL]}
    message = of_anthropic.messages.create(**asked, messages=ASKED)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.stop_reason == "tool_use"
    thought, _, call = message.content
    assert isinstance(thought, ThinkingBlock) and thought.thinking == "Hm."
    assert call.type == "tool_use" and (call.name, call.input) == ("look_up", ARGUMENTS)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "red."}]}]
    chat = [*ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    answer = of_anthropic.messages.create(**asked, messages=chat)
    assert [str(block.to_dict()["text"]).strip() for block in answer.content] == ["It is red."]
    assert answer.stop_reason == "end_turn"


def test_a_call_streamed_to_anthropics_client(of_anthropic: anthropic.Anthropic) -> None:
    with of_anthropic.messages.stream(model="caller", max_tokens=50, tools=[TOOL], messages=ASKED) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    assert json.loads("".join(pieces)) == ARGUMENTS and len(pieces) > 1
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use"]
    assert message.content[2].to_dict()["input"] == ARGUMENTS and message.stop_reason == "tool_use"


def test_tools_count(of_anthropic: anthropic.Anthropic) -> None:
    def count(**more: Any) -> int:
        return of_anthropic.messages.count_tokens(model="caller", messages=ASKED, **more).input_tokens

    assert count(tools=[TOOL]) == count() + 1  # the word that this template has for them
    assert count(tools=[TOOL], tool_choice={"type": "none"}) == count()


def test_a_model_that_may_not_call_does_not(of_anthropic: anthropic.Anthropic, of_openai: openai.OpenAI) -> None:
    message = of_anthropic.messages.create(
        model="caller", max_tokens=9, tools=[TOOL], tool_choice={"type": "none"}, messages=ASKED
    )
    assert [str(block.to_dict()["text"]).strip() for block in message.content] == ["Hello there"]
    asked: dict[str, Any] = {"model": "caller", "tools": [LOOK_UP], "tool_choice": "none", "messages": ASKED}
    for choice in ("none", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}):
        completion = of_openai.chat.completions.create(**asked | {"tool_choice": choice})
        assert completion.choices[0].message.content.strip() == "Hello there"
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look_up"}}]}
    asked["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    assert of_openai.chat.completions.create(**asked).choices[0].finish_reason == "tool_calls"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "'custom'"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": {}}]}, "name"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "schema"),
    ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
    ("/v1/messages", {"tools": [{"name": "f"}]}, "input_schema"),
    ("/v1/messages", {"tools": [{"input_schema": {}}]}, "name"),
]


@pytest.mark.parametrize(("path", "change", "named"), WRONG)
def test_tools_that_are_none(caller: HttpServer, path: str, change: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{caller.url}{path}", json={"model": "caller", "messages": ASKED, "max_tokens": 5} | change)
    assert answer.status_code == 400 and named in answer.json()["error"]["message"]


def test_a_model_without_tools(server: HttpServer) -> None:
    for path, tool in (("/v1/chat/completions", LOOK_UP), ("/v1/messages", TOOL)):
        answer = httpx.post(
            f"{server.url}{path}", json={"model": "demo", "messages": ASKED, "max_tokens": 5, "tools": [tool]}
        )
        assert answer.status_code == 400 and "does not support tools" in answer.json()["error"]["message"]


def test_a_call_and_its_result_by_ollamas_client(of_ollama: ollama.Client) -> None:
    told = of_ollama.chat("caller", ASKED, tools=[LOOK_UP]).message
    assert told.tool_calls is not None and (told.content, told.thinking) == ("Looking.", "Hm.")
    (call,) = told.tool_calls
    assert (call.function.name, call.function.arguments) == ("look_up", ARGUMENTS)
    result = {"role": "tool", "tool_name": "look_up", "content": "red."}
    answer = of_ollama.chat("caller", [*ASKED, told, result], tools=[LOOK_UP])
    assert (answer.message.content or "").strip() == "It is red."
    assert (answer.message.tool_calls, answer.done_reason) == (None, "stop")


def test_a_call_streamed_to_ollamas_client(of_ollama: ollama.Client) -> None:
    assert "tools" in (of_ollama.show("caller").capabilities or ())
    pieces = list(of_ollama.chat("caller", ASKED, tools=[LOOK_UP], stream=True))
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    assert [(call.function.name, call.function.arguments) for call in calls] == [("look_up", ARGUMENTS)]
    assert "".join(piece.message.content or "" for piece in pieces) == "Looking."
    assert "".join(piece.message.thinking or "" for piece in pieces) == "Hm."
    assert pieces[-1].done_reason == "stop"


def test_calls_that_are_none_are_refused_by_ollamas_form(of_ollama: ollama.Client, caller: HttpServer) -> None:
    with pytest.raises(ollama.ResponseError, match=r"tools\[0\]: a function must have a name"):
        of_ollama.chat("caller", ASKED, tools=[{"type": "function", "function": {}}])
    message = {"role": "assistant", "tool_calls": "look_up"}
    refused = httpx.post(f"{caller.url}/api/chat", json={"model": "caller", "messages": [message]})
    assert refused.status_code == 400 and "messages[0].tool_calls" in refused.json()["error"]
