"""What count_tokens says is what the answer counts, for every form of a request, and what the other APIs count."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.preset import Preset
from moeinf.pull.pull import ensure, pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.caller import LOOK_UP, write_caller
from tests.support.live_server import live_server
from tests.support.seeing_models import png, seeing_model
from tests.support.thinker import write_thinker

Json = dict[str, Any]
HI: list[Json] = [{"role": "user", "content": "Tell me of a dog"}]
TOOL: Json = {
    "name": "look_up",
    "description": "Looks a word up",
    "input_schema": LOOK_UP["function"]["parameters"],
    "cache_control": {"type": "ephemeral"},
}
USE = {"type": "tool_use", "id": "t1", "name": "look_up", "input": {"word": "fox"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "red"}], "is_error": True}
CALLED = [*HI, {"role": "assistant", "content": [USE]}, {"role": "user", "content": [RESULT]}]
THINKING = {"type": "thinking", "thinking": "Hm", "signature": ""}
THOUGHT = [*HI, {"role": "assistant", "content": [THINKING, {"type": "text", "text": "Yes"}]}, *HI]
FORMS: list[tuple[str, Json]] = [
    *((name, {}) for name in ("demo:chat", "cat", "caller", "thinker")),
    ("demo:chat", {"system": "Be brief."}),
    ("cat", {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]}),
    ("demo:chat", {"system": "x-anthropic-billing-header: cch=1;\nBe brief."}),
    ("demo:chat", {"messages": [*HI, {"role": "assistant", "content": "Once upon"}]}),
    ("cat", {"messages": [*HI, {"role": "assistant", "content": "Once"}, *HI, {"role": "assistant", "content": ""}]}),
    ("demo:chat", {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
    ("demo:chat", {"cache_control": {"type": "ephemeral"}}),
    ("caller", {"tools": [TOOL]}),
    ("caller", {"tools": [TOOL], "tool_choice": {"type": "none"}}),
    ("caller", {"tools": [TOOL], "tool_choice": {"type": "auto"}}),
    ("caller", {"tools": [TOOL], "messages": CALLED}),
    *(("thinker", {"thinking": {"type": kind}}) for kind in ("disabled", "adaptive")),
    ("thinker", {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
    ("thinker", {"output_config": {"effort": "low"}}),
    ("thinker", {"messages": THOUGHT}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("counting")
    home = folder / "home"
    ensure("demo:chat", home=home)
    for name, write in (("caller", write_caller), ("thinker", write_thinker)):
        pull(str(write(folder / name)), home=home)
    Library(home).copy("demo:chat", "cat", Preset("You are a cat.").dumps())
    with live_server(Library(home)) as running:
        yield running


def counts(server: HttpServer, model: str, asked: Json) -> tuple[int, int]:
    """What is counted before asking, and by the answer."""
    body = {"model": model, "messages": HI} | asked
    counted = httpx.post(f"{server.url}/v1/messages/count_tokens", json=body, timeout=60)
    answer = httpx.post(f"{server.url}/v1/messages", json=body | {"max_tokens": 1}, timeout=60)
    assert (counted.status_code, answer.status_code) == (200, 200), counted.text + answer.text
    usage = answer.json()["usage"]
    return counted.json()["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(("model", "asked"), FORMS)
def test_a_count_is_what_the_answer_counts(server: HttpServer, model: str, asked: Json) -> None:
    counted, used = counts(server, model, asked)
    assert counted == used > 0


def test_a_call_that_is_demanded_changes_no_count(server: HttpServer) -> None:
    told = set()
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "look_up"}):
        body = {"model": "caller", "messages": HI, "tools": [TOOL], "tool_choice": choice}
        told.add(httpx.post(f"{server.url}/v1/messages/count_tokens", json=body, timeout=60).json()["input_tokens"])
    assert len(told) == 1


@pytest.mark.parametrize(("model", "asked"), [form for form in FORMS if set(form[1]) <= {"messages", "tools"}][:7])
def test_the_other_apis_count_the_same(server: HttpServer, model: str, asked: Json) -> None:
    messages = asked.get("messages", HI)
    if any(isinstance(message["content"], list) for message in messages):
        pytest.skip("blocks are Anthropic's")
    tools = {"tools": [LOOK_UP]} if "tools" in asked else {}
    counted, _ = counts(server, model, asked)
    body = {"model": model, "messages": messages, **tools}
    told = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"max_tokens": 1}, timeout=60).json()
    assert told["usage"]["prompt_tokens"] == counted
    more = {"stream": False, "options": {"num_predict": 1}}
    assert httpx.post(f"{server.url}/api/chat", json=body | more, timeout=60).json()["prompt_eval_count"] == counted


@pytest.mark.parametrize("picture_tokens", [None, 4, 16, 64])
@pytest.mark.parametrize("loaded", [False, True])
def test_pictures_count_by_the_servers_own_configuration(
    tmp_path_factory: pytest.TempPathFactory, picture_tokens: int | None, loaded: bool
) -> None:
    stored = seeing_model(tmp_path_factory.mktemp("seeing"), "qwen3_5_moe")
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(png(1)).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
    asked: Json = {"messages": [{"role": "user", "content": content}]}
    config = RuntimeConfig.of(device="cpu", context=300, picture_tokens=picture_tokens)
    with live_server(stored, config=config) as running:
        if loaded:
            httpx.post(f"{running.url}/api/generate", json={"model": "source"}, timeout=60)
        counted, used = counts(running, "source", asked)
        assert counted == used
