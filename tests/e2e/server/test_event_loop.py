"""The event loop does nothing that takes long: it reads no files and no large JSON, whatever is asked of any route."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.pull.pull import ensure
from moeinf.server.app import routes_of
from moeinf.server.page.page_routes import page_routes
from moeinf.server.serve import HttpServer
from moeinf.server.service import Service
from moeinf.store.library import Library
from tests.support.asked_routes import ASKED, CASES, HI, TEXT
from tests.support.live_server import live_server

MOST_S = 0.1  # of the processor, for one step of the event loop
WAITS_FOR_DISK = ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")
UNAUDITED = ("stat", "lstat", "access", "readlink")
MUCH = {"zz text": "a" * 3_000_000, "zz lists": [[]] * 60_000}
LARGE = MUCH | {"options": MUCH, "messages": [HI] * 10_000 + [{"role": "nobody"}]}


class Watched:
    """What the thread of an event loop does while `on`."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.on = False
        self.waits: list[str] = []
        self.longest_s = 0.0

    def note(self, event: str, args: object) -> None:
        if self.on and threading.get_ident() == self.thread:
            self.waits.append(f"{event}{args}"[:200])


WATCHED = Watched()


def audit(event: str, args: tuple[Any, ...]) -> None:
    if WATCHED.on and event in WAITS_FOR_DISK:
        WATCHED.note(event, args)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    sys.addaudithook(audit)
    home = tmp_path_factory.mktemp("loop")
    with live_server(ensure("demo:chat", home=home), config=RuntimeConfig.of(device="cpu", context=256)) as running:
        assert ask(running, "GET", "/health", None) == 200  # it has started
        WATCHED.thread = next(thread.ident for thread in threading.enumerate() if thread.name == "server")
        yield running


@pytest.fixture
def watched(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def first_noted(*args: Any, **named: Any) -> Any:
            WATCHED.note(f"os.{name}", args)
            return call(*args, **named)

        return first_noted

    def step(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if threading.get_ident() == WATCHED.thread:
            WATCHED.longest_s = max(WATCHED.longest_s, time.thread_time() - began)

    for name in UNAUDITED:
        monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
    run = asyncio.Handle._run
    monkeypatch.setattr(asyncio.Handle, "_run", step)
    WATCHED.waits, WATCHED.longest_s, WATCHED.on = [], 0.0, True
    yield WATCHED
    WATCHED.on = False


def ask(server: HttpServer, method: str, path: str, body: Any) -> int:
    content = None if body is None else json.dumps(body)
    with httpx.stream(method, f"{server.url}{path}", content=content, timeout=60) as answer:
        for _ in answer.iter_bytes():
            if path == "/api/live":
                break
        return answer.status_code


def test_every_route_is_asked_here() -> None:
    service: Any = type("Nothing", (Service,), {"__init__": lambda self: None})()
    there = {(method, route.path) for route in routes_of(service) for method in (route.methods or {"GET"}) - {"HEAD"}}
    assert there == set(ASKED)


@pytest.mark.parametrize("path", [route.path for route in page_routes()])
def test_no_file_of_the_page_is_read_when_it_is_asked_for(server: HttpServer, watched: Watched, path: str) -> None:
    assert ask(server, "GET", path, None) == 200
    assert watched.waits == []


@pytest.mark.parametrize(("method", "path", "body"), CASES)
def test_no_route_waits_for_the_disk(server: HttpServer, watched: Watched, method: str, path: str, body: Any) -> None:
    assert ask(server, method, path, body) < 500
    assert watched.waits == []


@pytest.mark.parametrize(("method", "path", "body"), [case for case in CASES if case[2] is not None])
def test_no_large_body_takes_long(server: HttpServer, watched: Watched, method: str, path: str, body: Any) -> None:
    if path == "/api/pull":
        body = {"model": "no/such//name"}
    assert ask(server, method, path, body | LARGE) < 500
    assert watched.longest_s < MOST_S


@pytest.mark.parametrize("repeated", ["[],", '{"role":"user"},', "1,", '"a",'])
def test_json_of_too_many_values_is_not_read(server: HttpServer, watched: Watched, repeated: str) -> None:
    body = f'{{"model": "demo:chat", "messages": [{(12_000_000 // len(repeated)) * repeated}1]}}'
    answer = httpx.post(f"{server.url}/api/chat", content=body, timeout=60)
    assert answer.status_code == 413
    assert any(limit in answer.json()["error"] for limit in ("more than 200,000 values", "more than 2 MiB"))
    assert watched.longest_s < MOST_S


def test_a_disk_that_hangs_stops_no_route_that_does_not_need_it(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, hangs = threading.Event(), threading.Semaphore(0)

    def hang(*given: Any) -> Any:
        hangs.release()
        go_on.wait(60)
        raise OSError("gone")

    monkeypatch.setattr(Library, "find", hang)
    monkeypatch.setattr(Library, "list", hang)
    needing = [case for case in CASES if case[1] in ("/v1/models", "/api/tags", "/api/generate", "/api/delete")] * 4
    with ThreadPoolExecutor(len(needing)) as clients:
        asked = [clients.submit(ask, server, *case) for case in needing]
        for _ in range(8):
            hangs.acquire()
        for path in ("/health", "/metrics", "/api/ps", "/api/version", "/api/live", "/", "/page/base.css"):
            assert ask(server, "GET", path, None) == 200
        assert ask(server, "POST", "/api/push", {}) == 400
        assert not any(each.done() for each in asked)
        go_on.set()
        assert all(each.result() >= 400 for each in asked)


def test_deletes_of_the_model_that_answers_keep_no_thread(server: HttpServer) -> None:
    body = TEXT | {"prompt": "Tell", "stream": True, "keep_alive": -1}
    assert ask(server, "POST", "/api/copy", {"source": "demo:chat", "destination": "one-more"}) == 200
    with (
        httpx.stream("POST", f"{server.url}/api/generate", json=body, timeout=60) as answer,
        ThreadPoolExecutor(16) as clients,
    ):
        next(answer.iter_lines())
        deletes = [clients.submit(ask, server, "DELETE", "/api/delete", {"model": "one-more"}) for _ in range(16)]
        assert ask(server, "GET", "/api/tags", None) == 200
        answer.close()
        assert sorted(each.result() for each in deletes)[0] == 200
