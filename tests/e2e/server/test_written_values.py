"""Whatever a model writes into a call is a value that every API writes out, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from tests.support.caller import SAYS, TEMPLATE
from tests.support.live_server import live_server
from tests.support.speaker import write_speaker

VALUES = ['"\\ud83d"', '"\\udc00x\\ud83d\\ude00"', "1e400", "-1e999", "9" * 5000, "1e-400", "[9e999,{}]", '"\\u0000"']
WRITTEN = "{" + ",".join(f'"v{at}":{value}' for at, value in enumerate(VALUES)) + "}"
PARAMETERS = {"type": "object"}
HI = [{"role": "user", "content": "Tell"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    says = {**SAYS, '"arguments":': WRITTEN, WRITTEN: "}", "}": "</tool_call>"}
    folder = tmp_path_factory.mktemp("writer")
    tags = ("<think>", "</think>", "<tool_call>", "</tool_call>")
    with live_server(
        pull(str(write_speaker(folder / "writer", says, TEMPLATE, tags)), home=folder / "home")
    ) as running:
        yield running


def checked(arguments: Any) -> None:
    """The values, as a client that takes JSON alone reads them."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, allow_nan=False)
    read = msgspec.json.decode(text.encode())
    assert set(read) == {f"v{at}" for at in range(len(VALUES))}
    assert (read["v0"], read["v1"]) == ("\ufffd", "\ufffdx\U0001f600")
    json.dumps(read, allow_nan=False).encode()


@pytest.mark.parametrize("stream", [False, True])
def test_openai(server: HttpServer, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}
    body = {"model": "writer", "messages": HI, "tools": [tool], "stream": stream}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not stream:
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        checked(call["function"]["arguments"])
        return
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
    checked("".join(call["function"]["arguments"] for call in calls))
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(server: HttpServer, stream: bool) -> None:
    tool = {"name": "look_up", "input_schema": PARAMETERS}
    body = {"model": "writer", "messages": HI, "tools": [tool], "stream": stream, "max_tokens": 50}
    answer = httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if not stream:
        checked(answer.json()["content"][-1]["input"])
        return
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    checked("".join(delta.get("partial_json", "") for delta in deltas))
    assert events[-1]["type"] == "message_stop"


@pytest.mark.parametrize("stream", [False, True])
def test_ollama(server: HttpServer, stream: bool) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": PARAMETERS}}
    body = {"model": "writer", "messages": HI, "tools": [tool], "stream": stream}
    answer = httpx.post(f"{server.url}/api/chat", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines()]
    (call,) = [call for line in lines for call in line["message"].get("tool_calls", ())]
    checked(call["function"]["arguments"])
    assert lines[-1]["done"]
