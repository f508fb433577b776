"""GET /api/available: the names of models, and the forms of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants

from moeinf.server.serve import HttpServer
from moeinf.store.library import Library
from tests.support.hub_server import Hub
from tests.support.known_models import empty_store
from tests.support.live_server import live_server


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Hub, HttpServer]]:
    with empty_store(tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def hub(both: tuple[Hub, HttpServer]) -> Hub:
    return both[0]


@pytest.fixture
def server(both: tuple[Hub, HttpServer]) -> HttpServer:
    return both[1]


def get(server: HttpServer, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}/api/available{path}", timeout=60)


def test_names_are_those_of_the_command_line(server: HttpServer) -> None:
    names = [each["name"] for each in get(server, "").json()["models"]]
    assert names == ["demo", "mixtral:8x7b", "plain:5m", "story:5m"]


def test_forms_are_told_with_the_name_that_a_pull_takes(server: HttpServer) -> None:
    told = get(server, "/story").json()
    assert told["taken"] == "q8_0" and told["forms"][0]["name"] == "story:q8_0"
    assert any("gone/Story-GGUF" in note for note in told["notes"])
    form = told["forms"][0]
    assert form["resident_share"] == 1 and form["decode_tokens_per_s"] > 0 and form["fits_disk"] and not form["fault"]
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": form["name"]}, timeout=60) as answer:
        assert json.loads(list(answer.iter_lines())[-1]) == {"status": "success"}
    assert get(server, "/story").json() == {"name": "story", "forms": []}, "it is here: no choice is open"


@pytest.mark.parametrize("name", ["org/repo", "nothing", "story:q8_0"])
def test_what_leaves_no_choice_open_has_no_forms(server: HttpServer, name: str) -> None:
    assert get(server, f"/{name}").json() == {"name": name, "forms": []}


def test_a_hub_that_does_not_answer_is_one_line(server: HttpServer, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    answer = get(server, "/story")
    assert answer.status_code >= 400 and "nothing of story can be fetched" in answer.json()["error"]


def test_strangers_of_the_network_are_refused(tmp_path: Path) -> None:
    with live_server(Library(tmp_path / "home"), host="0.0.0.0:0", no_auth=True) as open_to_all:
        port = open_to_all.url.rpartition(":")[2]
        answer = httpx.get(f"http://127.0.0.1:{port}/api/available")
    assert answer.status_code == 403 and "needs a key" in answer.json()["error"]
