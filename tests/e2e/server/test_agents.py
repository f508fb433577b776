"""What coding agents asked while they edited a file, asked again: fixtures/README.md says how it was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.agents.recorded_requests import read_fixture
from tests.support.agents.scripted_model import ASIDE, call, write_script
from tests.support.live_server import live_server

RECORDED = {path.stem: read_fixture(path) for path in sorted(Path(__file__).parent.glob("fixtures/agents/*.json"))}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """For each agent a model that says what it said then."""
    folder = tmp_path_factory.mktemp("agents")
    for name, (told, _) in RECORDED.items():
        pull(str(write_script(folder / name, told["script"], always=told["always"])), home=folder / "home")
    with live_server(Library(folder / "home")) as running:
        yield running


@pytest.mark.parametrize("agent", RECORDED)
def test_an_agent_is_told_to_edit_its_file_and_that_it_is_done(agent: str, scripted: HttpServer) -> None:
    told, requests = RECORDED[agent]
    script = iter(told["script"])
    for asked in requests:
        body = asked.body | {"model": agent}
        answer = httpx.post(f"{scripted.url}{asked.path}", json=body, headers=asked.headers, timeout=60)
        assert answer.status_code == 200, answer.text
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        answered = READ[asked.path.partition("?")[0]](events or [answer.json()])
        expected = next(script) if "tools" in asked.body or told["always"] else ASIDE
        assert answered.strip() == expected.strip()
    assert next(script, None) is None, "what is recorded ends early"


def test_pi_is_told_of_calls_as_a_small_coder_wrote_them(tmp_path: Path) -> None:
    """A mixture of Qwen2.5-Coder-1.5B-Instruct answered its first request so, and a later one with a tool of no one."""
    _, (asked, *_) = RECORDED["pi"]
    path = "/repository/greet.py"
    edit = {"path": path, "edits": [{"oldText": "Helo", "newText": "Hello"}]}
    wrote = [("read", {"path": path}), ("edit", edit), ("say", {"message": "It is done."})]
    objects = [
        json.dumps({"type": "function", "function": {"name": name, "arguments": given}}, indent=2)
        for name, given in wrote
    ]
    said = "\n".join(["<tools>", *objects, "</tools>"])
    pull(str(write_script(tmp_path / "coder", [said])), home=tmp_path / "home")
    with live_server(Library(tmp_path / "home")) as running:
        body = asked.body | {"model": "coder"}
        answer = httpx.post(f"{running.url}{asked.path}", json=body, headers=asked.headers, timeout=60)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    told: dict[int, list[str]] = {}
    for part in (choice["delta"] for event in events for choice in event["choices"]):
        assert not part.get("content")
        for each in part.get("tool_calls") or []:
            name, arguments = told.setdefault(each["index"], ["", ""])
            function = each["function"]
            told[each["index"]] = [name + (function.get("name") or ""), arguments + function["arguments"]]
    assert [(name, json.loads(given)) for name, given in told.values()] == wrote


def of_chat(events: list[Any]) -> str:
    """Text and calls, as the script writes them; nothing of a stream that does not say why it ended."""
    choices = [choice for event in events for choice in event["choices"]]
    parts = [choice.get("delta") or choice.get("message") or {} for choice in choices]
    text = "".join(part.get("content") or "" for part in parts)
    calls = [each["function"] for part in parts for each in part.get("tool_calls") or []]
    reason = next(choice["finish_reason"] for choice in reversed(choices) if choice["finish_reason"])
    assert reason == ("tool_calls" if calls else "stop")
    if not calls:
        return text
    (name,) = {each["name"] for each in calls if each.get("name")}
    return text + call(name, json.loads("".join(each["arguments"] for each in calls)))


def of_messages(events: list[Any]) -> str:
    named = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    text = "".join(delta.get("text", "") for delta in deltas)
    tools = [block["name"] for block in named if block["type"] == "tool_use"]
    (end,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert end["stop_reason"] == ("tool_use" if tools else "end_turn") and events[-1]["type"] == "message_stop"
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    return text + "".join(call(name, json.loads(arguments)) for name in tools)


def of_responses(events: list[Any]) -> str:
    assert events[-1]["type"] == "response.completed"
    found = ""
    for item in events[-1]["response"]["output"]:
        if item["type"] == "function_call":
            found += call(item["name"], json.loads(item["arguments"]))
        else:
            found += "".join(part["text"] for part in item["content"])
    return found


READ = {"/v1/chat/completions": of_chat, "/v1/messages": of_messages, "/v1/responses": of_responses}
