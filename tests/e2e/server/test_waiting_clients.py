"""Clients of the three APIs wait behind a long answer: they are told their place, and choke on nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import anthropic
import httpx
import ollama
import openai
import pytest

from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server

WORDS = "Once upon a time"
LONG = {"model": "demo", "prompt": WORDS, "raw": True, "stream": False}


@pytest.fixture
def busy(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """A server that makes one answer at a time, and has a long one to make."""
    monkeypatch.setattr("moeinf.server.http.HOLD_S", 0.2)
    monkeypatch.setattr("moeinf.server.http.LOOK_S", 0.05)
    monkeypatch.setattr("moeinf.server.turns.job.LOOK_S", 0.05)
    with live_server(demo, parallel=1) as server:
        options = {"num_predict": 2000, "ignore_eos": True}
        asked = threading.Thread(
            target=lambda: httpx.post(f"{server.url}/api/generate", json={**LONG, "options": options}, timeout=60)
        )
        asked.start()
        deadline = time.monotonic() + 30
        while [each.state for each in server.worker.view.requests()] != ["decode"]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield server
        asked.join()


def test_each_client_gets_its_answer_and_a_place_before(busy: HttpServer) -> None:
    said = dict[str, str]()

    def by_openai() -> None:
        with openai.OpenAI(base_url=f"{busy.url}/v1", api_key="any", max_retries=0) as client:
            stream = client.completions.create(model="demo", prompt=WORDS, max_tokens=5, temperature=0, stream=True)
            said["openai"] = "".join(chunk.choices[0].text for chunk in stream)

    def by_anthropic() -> None:
        with (
            anthropic.Anthropic(base_url=busy.url, api_key="any", max_retries=0) as client,
            client.messages.stream(
                model="demo", max_tokens=5, messages=[{"role": "user", "content": WORDS}], extra_body={"temperature": 0}
            ) as stream,
        ):
            said["anthropic"] = "".join(stream.text_stream)

    def by_ollama() -> None:
        pieces = ollama.Client(busy.url).generate(
            "demo", WORDS, raw=True, stream=True, options={"num_predict": 5, "temperature": 0}
        )
        said["ollama"] = "".join(piece.response or "" for piece in pieces)

    def by_hand() -> None:
        asked = {"model": "demo", "prompt": WORDS, "max_tokens": 5, "temperature": 0, "stream": True}
        with httpx.stream("POST", f"{busy.url}/v1/completions", json=asked, timeout=60) as answer:
            said["position"] = answer.headers["x-queue-position"]
            said["lines"] = answer.read().decode()

    threads = [threading.Thread(target=each) for each in (by_openai, by_anthropic, by_ollama, by_hand)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while busy.worker.view.waiting < len(threads):
        assert busy.worker.view.running and time.monotonic() < deadline
        time.sleep(0.01)
    told = httpx.get(f"{busy.url}/api/ps").json()
    assert [each["state"] for each in told["moeinf"]["requests"]] == ["decode", *["queued"] * 4]
    assert [each["position"] for each in told["moeinf"]["requests"]] == [None, 1, 2, 3, 4]
    assert told["models"][0]["moeinf"]["waiting"] == 4
    for thread in threads:
        thread.join()
    assert said["openai"] == said["ollama"] == said["anthropic"] != ""
    comments = [line for line in said["lines"].splitlines() if line.startswith(": queued position=")]
    assert comments and comments[0].startswith(f": queued position={said['position']}")
    chunks = [line.removeprefix("data: ") for line in said["lines"].splitlines() if line.startswith("data: {")]
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks) == said["openai"]
