"""The embedded model with its chat template, asked by the real clients: the same story whichever API it is told by."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import ollama
import openai
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library

CHAT: list[Any] = [
    {"role": "system", "content": "It was winter."},
    {"role": "user", "content": "Tell me of a dog."},
    {"role": "assistant", "content": "One day, a dog ran away."},
    {"role": "user", "content": "What did he find?"},
]
TOOL = {
    "name": "look_up",
    "description": "Looks a word up.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"enum": ["fox", "dog"]}},
        "required": ["word"],
        "additionalProperties": False,
    },
}
SAD = {"sad": {"type": "boolean"}}
FORMAT = {"type": "object", "properties": SAD, "required": ["sad"], "additionalProperties": False}


@pytest.fixture(scope="module")
def story(storyteller: HttpServer) -> str:
    """What the model says without a server."""
    stored = Library(storyteller.worker.opened.library.home).find("demo:chat")
    with Model(stored, RuntimeConfig.of(device="cpu")) as model:
        answer = model.generate(CHAT, model.params(temperature=0, num_predict=400))
        assert answer.finish_reason == "stop", "the story ends where the next one would begin"
        prompt = model.tokenizer.render(CHAT, {})[0]
        [one, two] = (model.tokenizer.render([{"role": "user", "content": said}], {})[0] for said in ("Hi", "Hi! "))
    assert one.endswith(" Hi.") and two.endswith(" Hi!"), "the story goes on with a sentence"
    assert prompt.endswith("It was winter.\n\nTell me of a dog. One day, a dog ran away.\n\nWhat did he find?")
    return answer.text


def test_openais_client(storyteller: HttpServer, story: str) -> None:
    with openai.OpenAI(base_url=f"{storyteller.url}/v1", api_key="any", max_retries=0) as client:
        asked: Any = {"model": "demo:chat", "messages": CHAT, "temperature": 0}
        assert client.chat.completions.create(**asked).choices[0].message.content == story
        with client.chat.completions.stream(**asked) as stream:
            assert stream.get_final_completion().choices[0].message.content == story
        tools: Any = [{"type": "function", "function": TOOL}]
        calling = client.chat.completions.create(**asked, tools=tools, tool_choice="required").choices[0]
        assert calling.finish_reason == "tool_calls" and calling.message.tool_calls is not None
        (call,) = calling.message.tool_calls
        assert call.type == "function" and json.loads(call.function.arguments)["word"] in ("fox", "dog")
        result = {"role": "tool", "tool_call_id": call.id, "content": "An animal."}
        turns = [*CHAT, calling.message.model_dump(exclude_none=True), result]
        after = client.chat.completions.create(**asked | {"messages": turns}, tools=tools, max_tokens=4)
        assert after.choices[0].message.content and after.usage and after.usage.prompt_tokens > 60


def test_anthropics_client(storyteller: HttpServer, story: str) -> None:
    with anthropic.Anthropic(base_url=storyteller.url, api_key="any", max_retries=0) as client:
        asked: Any = {"model": "demo:chat", "max_tokens": 400, "system": CHAT[0]["content"], "messages": CHAT[1:]}
        asked |= {"extra_body": {"temperature": 0}}
        whole = client.messages.create(**asked)
        assert whole.content[0].to_dict()["text"] == story and whole.stop_reason == "end_turn"
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == story
        tool: Any = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
        called = client.messages.create(**asked, tools=[tool], tool_choice={"type": "tool", "name": "look_up"})
        assert called.stop_reason == "tool_use" and called.content[-1].to_dict()["name"] == "look_up"


def test_ollamas_client(storyteller: HttpServer, story: str) -> None:
    client = ollama.Client(storyteller.url)
    assert client.show("demo:chat").capabilities == ["completion", "tools"]
    options = {"temperature": 0}
    assert client.chat("demo:chat", CHAT, options=options).message.content == story
    pieces = client.chat("demo:chat", CHAT, options=options, stream=True)
    assert "".join(piece.message.content or "" for piece in pieces) == story
    held = client.chat("demo:chat", CHAT, options=options, format=FORMAT).message.content
    assert isinstance(json.loads(held or "")["sad"], bool)
    tools: Any = [{"type": "function", "function": TOOL}]
    assert client.chat("demo:chat", CHAT, tools=tools, options=options | {"num_predict": 3}).message.content
