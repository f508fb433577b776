"""What a name means is the same in every command and on every route."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from moeinf.cli import run_command
from moeinf.config import RuntimeConfig
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library, StoredModel
from tests.support.live_server import live_server

STORED = ("demo:latest", "Cats:latest", "tagged:q8_0", "ns/Name:latest", "host:5000/ns/name:v1")
MEANT = {
    "demo": "demo:latest",
    "DEMO:latest": "demo:latest",
    "library/demo": "demo:latest",
    "registry.ollama.ai/library/demo:latest": "demo:latest",
    "cats": "Cats:latest",
    "Cats": "Cats:latest",
    "tagged": "tagged:q8_0",
    "Tagged:Q8_0": "tagged:q8_0",
    "ns/name": "ns/Name:latest",
    "registry.ollama.ai/ns/Name": "ns/Name:latest",
    "host:5000/ns/name:v1": "host:5000/ns/name:v1",
    "Host:5000/NS/name": "host:5000/ns/name:v1",
}
UNKNOWN = ("demo:other", "other", "cats:q8_0", "ns/other", "host:5000/ns/name:v2", "host:1/ns/name", "../demo", "a:b:c")


@pytest.fixture
def server(demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpServer]:
    """With a store of its own."""
    library = Library(tmp_path / "home")
    shutil.copytree(demo.path, library.home / "models" / demo.id)
    with library.lock():
        for name in STORED:
            library.bind(name, demo.id, f'{{"system": "{name}", "options": []}}')
    monkeypatch.setenv("MOEINF_HOME", str(library.home))
    stored = library.find("demo")
    with live_server(stored, config=RuntimeConfig.of(device="cpu", context=128)) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        yield running


def test_every_route_finds_what_a_name_means(server: HttpServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for name, full in MEANT.items():
            assert client.get(f"/v1/models/{quote(name, safe='/:')}").json()["id"] == full, name
            assert client.get(f"/v1/models/{quote(name, safe='')}").json()["id"] == full, name
            assert client.post("/api/show", json={"model": name}).json()["system"] == full, name
            count = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
            assert client.post("/v1/messages/count_tokens", json=count).status_code == 200, name
        for name in list(MEANT)[::3]:
            body = {"model": name, "prompt": "a", "stream": False, "options": {"num_predict": 1}}
            assert client.post("/api/generate", json=body).status_code == 200, name
            assert (
                client.post("/v1/completions", json={"model": name, "prompt": "a", "max_tokens": 1}).status_code == 200
            )
        for name in UNKNOWN:
            assert client.post("/api/show", json={"model": name}).status_code == 404, name
            assert client.post("/v1/completions", json={"model": name, "prompt": "a"}).status_code == 404, name
        copied = client.post("/api/copy", json={"source": "Tagged", "destination": "localhost:11434/me/Copy"})
        assert copied.status_code == 200
        assert client.post("/api/show", json={"model": "localhost:11434/me/copy"}).json()["system"] == "tagged:q8_0"
        assert client.request("DELETE", "/api/delete", json={"model": "localhost:11434/me/copy"}).status_code == 200
        assert client.post("/api/show", json={"model": "localhost:11434/me/copy"}).status_code == 404
        names = [each["name"] for each in client.get("/api/tags").json()["models"]]
        assert sorted(names) == sorted(STORED)


def test_every_command_finds_what_a_name_means(
    server: HttpServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def printed(*words: str) -> str:
        capfd.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO()))
        assert run_command(list(words)) == 0, words
        return capfd.readouterr().out

    for name, full in MEANT.items():
        assert json.loads(printed("show", name, "--json"))["name"] == full
    for name in list(MEANT)[::4]:
        assert json.loads(printed("run", name, "a", "-n", "1", "--json", "-q", "--raw"))["model"] == MEANT[name]
    for name in UNKNOWN:
        assert run_command(["show", name]) != 0
    for name in list(MEANT)[1::3]:
        body = {"model": name, "prompt": "a", "stream": False, "options": {"num_predict": 1}}
        assert httpx.post(f"{server.url}/api/generate", json=body, timeout=60).status_code == 200
        printed("stop", name)
        assert json.loads(printed("ps", "--json")) == []
    printed("cp", "host:5000/ns/name", "a/b")
    assert printed("show", "A/B", "--system") == "host:5000/ns/name:v1\n"
    listed = {each["name"] for each in json.loads(printed("list", "--json"))}
    assert listed == {*STORED, "a/b:latest"}
    for name in ("A/b", "CATS", "library/demo", "tagged", "ns/name", "host:5000/ns/name"):
        printed("rm", name)
    assert json.loads(printed("list", "--json")) == []
