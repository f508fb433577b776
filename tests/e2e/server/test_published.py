"""The requests that the makers of the three APIs publish, answered or refused; the streams, told as they tell them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest

from moeinf.server.serve import HttpServer
from tests.support.caller import LOOK_UP
from tests.support.live_server import server_of_callers

FIXTURES = Path(__file__).parent / "fixtures"
NAMED = ("/api/copy", "/api/delete", "/api/create")  # whose names are not those of a model that answers
Json = dict[str, Any]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with server_of_callers(tmp_path_factory.mktemp("published")) as running:
        yield running


def requests() -> Iterator[Any]:
    for api in ("openai", "anthropic", "ollama"):
        for number, asked in enumerate(json.loads((FIXTURES / f"{api}_requests.json").read_text())):
            yield pytest.param(api, asked, id=f"{api}-{number}")


def bounded(api: str, body: Json | None, path: str) -> Json | None:
    """The body for `demo:chat`, with an end to the answer where it is asked for one."""
    if body is None or path in NAMED or "model" not in body:
        return body
    body = body | {"model": "demo:chat"}
    if api == "ollama" and path in ("/api/chat", "/api/generate"):
        return body | {"options": body.get("options", {}) | {"num_predict": 8}}
    return body | ({"max_tokens": 8} if path.startswith("/v1") and not path.endswith("count_tokens") else {})


@pytest.mark.parametrize(("api", "asked"), list(requests()))
def test_each_request_is_answered_or_refused_in_form(published: HttpServer, api: str, asked: Json) -> None:
    body = bounded(api, asked["body"], asked["path"])
    answer = httpx.request(asked["method"], f"{published.url}{asked['path']}", json=body, timeout=60)
    if asked["refused"] is None:
        assert answer.status_code == 200, answer.text
        assert not re.search(r'"error": *[{"]', answer.text), answer.text  # an answer may have the word
        return
    told = answer.json()
    assert answer.status_code == (404 if "not found" in asked["refused"] else 400)
    error = told["error"] if api == "ollama" else told["error"]["message"]
    assert asked["refused"] in error
    if api == "openai":
        assert set(told["error"]) == {"message", "type", "param", "code"}
    if api == "anthropic":
        assert (told["type"], set(told["error"])) == ("error", {"type", "message"})


def events_of(text: str) -> list[Json]:
    """The data of server-sent events, in order; `[DONE]` as {"done": True}."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [{"done": True} if each == "[DONE]" else json.loads(each) for each in data]


def paths(value: Any, at: str = "") -> Iterator[str]:
    """The name of every field, with those that it stands in."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{at}.{name}".lstrip(".")
            yield from paths(inner, f"{at}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, at)


def names(events: Iterable[Json], leaves: Sequence[str]) -> set[str]:
    """The fields of these events, but for those in `leaves` and below them."""
    found = {path for event in events for path in paths(event)}
    return {path for path in found if not any(path == leaf or path.startswith(f"{leaf}.") for leaf in leaves)}


def order(kinds: Iterable[str]) -> list[str]:
    return [kind for kind, _ in groupby(kinds)]


def streamed(server: HttpServer, path: str, **asked: Any) -> str:
    answer = httpx.post(f"{server.url}{path}", json=asked | {"stream": True}, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def openai_kinds(events: Iterable[Json]) -> Iterator[str]:
    """What each chunk brings, in the order of its fields."""
    for event in events:
        if event.get("usage") or event == {"done": True}:
            yield "usage" if event.get("usage") else "[DONE]"
            continue
        (choice,) = event["choices"]
        yield from (name for name, value in choice["delta"].items() if value)
        if choice["finish_reason"]:
            yield f"finish_reason {choice['finish_reason']}"


HI = [{"role": "user", "content": "Tell me of a dog."}]
OURS = ("moeinf", "choices.delta.reasoning", "choices.delta.reasoning_content", "usage.prompt_tokens_details")
THEIRS = ("system_fingerprint", "choices.delta.refusal")  # said of no model here
USAGE = {"stream_options": {"include_usage": True}, "temperature": 0}


@pytest.mark.parametrize(
    ("fixture", "asked"),
    [
        ("openai_text", {"model": "demo:chat", "messages": HI}),
        ("openai_logprobs", {"model": "demo:chat", "messages": HI, "logprobs": True}),
        ("openai_tool_call", {"model": "caller", "messages": HI, "tools": [LOOK_UP]}),
    ],
)
def test_chunks_of_openai(published: HttpServer, fixture: str, asked: Json) -> None:
    theirs = events_of((FIXTURES / f"{fixture}.sse").read_text())
    ours = events_of(streamed(published, "/v1/chat/completions", **asked, **USAGE))
    said = [kind for kind in openai_kinds(ours) if not kind.startswith("reasoning")]
    if asked["model"] == "caller":
        said.remove("content")  # it says a word before it calls
        ours = [event for event in ours if not (event.get("choices") or [{}])[0].get("delta", {}).get("content")]
        theirs = json.loads(json.dumps(theirs).replace('"content": null, ', ""))
    assert order(said) == order(openai_kinds(theirs))
    assert names(ours, OURS) == names(theirs, THEIRS)


def anthropic_blocks(events: Sequence[Json]) -> dict[str, list[str]]:
    """The events of a message and of each kind of block, in order."""
    blocks: dict[str, list[str]] = {"message": []}
    kind = "message"
    for event in events:
        if event["type"] == "content_block_start":
            kind = event["content_block"]["type"]
            blocks[kind] = []
        if event["type"] != "ping":
            blocks[kind].append(f"{event['type']} {event.get('delta', {}).get('type', '')}")
        if event["type"] == "content_block_stop":
            kind = "message"
    return {kind: order(told) for kind, told in blocks.items()}


# Of Anthropic's own machines, and of the members that its newer models add.
ANTHROPIC_ONLY = (
    *("message.usage.service_tier", "message.usage.inference_geo", "message.usage.cache_creation"),
    *("message.stop_details", "delta.stop_details", "usage.iterations", "usage.output_tokens_details"),
    "content_block.caller",
)
COUNTS = (*(f"usage.{name}" for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")),)


def test_events_of_anthropic(published: HttpServer) -> None:
    files = [FIXTURES / f"anthropic_{name}.sse" for name in ("text", "tool_use", "thinking")]
    published_events = [events_of(file.read_text()) for file in files]
    tool = {"name": "look_up", "input_schema": LOOK_UP["function"]["parameters"]}
    ours = events_of(streamed(published, "/v1/messages", model="caller", max_tokens=40, messages=HI, tools=[tool]))
    told = anthropic_blocks(ours)
    assert list(told) == ["message", "thinking", "text", "tool_use"]
    theirs = {kind: blocks for events in published_events for kind, blocks in anthropic_blocks(events).items()}
    assert told == theirs
    of_theirs = names((event for events in published_events for event in events), (*ANTHROPIC_ONLY,))
    assert names(ours, ("moeinf",)) == of_theirs | set(COUNTS)


@pytest.mark.parametrize(
    ("fixture", "path", "asked"),
    [
        ("ollama_generate", "/api/generate", {"model": "demo:chat", "prompt": "Tell me of a dog."}),
        ("ollama_chat", "/api/chat", {"model": "demo:chat", "messages": HI}),
        ("ollama_tool_call", "/api/chat", {"model": "caller", "messages": HI, "tools": [LOOK_UP]}),
    ],
)
def test_lines_of_ollama(published: HttpServer, fixture: str, path: str, asked: Json) -> None:
    *_, piece, last = (json.loads(line) for line in (FIXTURES / f"{fixture}.ndjson").read_text().splitlines())
    lines = [json.loads(line) for line in streamed(published, path, **asked, options={"num_predict": 20}).splitlines()]
    told = [line for line in lines if "moeinf" not in line]
    if asked["model"] == "caller":
        told = [line for line in told if "tool_calls" in line["message"]]
    leaves = ("message.images", "message.tool_calls.function.arguments")
    ours = ("message.tool_calls.id", "message.tool_calls.function.index", "message.tool_calls.function.arguments")
    assert names(told[:1], ours) == names([piece], leaves)
    # `context` is a token list that newer versions have given up; done_reason came later than some of the examples.
    assert names(lines[-1:], ("moeinf", "done_reason")) == names([last], ("context", "done_reason"))
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
