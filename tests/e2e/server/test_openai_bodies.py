"""Whatever a body holds, each route of OpenAI's API answers in its form, and never with a fault of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.store.library import StoredModel
from tests.support.any_json import ANYTHING
from tests.support.live_server import live_server

EXAMPLES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
CONTENT = st.text(max_size=20) | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=9)}))
CALL = st.fixed_dictionaries(
    {"function": ANYTHING | st.fixed_dictionaries({"name": st.just("f") | ANYTHING, "arguments": ANYTHING})},
    optional={"id": ANYTHING, "type": st.just("function") | ANYTHING},
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"]) | ANYTHING},
    optional={
        "content": CONTENT | ANYTHING,
        "reasoning_content": ANYTHING,
        "tool_calls": ANYTHING | st.lists(CALL, max_size=2),
        "function_call": ANYTHING | st.fixed_dictionaries({"name": ANYTHING, "arguments": ANYTHING}),
        "tool_call_id": ANYTHING,
        "name": ANYTHING,
        "refusal": ANYTHING,
    },
)
SAMPLING = {
    "stream": st.booleans() | ANYTHING,
    "stream_options": st.just({"include_usage": True}) | ANYTHING,
    "max_tokens": st.integers(-1, 9) | st.sampled_from([2**63, 10**9]) | ANYTHING,
    "temperature": st.floats(-1, 3) | ANYTHING,
    "top_p": st.floats(-1, 2) | ANYTHING,
    "top_k": st.integers(-5, 2**40) | ANYTHING,
    "min_p": ANYTHING,
    "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=3) | ANYTHING,
    "seed": st.integers(-5, 2**64) | ANYTHING,
    "frequency_penalty": st.floats(-3, 3) | ANYTHING,
    "presence_penalty": ANYTHING,
    "repeat_penalty": ANYTHING,
    "logit_bias": st.dictionaries(st.text("0123456789-", max_size=5), st.floats(-200, 200), max_size=3) | ANYTHING,
    "n": st.integers(-1, 2) | st.just(10**9) | ANYTHING,
    "user": ANYTHING,
    "keep_alive": st.sampled_from(["5m", 0, -1]) | ANYTHING,
    "unheard_of": ANYTHING,
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]) | ANYTHING,
    "structured_outputs": ANYTHING | st.dictionaries(st.sampled_from(["json", "regex", "choice", "grammar"]), ANYTHING),
    "guided_json": ANYTHING,
    "guided_choice": ANYTHING,
    "grammar": ANYTHING,
    "regex": ANYTHING,
}
CHAT = {
    "max_completion_tokens": st.integers(-1, 9) | ANYTHING,
    "reasoning_effort": st.sampled_from(["none", "low", "high"]) | ANYTHING,
    "chat_template_kwargs": ANYTHING,
    "tools": ANYTHING,
    "tool_choice": st.sampled_from(["auto", "none", "required"]) | ANYTHING,
    "reasoning": ANYTHING | st.dictionaries(st.sampled_from(["effort", "enabled", "exclude"]), ANYTHING),
    "thinking": ANYTHING | st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled"])}),
    "enable_thinking": ANYTHING,
    "continue_final_message": ANYTHING,
    "add_generation_prompt": ANYTHING,
    "logprobs": st.booleans() | ANYTHING,
    "top_logprobs": st.integers(-1, 30) | ANYTHING,
    "functions": ANYTHING,
    "modalities": ANYTHING,
    "audio": ANYTHING,
}
MODELS = st.sampled_from(["demo", "demo:latest"]) | ANYTHING
CHATS = st.fixed_dictionaries(
    {"model": MODELS, "messages": st.lists(MESSAGE, min_size=1, max_size=3) | ANYTHING}, optional=SAMPLING | CHAT
)
TEXTS = st.fixed_dictionaries(
    {"model": MODELS, "prompt": st.text(max_size=20) | ANYTHING},
    optional=SAMPLING | {name: ANYTHING for name in ("suffix", "echo", "best_of", "logprobs")},
)


@pytest.fixture(scope="module")
def client(demo: StoredModel) -> Iterator[httpx.Client]:
    """A short context keeps answers short."""
    with (
        live_server(demo, config=RuntimeConfig.of(device="cpu", context=32)) as server,
        httpx.Client(base_url=f"{server.url}/v1", timeout=60) as client,
    ):
        yield client


def check(response: httpx.Response) -> None:
    assert response.status_code < 500, response.text
    if "event-stream" in response.headers.get("content-type", ""):
        data = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        assert data[-1] == "[DONE]" or "error" in json.loads(data[-1]), response.text
    elif response.status_code == 200:
        assert response.json()["choices"][0]["finish_reason"] in ("stop", "length", "tool_calls")
    else:
        error = response.json()["error"]
        assert error["message"] and error["type"]


@EXAMPLES
@given(CHATS | ANYTHING)
def test_chats(client: httpx.Client, body: Any) -> None:
    check(client.post("/chat/completions", json=body))


@EXAMPLES
@given(TEXTS | ANYTHING)
def test_texts(client: httpx.Client, body: Any) -> None:
    check(client.post("/completions", json=body))


@EXAMPLES
@given(st.binary(max_size=40))
def test_bytes(client: httpx.Client, body: bytes) -> None:
    for route in ("/chat/completions", "/completions", "/embeddings"):
        response = client.post(route, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 400 and response.json()["error"]["message"]
