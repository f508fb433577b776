"""What is known before the first token gives a streamed request a status, too, in the form of each API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from moeinf.server import http
from moeinf.server.serve import HttpServer

LONG = [{"role": "user", "content": "word " * 5000}]
HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look_up", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
BAD: dict[str, Any] = {"type": "no such type"}
OPENAI, ANTHROPIC, OLLAMA = "/v1/chat/completions", "/v1/messages", "/api/chat"

REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    (OPENAI, {"messages": HI, "tools": [TOOL]}, 400, "does not support tools"),
    (OPENAI, {"messages": LONG}, 400, "maximum context length is 2048 tokens"),
    (OPENAI, {"messages": HI, "model": "nobody"}, 404, "not found"),
    (
        OPENAI,
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}},
        400,
        "change the schema",
    ),
    (OPENAI, {"messages": HI, "temperature": -1}, 400, "temperature"),
    ("/v1/completions", {"prompt": "word " * 5000}, 400, "maximum context length is 2048 tokens"),
    (ANTHROPIC, {"messages": HI, "tools": [{"name": "look_up", "input_schema": {}}]}, 400, "does not support tools"),
    (ANTHROPIC, {"messages": LONG}, 400, " tokens > 2048 maximum"),
    (ANTHROPIC, {"messages": HI, "model": "nobody"}, 404, "not found"),
    (ANTHROPIC, {"messages": HI, "output_config": {"format": {"type": "json_schema", "schema": BAD}}}, 400, "schema"),
    (ANTHROPIC, {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "does not think"),
    (OLLAMA, {"messages": HI, "tools": [TOOL]}, 400, "does not support tools"),
    (OLLAMA, {"messages": LONG}, 400, "the context 2048"),
    (OLLAMA, {"messages": HI, "model": "nobody"}, 404, "not found"),
    (OLLAMA, {"messages": HI, "format": BAD}, 400, "change the schema"),
    ("/api/generate", {"prompt": "word " * 5000}, 400, "the context 2048"),
]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("path", "change", "status", "named"), REFUSED)
def test_it_has_a_status(
    server: HttpServer,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    change: dict[str, Any],
    status: int,
    named: str,
    waits: bool,
) -> None:
    """waits: for its turn, for longer than a stream may be silent."""
    if waits:
        monkeypatch.setattr(http, "HOLD_S", 0.0)
    asked = {"model": "demo", "stream": True} | ({} if path.startswith("/api") else {"max_tokens": 2}) | change
    answer = httpx.post(f"{server.url}{path}", json=asked, timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/json")
    told = answer.json()
    message = told["error"] if path.startswith("/api") else told["error"]["message"]
    assert named in message
    if path == ANTHROPIC:
        assert told["type"] == "error" and told["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize("path", [OPENAI, ANTHROPIC, OLLAMA])
def test_what_waits_for_its_turn_begins_before_it(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(http, "HOLD_S", 0.0)
    length: dict[str, Any] = {"options": {"num_predict": 2}} if path == OLLAMA else {"max_tokens": 2}
    asked = {"model": "demo", "stream": True, "messages": HI, **length}
    with httpx.stream("POST", f"{server.url}{path}", json=asked, timeout=60) as answer:
        lines = list(answer.iter_lines())
    assert answer.status_code == 200
    said = lines[0] in (": waiting", "event: ping") or lines[0].startswith(": queued ")  # where it looks sooner
    assert said or '"done":false' in lines[0]
    assert any(each in line for line in lines for each in ("message_stop", "[DONE]", '"done":true'))
