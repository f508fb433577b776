"""A model of random weights, which says anything, is made to call a tool."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from tokenizers import AddedToken

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.live_server import live_server
from tests.support.text_models import byte_level_tokenizer, write_text_model
from tests.support.tool_families import BY_NAME

HI: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
NAMES = ("weather", "map")


def write_random(folder: Path, name: str) -> Path:
    """A checkpoint of random weights with the tokenizer and the template of a family of tool_families.py."""
    config = CONFIG | {"vocab_size": BY_NAME[name].tokenizer().get_vocab_size()}
    write_checkpoint(folder, random_tensors(config), config)
    BY_NAME[name].write(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def random_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("random")
    with live_server(pull(str(write_random(folder / "random", "mistral")), home=folder / "home")) as running:
        yield running


@pytest.mark.parametrize("forced", ["required", "map"])
@pytest.mark.parametrize("stream", [False, True])
def test_openais_client(random_server: HttpServer, forced: str, stream: bool) -> None:
    choice = forced if forced == "required" else {"type": "function", "function": {"name": forced}}
    tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
    asked: Any = {"model": "random", "messages": HI, "tools": tools, "tool_choice": choice}
    with openai.OpenAI(base_url=f"{random_server.url}/v1", api_key="any", max_retries=0) as client:
        if stream:
            with client.chat.completions.stream(**asked) as events:
                answer: Any = events.get_final_completion().choices[0]
        else:
            answer = client.chat.completions.create(**asked).choices[0]
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.message.tool_calls
    assert call.function.name in (NAMES if forced == "required" else [forced])
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "map"}])
def test_anthropics_client(random_server: HttpServer, choice: dict[str, str]) -> None:
    asked: dict[str, Any] = {"model": "random", "max_tokens": 200, "messages": HI, "tool_choice": choice}
    asked["tools"] = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
    with anthropic.Anthropic(base_url=random_server.url, api_key="any", max_retries=0) as client:
        message = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    for each in (message, streamed):
        block: Any
        (block,) = each.content
        assert block.type == "tool_use" and each.stop_reason == "tool_use"
        assert block.name in (NAMES if choice["type"] == "any" else ["map"])
        assert block.input in ({"city": "Rome"}, {"city": "Paris"})


def test_tools_beside_a_format(random_server: HttpServer) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": PARAMETERS}}
    tools = [{"type": "function", "function": {"name": "map", "parameters": PARAMETERS}}]
    asked: Any = {"model": "random", "messages": HI, "tools": tools, "response_format": schema, "max_tokens": 200}
    with openai.OpenAI(base_url=f"{random_server.url}/v1", api_key="any", max_retries=0) as client:
        for seed in range(4):
            choice = client.chat.completions.create(**asked, seed=seed).choices[0]
            if choice.finish_reason == "stop" and not choice.message.tool_calls:
                assert json.loads(choice.message.content)["city"] in ("Rome", "Paris")


TOOL = {"type": "function", "function": {"name": "f"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "there are no tools"),
    ({"tool_choice": "often"}, "'often'"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "'g'"),
    ({"tools": [{"function": {"name": "<|x|>"}}], "tool_choice": "required"}, "cannot be a tool's name"),
]


@pytest.mark.parametrize(("change", "named"), WRONG)
def test_calls_that_nobody_can_be_made_to(random_server: HttpServer, change: dict[str, Any], named: str) -> None:
    answer = httpx.post(f"{random_server.url}/v1/chat/completions", json={"model": "random", "messages": HI} | change)
    assert answer.status_code == 400 and named in answer.json()["error"]["message"]


def test_a_model_without_a_syntax_of_calls(server: HttpServer) -> None:
    asked = {"model": "demo", "messages": HI, "tools": [TOOL], "tool_choice": "required"}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked)
    assert answer.status_code == 400 and "cannot be made to call" in answer.json()["error"]["message"]


def test_a_template_that_knows_no_tools(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The model is told of them in words of moeinf, and a call that is demanded has the form that it is told."""
    folder = write_random(tmp_path / "random", "mistral")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    tool = {"type": "function", "function": {"name": "map", "parameters": PARAMETERS}}
    asked: dict[str, Any] = {"model": "random", "messages": HI, "tools": [tool], "tool_choice": "required"}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}
    with live_server(pull(str(folder), home=tmp_path / "home")) as running:
        for more in ([], [{"role": "assistant", "content": None}, result]):
            told = httpx.post(f"{running.url}/v1/chat/completions", json=asked | {"messages": [*HI, *more]}, timeout=60)
            assert told.status_code == 200, told.text
            (call,) = told.json()["choices"][0]["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Paris")
        free = httpx.post(f"{running.url}/api/chat", json={"model": "random", "messages": HI, "tools": [tool],
            "options": {"num_predict": 3}, "stream": False}, timeout=60)  # fmt: skip
        assert free.status_code == 200
    assert caplog.text.count("the chat template knows no tools") == 1


def test_what_follows_the_mark_of_a_call_is_one_where_the_template_knows_no_tools(tmp_path: Path) -> None:
    """The mark is made likely; the rest is what random weights would say."""
    library = byte_level_tokenizer()
    library.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    config = CONFIG | {"vocab_size": library.get_vocab_size(), "max_position_embeddings": 2048}
    write_checkpoint(tmp_path / "plain", random_tensors(config), config)
    write_text_model(tmp_path / "plain", "{% for m in messages %}{{ m.content }}{% endfor %}", library)
    (tmp_path / "plain/config.json").write_text(json.dumps(config))
    tools: Any = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
    bias = {str(library.token_to_id("<tool_call>")): 100}
    with (
        live_server(pull(str(tmp_path / "plain"), home=tmp_path / "home")) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="any", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(
            model="plain", messages=HI, tools=tools, logit_bias=bias, max_tokens=300, temperature=1, seed=1
        )
    calls: Any = answer.choices[0].message.tool_calls
    assert len(calls) > 1 and {call.function.name for call in calls} <= set(NAMES)
    assert all(json.loads(call.function.arguments)["city"] in ("Rome", "Paris") for call in calls)
