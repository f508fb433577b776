"""Budgets of thoughts, by whichever name a client of OpenAI's or Anthropic's API gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from tests.support.live_server import live_server
from tests.support.thinker import write_thinker

HI = [{"role": "user", "content": "Hello"}]
NAMES: list[Any] = [
    *("thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_budget"),
    ("reasoning", "max_tokens"),
    ("thinking", "budget_tokens"),
]
THOUGHTS = {0: "", 1: "Let", 2: "Let me", 3: "Let me see", 1024: "Let me see", -1: "Let me see"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("thinker")
    with live_server(pull(str(write_thinker(folder / "thinker")), home=folder / "home")) as running:
        yield running


def budgeted(name: Any, budget: int) -> dict[str, Any]:
    if isinstance(name, str):
        return {name: budget}
    return {name[0]: {name[1]: budget, **({"type": "enabled"} if name[0] == "thinking" else {})}}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", THOUGHTS)
def test_of_openais_api(server: HttpServer, name: Any, budget: int) -> None:
    body = {"model": "thinker", "messages": HI, "max_tokens": 40, **budgeted(name, budget)}
    message = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
    assert message.get("reasoning_content", "") == THOUGHTS[budget]
    assert message["content"] == "Hello there"


@pytest.mark.parametrize("budget", [each for each in THOUGHTS if each >= 0])
def test_of_anthropics(server: HttpServer, budget: int) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body = {"model": "thinker", "messages": HI, "max_tokens": 40, "thinking": thinking}
    content = httpx.post(f"{server.url}/v1/messages", json=body, timeout=60).json()["content"]
    assert [block["thinking"] for block in content if block["type"] == "thinking"] == (
        [THOUGHTS[budget]] if budget else []
    )
    assert content[-1] == {"type": "text", "text": "Hello there"}


def test_two_budgets_that_differ_are_refused_by_name(server: HttpServer) -> None:
    body = {"model": "thinker", "messages": HI, "thinking_budget": 1, "reasoning": {"max_tokens": 2}}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert refused.status_code == 400 and "thinking_budget and reasoning.max_tokens" in refused.text
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"thinking_budget": -2}, timeout=60)
    assert refused.status_code == 400 and "thinking_budget" in refused.text


def test_thoughts_can_be_kept_back(server: HttpServer) -> None:
    for more in ({"include_reasoning": False}, {"reasoning": {"exclude": True}}):
        body = {"model": "thinker", "messages": HI, "max_tokens": 40, **more}
        whole = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
        assert whole == {"role": "assistant", "content": "Hello there"}
        text = httpx.post(f"{server.url}/v1/chat/completions", json=body | {"stream": True}, timeout=60).text
        assert "reasoning" not in text and "Hello" in text


@pytest.mark.parametrize(
    ("more", "thought"),
    [
        ({"enable_thinking": False}, ""),
        ({"thinking": {"type": "disabled"}}, ""),
        ({"reasoning": {"enabled": False}}, ""),
        ({"reasoning": {"effort": "none"}}, ""),
        ({"reasoning_effort": "none", "enable_thinking": False}, ""),
        ({"enable_thinking": True}, "Let me see"),
        ({"thinking": {"type": "enabled"}}, "Let me see"),
        ({"thinking": {"type": "auto"}}, "Let me see"),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, "Let me see"),
        ({"reasoning": {"enabled": True}}, "Let me see"),
    ],
)
def test_every_switch_of_thoughts_is_obeyed(server: HttpServer, more: dict[str, Any], thought: str) -> None:
    body = {"model": "thinker", "messages": HI, "max_tokens": 40, **more}
    message = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"]) == (thought, "Hello there")


@pytest.mark.parametrize(
    "more",
    [
        {"enable_thinking": True, "thinking": {"type": "disabled"}},
        {"reasoning_effort": "none", "enable_thinking": True},
        {"reasoning_effort": "high", "reasoning": {"enabled": False}},
        {"reasoning_effort": "high", "reasoning": {"effort": "low"}},
    ],
)
def test_a_yes_beside_a_no_is_refused(server: HttpServer, more: dict[str, Any]) -> None:
    body = {"model": "thinker", "messages": HI, "max_tokens": 40, **more}
    refused = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert refused.status_code == 400, refused.text
