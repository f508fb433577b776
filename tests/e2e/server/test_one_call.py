"""A client that wants one call a turn gets it as soon as it is whole, from a model that would go on calling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.caller import ARGUMENTS, LOOK_UP, SAYS, TEMPLATE
from tests.support.live_server import live_server
from tests.support.speaker import write_speaker

TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
ASKED = [{"role": "user", "content": "hi"}]
MOST = 60  # tokens, of which a call has eight


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("calls")
    says = {**SAYS, "</tool_call>": "<tool_call>"}
    pull(str(write_speaker(folder / "calls", says, TEMPLATE, TAGS)), home=folder / "home")
    with live_server(Library(folder / "home")) as running:
        yield running


def asked(server: HttpServer, path: str, **body: Any) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}{path}", json={"model": "calls", **body}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_of_chat_completions(server: HttpServer) -> None:
    body = {"messages": ASKED, "tools": [LOOK_UP], "max_tokens": MOST}
    many = asked(server, "/v1/chat/completions", **body)["choices"][0]
    assert many["finish_reason"] == "length" and len(many["message"]["tool_calls"]) > 2
    one = asked(server, "/v1/chat/completions", **body, parallel_tool_calls=False)
    (choice,) = one["choices"]
    assert choice["finish_reason"] == "tool_calls" and len(choice["message"]["tool_calls"]) == 1
    assert one["usage"]["completion_tokens"] < MOST / 2


def test_of_messages(server: HttpServer) -> None:
    tool = {"name": "look_up", "input_schema": LOOK_UP["function"]["parameters"]}
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    one = asked(server, "/v1/messages", messages=ASKED, tools=[tool], tool_choice=choice, max_tokens=MOST)
    assert one["stop_reason"] == "tool_use"
    assert [block["input"] for block in one["content"] if block["type"] == "tool_use"] == [ARGUMENTS]


def test_of_responses(server: HttpServer) -> None:
    tool = {"type": "function", **LOOK_UP["function"]}
    body = {"input": "hi", "tools": [tool], "parallel_tool_calls": False, "max_output_tokens": MOST}
    one = asked(server, "/v1/responses", **body)
    assert one["status"] == "completed"
    assert [item["status"] for item in one["output"] if item["type"] == "function_call"] == ["completed"]
