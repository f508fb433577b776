"""Pictures in requests of each API, through their own clients."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server
from tests.support.seeing_models import asking, png, seeing_model

QUESTION = "What is this?"
CODED = base64.b64encode(png(1)).decode()
URL = f"data:image/png;base64,{CODED}"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return seeing_model(tmp_path_factory.mktemp("seeing"), "qwen3_5_moe")


@pytest.fixture(scope="module")
def wanted(stored: StoredModel) -> tuple[str, int]:
    """The answer, and the tokens of the prompt."""
    with Model(stored, RuntimeConfig.of(device="cpu", context=300)) as model:
        made = model.generate(asking(QUESTION, png(1)), model.params(temperature=0.0, num_predict=6))
        return made.text, made.stats.prompt_tokens


@pytest.fixture(scope="module")
def server(stored: StoredModel) -> Iterator[HttpServer]:
    with live_server(stored, config=RuntimeConfig.of(device="cpu", context=300)) as running:
        yield running


def test_openai_data_urls(server: HttpServer, wanted: tuple[str, int]) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    content: Any = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": QUESTION}]
    asked: Any = [{"role": "user", "content": content}]
    made = client.chat.completions.create(model="source", messages=asked, max_tokens=6, temperature=0)
    assert (made.choices[0].message.content, made.usage and made.usage.prompt_tokens) == wanted


def test_anthropic_image_blocks(server: HttpServer, wanted: tuple[str, int]) -> None:
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    source = {"type": "base64", "media_type": "image/png", "data": CODED}
    asked: Any = [
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}
    ]
    drawn = {"temperature": 0}
    made: Any = client.messages.create(model="source", messages=asked, max_tokens=6, extra_body=drawn)
    assert made.content[0].text == wanted[0]
    assert client.messages.count_tokens(model="source", messages=asked).input_tokens == wanted[1]


def test_pictures_in_the_results_of_tools(server: HttpServer) -> None:
    of_anthropic, of_openai = (
        anthropic.Anthropic(base_url=server.url, api_key="none"),
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none"),
    )
    source = {"type": "base64", "media_type": "image/png", "data": CODED}
    parts = [{"type": "text", "text": QUESTION}, {"type": "image", "source": source}]
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    chat: Any = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": parts}]},
    ]
    made: Any = of_anthropic.messages.create(model="source", messages=chat, max_tokens=6, extra_body={"temperature": 0})
    shown = [{"type": "input_text", "text": QUESTION}, {"type": "input_image", "image_url": URL}]
    items: Any = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": shown},
    ]
    other = of_openai.responses.create(model="source", input=items, max_output_tokens=6, temperature=0)
    assert other.output_text == made.content[0].text != ""
    assert other.usage is not None and other.usage.input_tokens > 30, "a picture is many tokens"


def test_ollama_images(server: HttpServer, wanted: tuple[str, int]) -> None:
    client, options = ollama.Client(server.url), {"num_predict": 6, "temperature": 0}
    asked = [{"role": "user", "content": QUESTION, "images": [png(1)]}]
    assert client.chat("source", asked, options=options).message.content == wanted[0]
    assert client.generate("source", QUESTION, images=[png(1)], options=options).response == wanted[0]
    told = httpx.post(f"{server.url}/api/show", json={"model": "source"}).json()
    assert "vision" in told["capabilities"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"type": "image_url", "image_url": {"url": "https://example.com/cat.png"}}], "nothing is fetched"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,??"}}], "no base64"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,R0lGODlh"}}], "neither PNG nor JPEG"),
        ([{"type": "input_audio", "input_audio": {}}], "read text and images"),
        ([{"type": "image_url", "image_url": {"url": URL}}] * 33, "more than 32"),
    ],
)
def test_what_is_no_picture_is_a_bad_request(server: HttpServer, content: Any, words: str) -> None:
    body = {"model": "source", "messages": [{"role": "user", "content": content}], "max_tokens": 2}
    told = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert told.status_code == 400 and words in told.json()["error"]["message"]


def test_a_model_of_text_refuses_pictures_at_once(demo: StoredModel) -> None:
    with live_server(demo) as running:
        content = [{"type": "image_url", "image_url": {"url": URL}}]
        body = {"model": "demo", "messages": [{"role": "user", "content": content}]}
        told = httpx.post(f"{running.url}/v1/chat/completions", json=body)
        assert told.status_code == 400 and "takes text alone" in told.json()["error"]["message"]
        source = {"type": "base64", "media_type": "image/png", "data": CODED}
        body = {"model": "demo", "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
        for path, more in (("/v1/messages", {"max_tokens": 1}), ("/v1/messages/count_tokens", {})):
            told = httpx.post(f"{running.url}{path}", json=body | more)
            assert told.status_code == 400 and "takes text alone" in told.json()["error"]["message"], path
        told = httpx.post(f"{running.url}/api/generate", json={"model": "demo", "prompt": "?", "images": [CODED]})
        assert told.status_code == 400 and "takes text alone" in told.json()["error"]
