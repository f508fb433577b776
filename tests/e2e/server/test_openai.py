"""OpenAI's own client against a live server with the embedded model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server

PROMPT = "Once upon a time"
HI = [{"role": "user", "content": "Tell me of a dog"}]


@pytest.fixture
def client(server: HttpServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any") as client:
        yield client


@pytest.fixture(scope="session")
def expected(demo: StoredModel) -> str:
    """What the model says without a server."""
    with Model(demo, RuntimeConfig.of(device="cpu")) as model:
        return model.generate(PROMPT, model.params(temperature=0, num_predict=24), raw=True).text


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo:latest"]
    assert client.models.retrieve("demo").id == "demo:latest"
    with pytest.raises(openai.NotFoundError, match="not found"):
        client.models.retrieve("org/other:tag")


def test_a_completion_is_what_the_model_says(client: openai.OpenAI, expected: str) -> None:
    answer = client.completions.create(model="demo", prompt=PROMPT, temperature=0, max_tokens=24)
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 24
    figures = answer.model_extra["moeinf"]  # type: ignore[index]
    assert figures["hits"] + figures["misses"] > 0 and figures["read_bytes"] >= 0


def test_a_streamed_completion_says_the_same(client: openai.OpenAI, expected: str) -> None:
    chunks = list(
        client.completions.create(
            model="demo",
            prompt=PROMPT,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == expected
    assert len({(chunk.id, chunk.created) for chunk in chunks}) == 1
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens == 28
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert reasons[-1] == "length" and not any(reasons[:-1])


def test_a_chat(client: openai.OpenAI) -> None:
    asked = {"model": "demo", "messages": HI, "temperature": 0.7, "seed": 5, "max_completion_tokens": 12}
    whole = client.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**asked, stream=True))  # type: ignore[call-overload]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content != ""
    assert [delta.role for delta in deltas if delta.role] == ["assistant"]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_several_answers_to_a_chat(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": HI, "temperature": 1.0, "max_completion_tokens": 9}
    ones = [client.chat.completions.create(**asked, seed=5 + at) for at in range(3)]
    whole = client.chat.completions.create(**asked, seed=5, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    said = [choice.message.content for choice in whole.choices]
    assert said == [each.choices[0].message.content for each in ones] and len(set(said)) == 3
    assert whole.usage is not None and ones[0].usage is not None
    assert whole.usage.completion_tokens == 27 and whole.usage.prompt_tokens == ones[0].usage.prompt_tokens
    chunks = list(
        client.chat.completions.create(**asked, seed=5, n=3, stream=True, stream_options={"include_usage": True})
    )
    told = ["", "", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        told[choice.index] += choice.delta.content or ""
    assert told == said and chunks[-1].usage == whole.usage
    roles = [choice.index for chunk in chunks for choice in chunk.choices if choice.delta.role]
    assert roles == [0, 1, 2] == [c.index for chunk in chunks for c in chunk.choices if c.finish_reason]


def test_several_prompts_and_their_echo(client: openai.OpenAI, expected: str) -> None:
    asked: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 24}
    other = client.completions.create(**asked, prompt="The dog").choices[0].text
    whole = client.completions.create(**asked, prompt=[PROMPT, "The dog"], n=2, echo=True)
    said = [PROMPT + expected] * 2 + ["The dog" + other] * 2
    assert [choice.text for choice in whole.choices] == said and whole.usage is not None
    assert whole.usage.completion_tokens == 4 * 24 and whole.usage.prompt_tokens < 12
    told = ["", "", "", ""]
    for chunk in client.completions.create(**asked, prompt=[PROMPT, "The dog"], n=2, echo=True, stream=True):
        for choice in chunk.choices:
            told[choice.index] += choice.text
    assert told == said


def test_a_stop_string_ends_the_answer(client: openai.OpenAI, expected: str) -> None:
    word = expected.split()[3]
    answer = client.completions.create(model="demo", prompt=PROMPT, temperature=0, max_tokens=24, stop=[word])
    assert answer.choices[0].text == expected[: expected.index(word)]
    assert answer.choices[0].finish_reason == "stop"


def test_the_beginning_of_a_prompt_is_not_read_twice(client: openai.OpenAI) -> None:
    prompt = f"{PROMPT} there was a king who had a"
    client.completions.create(model="demo", prompt=prompt, max_tokens=1)
    answer = client.completions.create(model="demo", prompt=f"{prompt} ship", max_tokens=1)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) >= 8


WRONG = [
    ({"n": 0}, "n must be at least 1"),
    ({"n": 129}, "at most 128"),
    ({"temperature": -1.0}, "temperature"),
    ({"max_tokens": -5}, "num_predict"),
    ({"top_p": 2.0}, "top_p"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"reasoning_effort": "immense"}, "reasoning_effort"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
    ({"messages": [{"role": "user", "content": "word " * 5000}]}, "context"),
    ({"functions": [{}]}, "functions"),
    ({"keep_alive": "soon"}, "keep_alive"),
    ({"seed": 1.5}, "seed"),
]


@pytest.mark.parametrize(("change", "named"), WRONG)
def test_what_cannot_be_done_is_refused_by_name(server: HttpServer, change: dict[str, object], named: str) -> None:
    asked = {"model": "demo", "messages": HI, "max_tokens": 3} | change
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=asked)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert named in error["message"] and error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"\xff", b'{"model": 5}', b"NaN", b"[" * 100_000, b'{"model":"demo","n":1e999}']
)
def test_bodies_that_are_no_request(server: HttpServer, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_keys(demo: StoredModel) -> None:
    with live_server(demo, keys=("secret",)) as server:
        assert httpx.get(f"{server.url}/health").status_code == 200
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").models.list()
        assert list(openai.OpenAI(base_url=f"{server.url}/v1", api_key="secret").models.list())


def test_metrics(server: HttpServer, client: openai.OpenAI) -> None:
    def generated() -> float:
        text = httpx.get(f"{server.url}/metrics").text
        return float(text.split('moeinf_tokens_total{kind="generated"}')[1].split()[0])

    client.completions.create(model="demo", prompt=PROMPT, max_tokens=1)
    before = generated()
    client.completions.create(model="demo", prompt=PROMPT, max_tokens=7)
    assert generated() == before + 7
    text = httpx.get(f"{server.url}/metrics").text
    assert (
        'kind="draft_accepted"' in text
        and 'moeinf_model_loaded{model="demo:latest"} 1.0' in text
        and re.search(r'moeinf_kept_prompt_bytes\{model="demo:latest"\} \d', text)
        and "moeinf_waiting_requests 0.0" in text
    )


def test_a_client_that_hangs_up_ends_its_answer(server: HttpServer) -> None:
    asked = {"model": "demo", "prompt": PROMPT, "max_tokens": 2000, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=asked) as answer:
        next(answer.iter_lines())
    after = httpx.post(f"{server.url}/v1/completions", json=asked | {"max_tokens": 1, "stream": False}, timeout=60)
    assert after.status_code == 200
    text = httpx.get(f"{server.url}/metrics").text
    assert 'moeinf_answers_total{outcome="cancelled"}' in text
