"""The commands that talk to a running server."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import ollama
import pytest

from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.cli.commands import Done
from tests.support.live_server import live_server


@pytest.fixture(scope="module")
def server(demo: StoredModel) -> Iterator[HttpServer]:
    with live_server(demo, keys=("the key",)) as running:
        yield running


@pytest.fixture
def ask(server: HttpServer, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command, which finds the server by the variables."""
    monkeypatch.setenv("MOEINF_HOST", server.url)
    monkeypatch.setenv("MOEINF_API_KEY", "the key")
    return command


@pytest.fixture
def client(server: HttpServer) -> ollama.Client:
    return ollama.Client(server.url, headers={"Authorization": "Bearer the key"})


def test_ps_lists_the_loaded_model_and_stop_closes_it(ask: Callable[..., Done], client: ollama.Client) -> None:
    client.generate("demo", "The king said", options={"num_predict": 3})
    head, row = ask("ps").out.splitlines()
    assert row.startswith("demo:latest ") and "100% CPU" in row and "minutes from now" in row and "% hit" in row
    [told] = json.loads(ask("ps", "--json").out)
    assert told["name"] == "demo:latest"
    assert ask("stop", "demo") == Done(0, "", "")
    assert ask("ps").out.split() == head.split() and client.ps().models == []


def test_stop_names_a_model_that_is_not_loaded(ask: Callable[..., Done]) -> None:
    for name in ("demo", "nobody"):
        done = ask("stop", name)
        assert done.code == 1
        assert done.err == f'Error: couldn\'t find model "{name}" to stop; `moeinf ps` shows what is loaded\n'


def test_a_missing_key_is_named_with_the_variable(ask: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEINF_API_KEY")
    done = ask("ps")
    assert done.code == 1 and "a key is needed" in done.err and "MOEINF_API_KEY" in done.err


def test_one_line_tells_that_no_server_answers(command: Callable[..., Done]) -> None:
    with socket.socket() as taken:  # bound, and listening to nobody
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = command("ps", "--host", address)
    assert done.code == 1
    assert done.err == f"Error: no server answers at http://{address}; `moeinf serve` starts one\n"


def test_what_listens_and_is_no_server_of_ours_is_told_so(command: Callable[..., Done]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def answer() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(1 << 16)
                accepted.sendall(b"SSH-2.0-server\r\n\r\n")

        other = threading.Thread(target=answer)
        other.start()
        done = command("ps", "--host", address)
        other.join()
    assert done.code == 1 and "gave no answer" in done.err


@pytest.mark.parametrize("what", ["folder", "manifest", "name"])
def test_ps_and_stop_know_the_loaded_model_whatever_has_gone_from_the_disk(
    what: str, tmp_path: Path, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = ensure("demo", home=tmp_path)
    with live_server(stored) as running:
        monkeypatch.setenv("MOEINF_HOST", running.url)
        client = ollama.Client(running.url)
        client.generate("demo", "The king said", options={"num_predict": 1})
        if what == "folder":
            shutil.rmtree(stored.path)
        elif what == "manifest":
            (stored.path / "manifest.json").unlink()
        else:
            shutil.rmtree(tmp_path / "names")
        _, row = command("ps").out.splitlines()
        assert row.startswith("demo:latest ")
        assert [model.name for model in client.ps().models] == ["demo:latest"]
        assert command("stop", "demo") == Done(0, "", "")
        assert client.ps().models == []
