"""A foreign page, a wrong key or a flood of bytes never gets past the guard: the application is not even called."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from starlette.types import Message, Receive, Scope, Send

from moeinf.server.gate.guard import Guard, Rules
from moeinf.server.openai.errors import error_body

Pairs = Sequence[tuple[str, str]]
JSON = ("content-type", "application/json")


@dataclass
class Application:
    """Counts its calls, reads the whole body and says that it was there."""

    calls: int = 0
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls += 1
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})


def ask(
    headers: Pairs,
    *,
    method: str = "GET",
    path: str = "/v1/models",
    rules: Rules = Rules(),  # noqa: B008 - frozen
    pieces: Sequence[bytes] = (b"",),
    wait_s: float = 0.0,
) -> tuple[int, int, dict[str, str]]:
    """The status of a request, how often the application was called, and the headers of the answer."""
    application, sent = Application(), list[Message]()
    messages = iter(
        [{"type": "http.request", "body": p, "more_body": i + 1 < len(pieces)} for i, p in enumerate(pieces)]
    )

    async def receive() -> Message:
        await asyncio.sleep(wait_s)
        return next(messages, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers],
    }
    asyncio.run(Guard(application, rules, lambda path: error_body, page=("/style.css",))(scope, receive, send))
    got = {name.decode(): value.decode() for name, value in sent[0].get("headers", [])} if sent else {}
    return (sent[0]["status"] if sent else 0), application.calls, got


OWN_HOSTS = [
    *("localhost", "localhost:11435", "LOCALHOST", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:11435"),
    *("moeinf.localhost", "a.b.localhost:11435", "Chat.LocalHost"),
]
PRIVATE_HOSTS = ["host.docker.internal", "host.docker.internal:11435", "HOST.docker.Internal", "db.internal"]
FOREIGN_ADDRESSES = [
    *("127.0.0.2", "0.0.0.0", "10.0.0.1", "192.168.1.5", "192.168.1.5:11435", "169.254.169.254"),
    *("[::]", "[::ffff:127.0.0.1]", "[fe80::1]"),
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:11435",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evillocalhost",
    "localhost.",
    "127.0.0.1.",
    "localhost.localdomain",
    "printer.local",
    "internal",
    "evilinternal",
    "host.docker.internal.evil.example",
    "host.docker.internal.",
    "2130706433",
    "0x7f000001",
    "0177.0.0.1",
    "127.1",
    "0",
    "::1",
    "localhost@evil.example",
    "localhost,evil.example",
    "localhost:11435:80",
    "localhost:port",
    "http://localhost",
    "localhost/",
    "localhost#x",
]


@pytest.mark.parametrize("host", [*OWN_HOSTS, *PRIVATE_HOSTS])
def test_its_own_names(host: str) -> None:
    assert ask([("host", host)])[:2] == (200, 1)


@pytest.mark.parametrize(
    "host", [*FOREIGN_HOSTS, *FOREIGN_ADDRESSES, "", " localhost", "localhost evil.example", "löcalhost"]
)
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/chat"])
def test_foreign_names(host: str, path: str) -> None:
    status, calls, _ = ask([("host", host)], path=path)
    assert (status, calls) == (403, 0)


def test_one_host_header() -> None:
    assert ask([])[:2] == (400, 0)
    assert ask([("host", "localhost"), ("host", "localhost")])[:2] == (400, 0)


def test_a_name_that_is_allowed() -> None:
    rules = Rules(hosts=("box.example",))
    assert ask([("host", "box.example:11435")], rules=rules)[:2] == (200, 1)
    assert ask([("host", "other.example")], rules=rules)[:2] == (403, 0)


@pytest.mark.parametrize("host", FOREIGN_ADDRESSES)
def test_addresses_of_a_server_that_listens_on_all(host: str) -> None:
    everywhere = Rules(any_address=True)
    assert ask([("host", host)], rules=everywhere)[:2] == (200, 1)
    other = [("host", host), ("origin", "http://192.168.1.6:11435"), JSON]
    assert ask(other, method="POST", rules=everywhere, pieces=(b"{}",))[:2] == (403, 0)


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_names_are_foreign_to_a_server_that_listens_on_all(host: str) -> None:
    assert ask([("host", host)], rules=Rules(any_address=True))[:2] == (403, 0)


FOREIGN_ORIGINS = [
    "null",
    "http://evil.example",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://127.0.0.1.evil.example",
    "https://localhost@evil.example",
    "file://",
    "data:",
    "http://",
    "ftp://localhost",
    "http://192.168.1.5",
    "http://wiki.internal",
    "http://evillocalhost",
    "http://[::2]",
    "blob:null",
    "http://evil.example:11435",
    "https://127.0.0.1.nip.io",
    "about:blank",
    "HTTP://EVIL.EXAMPLE",
]
OWN_ORIGINS = [
    "http://localhost",
    "http://localhost:11435",
    "http://127.0.0.1:3000",
    "https://localhost:8443",
    "http://[::1]:5",
    "http://chat.localhost:3000",
    "app://obsidian.md",
    "tauri://localhost",
    "vscode-webview://1a2b",
]


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
def test_foreign_pages(origin: str, method: str) -> None:
    headers = [("host", "localhost"), ("origin", origin), JSON]
    status, calls, got = ask(headers, method=method, pieces=(b"{}",))
    assert (status, calls) == (403, 0)
    assert "access-control-allow-origin" not in got


@pytest.mark.parametrize("origin", OWN_ORIGINS)
def test_pages_and_programs_of_this_machine(origin: str) -> None:
    status, calls, got = ask([("host", "localhost"), ("origin", origin), JSON], method="POST", pieces=(b"{}",))
    assert (status, calls) == (200, 1)
    assert got["access-control-allow-origin"] == origin and got["vary"] == "Origin"


def test_an_origin_that_is_allowed_and_what_it_may_send() -> None:
    rules = Rules(origins=("https://chat.example",))
    headers = [
        ("host", "localhost"),
        ("origin", "https://chat.example"),
        ("access-control-request-headers", "content-type, x-stainless-os, x-evil"),
    ]
    status, calls, got = ask(headers, method="OPTIONS", rules=rules)
    assert (status, calls) == (204, 0)
    assert got["access-control-allow-origin"] == "https://chat.example"
    assert (
        "x-stainless-os" in got["access-control-allow-headers"] and "x-evil" not in got["access-control-allow-headers"]
    )
    assert "Authorization" in got["access-control-allow-headers"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_another_site_embeds(site: str) -> None:
    fetch = [("host", "localhost"), ("sec-fetch-site", site)]
    assert ask([*fetch, ("sec-fetch-mode", "no-cors")])[:2] == (403, 0)
    assert ask([*fetch, ("sec-fetch-mode", "navigate")])[:2] == (403, 0)
    assert ask([*fetch, ("sec-fetch-mode", "navigate"), JSON], method="POST", path="/")[:2] == (403, 0)
    assert ask([*fetch, ("sec-fetch-mode", "navigate")], path="/")[:2] == (200, 1)  # a link to the page


KINDS = [
    *("", "text/plain", "text/plain;charset=UTF-8", "TEXT/PLAIN", "application/octet-stream", "text/json"),
    *(
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "x",
        "application/vnd",
    ),
]
BROWSER = [("referer", "http://localhost/"), ("sec-fetch-site", "same-origin"), ("origin", "http://localhost")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_program_may_call_its_json_what_it_likes(kind: str, method: str) -> None:
    typed = [("content-type", kind)] if kind else []
    plain = [("host", "localhost"), ("content-length", "2"), *typed]
    for extra in ([], [("sec-fetch-mode", "cors")], [("user-agent", "node"), ("accept", "*/*")]):  # fetch of Node
        assert ask([*plain, *extra], method=method, pieces=(b"{}",))[:2] == (200, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sent", [*BROWSER, ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_page_may_not(kind: str, sent: tuple[str, str], method: str) -> None:
    headers = [("host", "localhost"), ("content-type", kind), ("content-length", "2"), sent]
    status, calls, _ = ask(headers, method=method, pieces=(b"{}",))
    assert status in (403, 415) and calls == 0


def test_a_body_that_is_packed_is_refused() -> None:
    assert ask([("host", "localhost"), JSON, ("content-encoding", "gzip")], method="POST")[:2] == (415, 0)


PATHS = ["/v1/models", "//v1/models", "/V1/MODELS", "/v1/models/", "/api/tags", "/metrics", "/health/", "/style.css/"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "PUT"])
def test_every_path_wants_the_key(path: str, method: str) -> None:
    rules = Rules(keys=("secret", "other"))
    headers = [("host", "localhost"), JSON]
    for wrong in ([], [("authorization", "Bearer wrong")], [("authorization", "secret")], [("x-api-key", "Secret")]):
        assert ask([*headers, *wrong], method=method, path=path, rules=rules)[:2] == (401, 0)
    for right in (("authorization", "Bearer secret"), ("x-api-key", "other"), ("authorization", "bearer other")):
        assert ask([*headers, right], method=method, path=path, rules=rules)[:2] == (200, 1)


@pytest.mark.parametrize("path", ["/", "/health", "/style.css"])
def test_what_tells_nothing_wants_no_key(path: str) -> None:
    assert ask([("host", "localhost")], path=path, rules=Rules(keys=("secret",)))[:2] == (200, 1)


def test_a_body_that_is_too_large() -> None:
    rules, host = Rules(most_body_bytes=1 << 20), ("host", "localhost")
    announced = ask([host, JSON, ("content-length", str((1 << 20) + 1))], method="POST", rules=rules)
    assert announced[:2] == (413, 0)
    pieces = [b"x" * 400_000] * 3
    streamed = ask([host, JSON, ("transfer-encoding", "chunked")], method="POST", rules=rules, pieces=pieces)
    assert streamed[0] == 413


def test_a_body_that_drips() -> None:
    rules = Rules(body_s=0.0)
    headers = [("host", "localhost"), JSON, ("transfer-encoding", "chunked")]
    assert ask(headers, method="POST", rules=rules, pieces=[b"x"] * 1000, wait_s=0.1)[0] == 408


def test_the_bodies_of_all_requests_together_are_bounded() -> None:
    async def talk() -> list[int]:
        guard = Guard(Application(), Rules(most_held_bytes=1000), lambda path: error_body, page=())
        statuses, go_on = list[int](), asyncio.Event()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def one(more: bool) -> None:
            first = {"type": "http.request", "body": b"x" * 600, "more_body": more}
            pieces: Iterator[Message] = iter([first, {"type": "http.request"}])

            async def receive() -> Message:
                piece = next(pieces)
                if "body" not in piece:
                    await go_on.wait()
                return piece

            headers = [(b"host", b"localhost"), (b"transfer-encoding", b"chunked")]
            scope = {"type": "http", "method": "POST", "path": "/v1/models", "headers": headers}
            await guard(scope, receive, send)

        held = asyncio.create_task(one(more=True))
        await asyncio.sleep(0)
        await one(more=False)
        go_on.set()
        await held
        await one(more=False)
        return statuses

    assert asyncio.run(talk()) == [503, 200, 200]
