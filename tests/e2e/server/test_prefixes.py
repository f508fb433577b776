"""A server keeps the beginnings of prompts: of several conversations, and over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from tests.support.live_server import live_server

STORY = "Once upon a time, in a village by the sea, there was a fisherman who said to his wife: " * 3
OTHER = "The quick brown fox jumps over the lazy dog, and the dog sleeps in the sun all day long. " * 3


def answer(url: str, prompt: str) -> dict[str, Any]:
    body = {"model": "demo", "prompt": prompt, "raw": True, "stream": False, "options": {"num_predict": 4, "seed": 1}}
    response = httpx.post(f"{url}/api/generate", json=body, timeout=120)
    assert response.status_code == 200, response.text
    values: dict[str, Any] = response.json()
    return values


def test_conversations_by_turns_and_after_a_restart(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(), home=tmp_path)
    config = RuntimeConfig.of(device="cpu", prefix_disk="64MB")
    with live_server(stored, config=config, parallel=1) as server:
        first = answer(server.url, STORY)
        assert first["moeinf"]["cached_from"] == "" and first["moeinf"]["cached_tokens"] == 0
        answer(server.url, OTHER)
        again = answer(server.url, STORY)
        assert again["moeinf"]["cached_from"] == "memory" and again["response"] == first["response"]
        shown = httpx.get(f"{server.url}/api/ps").json()["models"][0]["moeinf"]["config"]
        assert shown == {"device": "cpu", "prefix_disk": "64MB"}
    with live_server(stored, config=config, parallel=1) as server:
        later = answer(server.url, STORY)
        assert later["moeinf"]["cached_from"] == "disk" and later["response"] == first["response"]
        assert later["moeinf"]["cached_tokens"] == again["moeinf"]["cached_tokens"] > 64
