"""A server tells nobody what is not his: no address, folder or word of another, and it asks no machine but the Hub."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from moeinf.config import RuntimeConfig
from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from tests.support.asked_routes import CASES
from tests.support.cli.commands import COMMAND
from tests.support.hub_server import point_client_at
from tests.support.live_server import live_server

KEY, TOKEN, SAID = "canary-key-5a1f", "hf_canaryTokenOfTheHub", "canaryPrompt7c3e"
HUB = ("127.0.0.1", 9)  # where nobody listens
GIVEN_AWAY = re.compile(rf"0x[0-9a-f]{{8,}}|File \"|Traceback|{KEY}|{TOKEN}")
WRONG: list[Any] = [
    b"",
    b"{",
    b"[1]",
    b'{"model": "\xff"}',
    b"[" * 100_000,
    {"model": 7},
    {"model": "../../etc/passwd"},
    {"model": "/etc/passwd"},
    {"model": "demo:chat", "messages": 5},
    {"model": "demo:chat", "messages": [{"role": "user", "content": {"a": 1}}], "prompt": [["x"]], "input": {"a": 2}},
    {"model": "demo:chat", "messages": [], "options": {"num_ctx": -1}, "temperature": "hot", "max_tokens": -3},
    {"model": "demo:chat", "content": 1, "tokens": [10**30], "source": 4, "destination": [], "from": "/nowhere"},
    {"model": "demo:chat", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": 1}]}]},
]
# Each would be another machine's, or a file, if anything of it were followed.
PLACES = [
    *("http://169.254.169.254/latest/meta-data", "https://evil.example/org/repo", "//evil.example/org/repo"),
    *("hf.co@evil.example/org/repo", "evil.example/org/repo", "evil.example:8443/org/repo", "org@evil.example/repo"),
    *("\\\\evil.example\\share\\repo", "org\\evil.example", "file:///etc/passwd", "ftp://evil.example/a/b"),
    *("gopher://evil.example/_x", "http:evil.example/a/b", "HTTP://EVIL.EXAMPLE/a/b", "org/repo?endpoint=evil.example"),
    *("org/repo#@evil.example", "org/repo@http://evil.example", "hf.co/../evil.example/a", "hf.co/%2e%2e/evil.example"),
    *("127.0.0.1:1/a/b", "[::1]:1/a/b", "0x7f000001/a/b", "2130706433/a/b", "localhost/a/b"),
]
PICTURES = ["http://169.254.169.254/a.png", "https://evil.example/a.png", "//evil.example/a.png", "file:///etc/passwd"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure("demo:chat", home=tmp_path_factory.mktemp("quiet")).path.parents[1]


@pytest.fixture
def guarded(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HttpServer]:
    """With a key, a token for the Hub, and a Hub that nobody reaches."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    point_client_at(f"http://{HUB[0]}:{HUB[1]}", tmp_path, monkeypatch)
    config = RuntimeConfig.of(device="cpu", context=256)
    with live_server(ensure("demo:chat", home=home), config=config, keys=(KEY,)) as running:
        yield running


def ask(server: HttpServer, method: str, path: str, body: Any) -> tuple[int, str]:
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.stream(method, f"{server.url}{path}", content=content, headers=headers, timeout=60) as answer:
        text = next(answer.iter_text(), "") if path == "/api/live" else answer.read().decode(errors="replace")
        return answer.status_code, text


def test_neither_answers_nor_the_log_tell_of_the_machine_or_of_others(
    guarded: HttpServer, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = {"model": "demo:chat", "messages": [{"role": "user", "content": SAID}], "prompt": SAID, "max_tokens": 2}
    with caplog.at_level(logging.DEBUG, "moeinf"):
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"):
            ask(guarded, "POST", path, said)
        errors = 0
        for method, path, right in CASES:
            for body in [None] if right is None else [right, *WRONG]:
                status, text = ask(guarded, method, path, body)
                errors += status >= 400
                found = GIVEN_AWAY.search(text) or re.search(rf"{re.escape(str(home))}|{SAID}", text)
                assert found is None and status != 500, f"{method} {path} {body!r:.200}: {status} {text[:500]}"
    assert errors >= 60
    for record in caplog.records:
        line = record.getMessage()
        assert not record.exc_info and line.isprintable() and not re.search(f"{KEY}|{TOKEN}|{SAID}", line), line


@contextmanager
def reached() -> Iterator[list[Any]]:
    """What this process connects to, or asks the name service for, meanwhile."""
    found, on = list[Any](), True

    def note(event: str, given: tuple[Any, ...]) -> None:
        if on and event == "socket.connect":
            found.append(given[1])
        elif on and event in ("socket.getaddrinfo", "socket.gethostbyname"):
            found.append(given[0])

    sys.addaudithook(note)
    try:
        yield found
    finally:
        on = False


def test_no_name_and_no_picture_makes_it_ask_another_machine(guarded: HttpServer) -> None:
    own = (("127.0.0.1", int(guarded.url.rpartition(":")[2])), "127.0.0.1", b"127.0.0.1")
    with reached() as found:
        for name in PLACES:
            for path in ("/api/pull", "/api/show", "/api/generate"):
                status, _ = ask(guarded, "POST", path, {"model": name, "prompt": "x", "stream": False})
                assert 400 <= status < 500, f"{path} {name}: {status}"
        for url in PICTURES:
            part = {"type": "image_url", "image_url": {"url": url}}
            body = {"model": "demo:chat", "messages": [{"role": "user", "content": [part]}]}
            assert ask(guarded, "POST", "/v1/chat/completions", body)[0] == 400
        assert {each for each in found if each not in own} == set()
        ask(guarded, "POST", "/api/pull", {"model": "org/repo", "stream": False})
    assert HUB in found


def test_a_server_listens_at_one_place_and_what_it_keeps_of_prompts_is_its_owners(home: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MOEINF_HOME": str(home)}
    command = [*COMMAND, "serve", "--host", "127.0.0.1:0", "--prefix-disk", "20MB", "--num-ctx", "512"]
    before = os.umask(0)
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    os.umask(before)
    try:
        assert process.stderr is not None
        url = re.search(r"http://\S+", process.stderr.readline())
        assert url is not None
        body = {"model": "demo:chat", "prompt": "Once upon a time. " * 60, "options": {"num_predict": 2}}
        assert httpx.post(f"{url[0]}/api/generate", json=body, timeout=60).status_code == 200
        assert listening(process.pid) == 1
    finally:
        process.terminate()
        process.communicate(timeout=60)
    kept = [path for path in home.rglob("*") if path.relative_to(home).parts[0] not in ("models", "names", "partial")]
    of_prompts = [path for path in kept if path.parent != home]
    assert of_prompts and all(path.stat().st_mode & 0o077 == 0 for path in of_prompts), of_prompts


def listening(process: int) -> int:
    """How many sockets a process and those that it has started listen at."""
    families = [process] + [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    links = [os.readlink(path) for each in families for path in Path(f"/proc/{each}/fd").iterdir() if path.exists()]
    own = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    unix = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    listens = {row[9] for row in rows if row[3] == "0A"} | {row[6] for row in unix if row[3] == "00010000"}
    return len(own & listens)
