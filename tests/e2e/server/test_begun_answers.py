"""An answer that a client has begun is continued on every route alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.pull.pull import ensure, pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.caller import LOOK_UP, write_caller
from tests.support.live_server import live_server
from tests.support.thinker import write_thinker

ASKED = [{"role": "user", "content": "Tell me of a dog"}]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder = tmp_path_factory.mktemp("begun")
    ensure("demo:chat", home=folder / "home")
    for name, write in (("caller", write_caller), ("thinker", write_thinker)):
        pull(str(write(folder / name)), home=folder / "home")
    return Library(folder / "home")


@pytest.fixture(scope="module")
def server(library: Library) -> Iterator[HttpServer]:
    with live_server(library) as running:
        yield running


def ask(server: HttpServer, api: str, messages: list[Json], **more: Any) -> httpx.Response:
    bodies: dict[str, tuple[str, Json]] = {
        "openai": ("/v1/chat/completions", {"max_tokens": 8, "temperature": 0}),
        "anthropic": ("/v1/messages", {"max_tokens": 8, "temperature": 0}),
        "ollama": ("/api/chat", {"options": {"num_predict": 8, "temperature": 0}, "stream": False}),
    }
    path, body = bodies[api]
    body = {"model": "demo:chat", "messages": messages} | body | more
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def said(api: str, answer: httpx.Response) -> tuple[str, int]:
    """The text, and the tokens of the prompt."""
    assert answer.status_code == 200, answer.text
    told = answer.json()
    if api == "openai":
        return told["choices"][0]["message"]["content"], told["usage"]["prompt_tokens"]
    if api == "ollama":
        return told["message"]["content"], told["prompt_eval_count"]
    usage = told["usage"]
    text = "".join(block["text"] for block in told["content"] if block["type"] == "text")
    return text, usage["input_tokens"] + usage["cache_read_input_tokens"]


APIS = ("openai", "anthropic", "ollama")
BEGINNINGS = ["Once upon a time", "Once upon a", "The dog's name was", "ß und ", "<|im_end|>", "{", "a\n\nb"]


@pytest.mark.parametrize("begun", BEGINNINGS)
def test_a_last_message_of_the_assistant_is_continued(library: Library, server: HttpServer, begun: str) -> None:
    messages = [*ASKED, {"role": "assistant", "content": begun}]
    with Model(library.find("demo:chat"), RuntimeConfig.of(device="cpu")) as model:
        made = model.generate(messages, model.params(temperature=0, num_predict=8), continues=True)
    for api in APIS:
        assert said(api, ask(server, api, messages)) == (made.text, made.stats.prompt_tokens), api
    counted = httpx.post(f"{server.url}/v1/messages/count_tokens", json={"model": "demo:chat", "messages": messages})
    assert counted.json()["input_tokens"] == made.stats.prompt_tokens


def test_an_empty_beginning_is_none(server: HttpServer) -> None:
    for api in APIS:
        whole = said(api, ask(server, api, ASKED))
        assert said(api, ask(server, api, [*ASKED, {"role": "assistant", "content": ""}])) == whole
        alone = ask(server, api, [{"role": "assistant", "content": ""}])
        assert alone.status_code == 400 and "empty" in alone.text


def test_calls_without_results_are_refused(server: HttpServer) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "fox"}}}
    use = {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"word": "fox"}}
    for api in APIS:
        turn = {"content": [use]} if api == "anthropic" else {"content": "", "tool_calls": [call]}
        refused = ask(server, api, [*ASKED, {"role": "assistant", **turn}], model="caller")
        assert refused.status_code == 400 and "calls tools" in refused.text, api


def test_what_vllm_calls_it_is_obeyed(server: HttpServer) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "It"}]

    def told(**more: Any) -> tuple[str, int]:
        return said("openai", ask(server, "openai", messages, model="caller", **more))

    assert told()[0].split() == ["is", "red."]
    for more in ({"continue_final_message": True}, {"continue_final_message": True, "add_generation_prompt": False}):
        assert told(**more) == told()
    for more in ({"add_generation_prompt": True}, {"continue_final_message": False}):
        text, count = told(**more)
        assert text.split() == ["Hello", "there"] and count > told()[1]


@pytest.mark.parametrize(
    ("more", "last"),
    [
        ({"continue_final_message": True, "add_generation_prompt": True}, "assistant"),
        ({"continue_final_message": True}, "user"),
        ({"add_generation_prompt": False}, "user"),
    ],
)
def test_what_cannot_be_is_refused_by_name(server: HttpServer, more: Json, last: str) -> None:
    messages = [*ASKED, {"role": last, "content": "Once"}]
    refused = ask(server, "openai", messages, **more)
    assert refused.status_code == 400 and next(iter(more)) in refused.json()["error"]["message"]


def test_a_form_of_the_answer_beside_a_beginning_is_refused(server: HttpServer) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "{"}]
    schema = {"type": "object"}
    for api, more in (
        ("openai", {"response_format": {"type": "json_object"}}),
        ("anthropic", {"output_config": {"format": {"type": "json_schema", "schema": schema}}}),
        ("ollama", {"format": "json"}),
        ("ollama", {"format": schema, "stream": True}),
    ):
        refused = ask(server, api, messages, **more)
        assert refused.status_code == 400 and "begun" in refused.text, api


def test_a_beginning_with_tools_beside_it_is_continued(server: HttpServer) -> None:
    messages = [*ASKED, {"role": "assistant", "content": "It"}]
    of_anthropic = {"name": "look_up", "input_schema": LOOK_UP["function"]["parameters"]}
    for api in APIS:
        tools = [of_anthropic if api == "anthropic" else LOOK_UP]
        told, _ = said(api, ask(server, api, messages, model="caller", tools=tools))
        assert told.split()[:2] == ["is", "red."], api
