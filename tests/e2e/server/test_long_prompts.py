"""A prompt of megabytes holds nobody up: one that cannot fit is refused by its length, others end with their client."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from moeinf.server import http
from moeinf.server.serve import HttpServer

LONG = "a" * 3_000_000  # one word: its pieces are joined pair by pair
CHAT = {"messages": [{"role": "user", "content": LONG}]}
ROUTES: list[tuple[str, dict[str, Any]]] = [
    ("/api/generate", {"prompt": LONG, "raw": True}),
    ("/api/chat", CHAT),
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/chat/completions", CHAT),
    ("/v1/messages", CHAT | {"max_tokens": 3}),
]


@pytest.mark.parametrize(("path", "asked"), ROUTES)
@pytest.mark.parametrize("waits", [False, True])
def test_what_cannot_fit_is_refused_by_its_length(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, path: str, asked: dict[str, Any], waits: bool
) -> None:
    """waits: for its turn, for longer than a stream may be silent."""
    if waits:
        monkeypatch.setattr(http, "HOLD_S", 0.0)
    answer = httpx.post(f"{server.url}{path}", json={"model": "demo", "stream": True} | asked, timeout=60)
    said = answer.json()["error"]
    message = said if isinstance(said, str) else said["message"]
    assert answer.status_code == 400
    known = ("prompt is too long", "This model's maximum context length is ")
    assert "at least" in message or message.startswith(known), message


def test_counting_ends_with_its_client(server: HttpServer) -> None:
    whole = {"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": "a" * 15_000_000}]}
    count = f"{server.url}/v1/messages/count_tokens"
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(count, json=whole, timeout=httpx.Timeout(60, read=2))
    hi = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(count, json=hi, timeout=20).json()["input_tokens"] < 9
