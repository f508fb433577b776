"""A prompt that the open context has no room for is answered by every API, and one that nothing has room for is refused
in the words of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory import plan, served_context
from moeinf.engine.stored.longest_context import longest_context
from moeinf.engine.stored.preset import Preset
from moeinf.hardware import machine
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server

SHORT = 64  # tokens, with which the model is opened


@pytest.fixture
def server(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    monkeypatch.setattr(plan, "DEFAULT_CONTEXT", SHORT)
    monkeypatch.setattr(served_context, "MOST_UNASKED", SHORT)
    with live_server(demo) as running:
        yield running


def asked(url: str, path: str, words: int, *, stream: bool, **more: Any) -> httpx.Response:
    text = "king " * words
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path or "messages" in path else {}
    body = {"model": "demo", "max_tokens": 2, "stream": stream, "prompt": text, "options": {"num_predict": 2}}
    if prompt:
        del body["prompt"]
    if not path.startswith("/api"):
        del body["options"]
    else:
        del body["max_tokens"]
    return httpx.post(f"{url}{path}", json=body | prompt | more, timeout=60)


def open_context(url: str) -> tuple[int, int]:
    (model,) = httpx.get(f"{url}/api/ps").json()["models"]
    return model["context_length"], model["moeinf"]["longest_context"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/api/chat"])
def test_a_prompt_gets_the_context_that_it_needs(server: HttpServer, path: str, stream: bool) -> None:
    assert asked(server.url, path, 3, stream=stream).status_code == 200
    assert open_context(server.url) == (SHORT, 2048)
    told = asked(server.url, path, 100, stream=stream)
    assert told.status_code == 200 and "error" not in told.text
    assert open_context(server.url) == (128, 2048)
    (listed,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    assert listed["context_length"] == listed["max_model_len"] == listed["meta"]["n_ctx_train"] == 2048
    shown = httpx.post(f"{server.url}/api/show", json={"model": "demo"}).json()["model_info"]
    assert [value for name, value in shown.items() if name.endswith(".context_length")] == [2048]


def test_texts_that_are_embedded_get_the_context_that_they_need(server: HttpServer) -> None:
    def embedded(path: str, **more: Any) -> Any:
        answer = httpx.post(f"{server.url}{path}", json={"model": "demo", **more}, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    short = embedded("/v1/embeddings", input="king king")["data"][0]["embedding"]
    assert open_context(server.url) == (SHORT, 2048)
    both = embedded("/v1/embeddings", input=["king king", "king " * 100])["data"]
    assert both[0]["embedding"] == short and open_context(server.url) == (128, 2048)
    assert embedded("/api/embed", input="king " * 5000)["prompt_eval_count"] == 2047, "what is too long loses its end"
    answer = embedded("/v1/responses", input="king " * 150, max_output_tokens=1)
    assert answer["usage"]["input_tokens"] > SHORT


def test_what_is_too_long_for_the_model_is_refused_in_the_words_of_each_api(server: HttpServer) -> None:
    def error(path: str) -> Any:
        told = asked(server.url, path, 3000, stream=False)
        assert told.status_code == 400
        return told.json()["error"]

    openai = error("/v1/chat/completions")
    assert openai["code"] == "context_length_exceeded"
    assert openai["message"].startswith("This model's maximum context length is ") and "shorten it" in openai["message"]
    anthropic = error("/v1/messages")["message"]
    assert anthropic.startswith("prompt is too long: ") and " tokens > " in anthropic and "shorten it" in anthropic
    assert error("/api/chat").startswith("the prompt has ")


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_num_ctx_is_what_was_asked_for(server: HttpServer, stream: bool, path: str) -> None:
    told = asked(server.url, path, 100, stream=stream, options={"num_ctx": 32})
    words = "the context 32: shorten it, or raise the option num_ctx (the model allows 2048)"
    assert told.status_code == 400 and words in told.json()["error"]
    assert "--num-ctx" not in asked(server.url, path, 3000, stream=stream, options={"num_ctx": 32}).text


def test_the_longest_is_what_was_asked_for_and_never_more_than_the_models(demo: StoredModel) -> None:
    for asked_for, found in ((None, 2048), (512, 512), (4096, 2048)):
        assert longest_context(demo, RuntimeConfig.of(device="cpu", context=asked_for), machine()) == found


def test_the_longest_leaves_half_of_the_experts(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from moeinf.engine.stored import longest_context as module

    held = {None: 100.0, 2048: 49.0, 1024: 51.0}

    def planned(stored: Any, outline: Any, config: RuntimeConfig, here: Any) -> Any:
        from types import SimpleNamespace

        return SimpleNamespace(context=config.memory.context or SHORT, held_experts=held[config.memory.context])

    monkeypatch.setattr(module, "planned", planned)
    assert longest_context(demo, RuntimeConfig.of(device="cpu"), machine()) == 1024


def test_a_context_that_goes_with_a_name_is_the_longest_of_that_name(demo: StoredModel) -> None:
    named = replace(demo, preset_text=Preset(options=(("num_ctx", "256"),)).dumps())
    assert longest_context(named, RuntimeConfig.of(device="cpu"), machine()) == 256
    assert longest_context(named, RuntimeConfig.of(device="cpu", context=512), machine()) == 512
