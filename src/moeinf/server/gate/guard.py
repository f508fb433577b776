"""Stands before every route: who may call, from which page, with which key, and how much at once.

A browser that shows a foreign page must not reach a server on the same machine: neither by a name that resolves to
127.0.0.1 (DNS rebinding: the Host header is then foreign) nor by a form or script (the Origin is). Names that no public
DNS has, which ICANN keeps for private use, cannot be made to resolve to anything by whoever owns a foreign page.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from moeinf.server.http import ErrorForm, error_response
from moeinf.server.http_errors import BusyError, Refusal, StoppingError

MOST_BODY_BYTES = 16 << 20
MOST_HELD_BYTES = 256 << 20  # of all bodies that are being read or answered
BODY_S, BODY_S_PER_MIB = 30.0, 1.0  # until a body must be here
OPEN_TO_ALL = ("/health", "/")  # without a key: they tell nothing, and the page asks for the key itself
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PRIVATE = ".internal"  # host.docker.internal; of a Host alone, as other machines' pages have such names, too
_APPS = ("app", "tauri", "vscode-webview", "chrome-extension", "moz-extension", "safari-web-extension")
_CORS_HEADERS = "Authorization, Content-Type, OpenAI-Beta, X-Api-Key, Anthropic-Version, Anthropic-Beta"


@dataclass(frozen=True, slots=True)
class Rules:
    """hosts, origins: allowed beside those of this machine. keys: of which one must be given; () where none need be.

    any_address: the server listens on all addresses of the machine, so it is known by each, and a container by
    those of its host, which hands connections on. No DNS is asked for an address.
    """

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    most_body_bytes: int = MOST_BODY_BYTES
    most_held_bytes: int = MOST_HELD_BYTES
    body_s: float = BODY_S
    any_address: bool = False


class Guard:
    """ASGI middleware. Refuses before anything is read or done; form_of gives the error form of a path's API."""

    def __init__(self, app: ASGIApp, rules: Rules, form_of: Callable[[str], ErrorForm], page: Iterable[str]) -> None:
        """page: paths of the page's files, which need no key."""
        self._app, self._rules, self._form_of = app, rules, form_of
        self._hosts = frozenset(name.lower().rstrip(".") for name in rules.hosts)
        self._key_sums = [hashlib.sha256(key.encode()).digest() for key in rules.keys]
        self._open = frozenset((*OPEN_TO_ALL, *page))
        self._held_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        try:
            self._check(scope, headers)
            if scope["method"] == "OPTIONS" and origin is not None:
                await _preflight(scope, receive, send, origin, headers)
                return
            body = _Body(receive, self._rules, headers, self._hold)
        except Refusal as refusal:
            await error_response(refusal, self._form_of(scope["path"]))(scope, receive, send)
            return
        sender = _Sender(send, origin)
        try:
            await self._app(scope, body.receive, sender.send)
        except (Refusal, BusyError) as refusal:  # a body that is too large or too slow, met while the handler read it
            if not sender.begun:
                await error_response(refusal, self._form_of(scope["path"]))(scope, receive, send)
        except asyncio.CancelledError:  # the server ends, and waits no longer for what the request waits for
            if not sender.begun:
                stopping = StoppingError("the server is stopping; ask again later")
                await error_response(stopping, self._form_of(scope["path"]))(scope, receive, send)
        finally:
            self._held_bytes -= body.size

    def _hold(self, num_bytes: int) -> None:
        """Raises BusyError where the bodies of all requests take too much memory."""
        self._held_bytes += num_bytes
        if self._held_bytes > self._rules.most_held_bytes:
            raise BusyError("server busy: other requests' bodies take the memory that there is for them; ask later")

    def _check(self, scope: Scope, headers: Headers) -> None:
        """Raises Refusal."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise Refusal(400, "a request must have one Host header")
        if not self._host_allowed(hosts[0]):
            raise Refusal(403, f"host {hosts[0]!r:.100} is not this server's; `moeinf serve --allowed-host` adds names")
        origins = headers.getlist("origin")
        if len(origins) > 1 or (origins and not self._origin_allowed(origins[0], hosts[0])):
            raise Refusal(
                403, f"pages of {origins[0]!r:.100} may not call this server; `moeinf serve --allowed-origin` adds them"
            )
        _check_browser(scope, headers)
        if scope["path"] not in self._open and scope["method"] != "OPTIONS":
            self._check_key(headers)

    def _host_allowed(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        known = name in self._hosts or _of_this_machine(name) or name.endswith(_PRIVATE)
        return known or (self._rules.any_address and _is_address(name))

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if origin in self._rules.origins:
            return True
        scheme, _, rest = origin.partition("://")
        if scheme in _APPS:
            return bool(rest) or scheme in ("app", "tauri")
        if scheme not in ("http", "https"):
            return False
        name = _host_name(rest)
        return rest.lower() == host.lower() or (name is not None and _of_this_machine(name))

    def _check_key(self, headers: Headers) -> None:
        if not self._key_sums:
            return
        given_sum = hashlib.sha256(key_of(headers).encode()).digest()
        matches = [hmac.compare_digest(given_sum, each) for each in self._key_sums]  # every one, whichever fits
        if not any(matches):
            raise Refusal(401, "a key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")


def key_of(headers: Headers) -> str:
    """The key that a client gives; "" for none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")


def _host_name(host: str) -> str | None:
    """The name in a Host header, lower case and without port; None for what is none."""
    if not re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(:\d{1,5})?", host):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _of_this_machine(name: str) -> bool:
    """Whether a name is loopback's; every name below localhost is (RFC 6761)."""
    return name in _LOOPBACK or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _check_browser(scope: Scope, headers: Headers) -> None:
    """Raises Refusal for what only a foreign page sends: cross-site loads, and bodies that it need not ask leave for.

    A page may send text/plain and the like anywhere without asking first, but not without one of a browser's headers.
    Programs send JSON under all kinds of types: fetch of Node says text/plain, curl -d urlencoded.
    """
    site = headers.get("sec-fetch-site")
    opened = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET" and scope["path"] == "/"
    if site in ("cross-site", "same-site") and "origin" not in headers and not opened:
        raise Refusal(403, "another site's page may not load this")
    if headers.get("content-encoding", "identity") != "identity":
        raise Refusal(415, "send the body without a Content-Encoding")
    if scope["method"] in ("POST", "PUT", "PATCH", "DELETE") and _has_body(headers):
        kind = headers.get("content-type", "").split(";")[0].strip().lower()
        browser = site is not None or "origin" in headers or "referer" in headers
        if browser and kind != "application/json":
            raise Refusal(415, f"send the body as application/json, not {kind or 'without a type'!r:.60}")


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


async def _preflight(scope: Scope, receive: Receive, send: Send, origin: str, headers: Headers) -> None:
    """Answers a browser that asks whether an allowed page may call."""
    asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",") if name.strip()]
    extra = [name for name in asked if re.fullmatch(r"x-stainless-[a-z-]+", name.lower())]
    allowed = ", ".join([_CORS_HEADERS, *extra])
    raw = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, HEAD, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", allowed.encode("latin-1")),
        (b"access-control-max-age", b"600"),
        (b"vary", b"Origin"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": raw[:-1]})
    await send({"type": "http.response.body", "body": b""})


class _Body:
    """Hands on what a client sends, up to a size and within a time."""

    def __init__(self, receive: Receive, rules: Rules, headers: Headers, hold: Callable[[int], None]) -> None:
        """hold: told of the bytes that came. Raises Refusal where the size is announced and too large."""
        self._receive, self._rules, self._hold = receive, rules, hold
        self.size, self._whole = 0, False
        length = headers.get("content-length", "0")
        mib = int(length) / (1 << 20) if length.isdigit() else rules.most_body_bytes / (1 << 20)
        if mib * (1 << 20) > rules.most_body_bytes:
            raise self._too_large()
        self._until = asyncio.get_running_loop().time() + rules.body_s + BODY_S_PER_MIB * mib

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        left = self._until - asyncio.get_running_loop().time()
        try:
            message = await asyncio.wait_for(self._receive(), max(left, 0.0))
        except asyncio.TimeoutError:
            raise Refusal(408, "the body did not come in time") from None
        if message["type"] == "http.request":
            num_bytes = len(message.get("body", b""))
            self.size += num_bytes
            self._hold(num_bytes)
            self._whole = not message.get("more_body", False)
            if self.size > self._rules.most_body_bytes:
                raise self._too_large()
        return message

    def _too_large(self) -> Refusal:
        return Refusal(413, f"the body is larger than {self._rules.most_body_bytes >> 20} MiB")


class _Sender:
    """Hands on what the application sends, with the headers that an allowed page needs."""

    def __init__(self, send: Send, origin: str | None) -> None:
        self._send, self._origin = send, origin
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            if self._origin is not None:
                allow = [(b"access-control-allow-origin", self._origin.encode("latin-1")), (b"vary", b"Origin")]
                message = {**message, "headers": [*message.get("headers", []), *allow]}
        await self._send(message)
