"""/api/pull of a repository, from a server that speaks the Hub's API: stopped by its client, and gone on with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import httpx
import ollama
import pytest

from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from moeinf.store.verify import verify
from tests.support.checkpoints import write_checkpoint
from tests.support.hub_server import REPO, Hub, point_client_at, serving
from tests.support.live_server import live_server


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(write_checkpoint(tmp_path / "checkpoint")) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        yield served


@pytest.fixture
def server(hub: Hub, tmp_path: Path) -> Iterator[HttpServer]:
    with live_server(Library(tmp_path / "home")) as running:
        yield running


def stuck(server: HttpServer, hub: Hub) -> Generator[str, None, None]:
    """The lines of a pull, up to where the Hub hangs in the middle of a shard; closing it hangs up."""
    hub.faults["hang"] = 1
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": REPO}, timeout=60) as answer:
        read = answer.iter_lines()  # closing it would hang up
        for line in read:
            yield line
            if "digest" in json.loads(line):
                break
        while hub.faults["hang"]:
            time.sleep(0.01)
        time.sleep(0.5)  # until what the Hub has sent is written
        while True:
            yield ""


def pulling() -> bool:
    return any(thread.name == "pull" for thread in threading.enumerate())


def test_a_client_that_goes_stops_the_pull_and_the_next_goes_on(server: HttpServer, hub: Hub, tmp_path: Path) -> None:
    lines = stuck(server, hub)
    assert json.loads(next(lines)) == {"status": "pulling manifest"}
    while next(lines):
        pass
    sent = hub.sent_bytes(".safetensors")
    lines.close()
    last = [step.status for step in ollama.Client(server.url).pull(REPO, stream=True)][-1]
    assert last == "success"
    weights = sum(path.stat().st_size for path in (tmp_path / "checkpoint").glob("*.safetensors"))
    assert hub.sent_bytes(".safetensors") - sent < weights, "what was there is not fetched again"
    model = Library(tmp_path / "home").find(REPO)
    assert verify(model) == []
    assert model.id == pull(REPO, home=tmp_path / "other").id


def test_a_pull_that_waits_for_a_silent_hub_stops_with_its_client(server: HttpServer, hub: Hub) -> None:
    lines = stuck(server, hub)
    while next(lines) or not pulling():
        pass
    lines.close()
    for _ in range(200):  # far less than the Hub would be silent
        if not pulling():
            break
        time.sleep(0.05)
    assert not pulling()


def test_two_at_once_is_one_line(server: HttpServer, hub: Hub) -> None:
    lines = stuck(server, hub)
    while next(lines):
        pass
    for name, told in ((REPO, REPO), ("demo", "another model")):
        refused = httpx.post(f"{server.url}/api/pull", json={"model": name})
        assert refused.status_code == 503 and refused.headers["retry-after"]
        assert refused.json() == {"error": f"{told} is being pulled already; ask again when that has ended"}
    lines.close()
