"""A local server that speaks as much of the Hub's HTTP API as a pull uses, with faults on demand.

Two origins, as in reality: the Hub, which redirects LFS files, and a "CDN" on another host that serves their bytes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

from moeinf.pull.hub import download
from moeinf.pull.hub import repository as hub_client

REPO = "org/Tiny-MoE"
RANGE_BYTES, HEAD_BYTES = 64 << 10, 1000  # that the client asks for at once


@dataclass(frozen=True)
class Seen:
    """One request."""

    host: str  # "hub" or "cdn"
    method: str
    path: str
    range: str
    token: str
    sent_bytes: int


@dataclass
class Hub:
    """One repository with one commit, and further branches, and what shall go wrong with it.

    repos: other repositories, by their names: commit and files.

    faults: name -> how many of the next requests that it concerns it spoils. Of the CDN: "drop" (connection closed
    before an answer), "cut" (closed in the middle of the body), "hang" (silent there, in a file's second half),
    "flip" (one bit), "shift" (Content-Range of other bytes), "whole" (200 and the whole file), "etag" (another one than
    before), "expired" (403), or a status as "503".
    Of the Hub: "api 503", "relink" (announces another hash), "commit" (serves another commit), "self" (no redirect).
    """

    folder: Path
    commit: str = "c" * 40
    branches: dict[str, tuple[str, Path]] = field(default_factory=dict)  # their commits and files
    repos: dict[str, tuple[str, Path]] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)
    gated: bool = False
    missing: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    waits: dict[str, str] = field(default_factory=dict)  # extra headers of a status fault
    endpoint: str = ""
    cdn: str = ""
    closing: threading.Event = field(default_factory=threading.Event)  # ends answers that hang
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, fault: str) -> bool:
        """Whether this request is to be spoilt so."""
        with self._lock:
            left = self.faults.get(fault, 0)
            self.faults[fault] = max(0, left - 1)
            return left > 0

    def note(self, seen: Seen) -> None:
        with self._lock:
            self.seen.append(seen)

    def sent_bytes(self, suffix: str) -> int:
        return sum(seen.sent_bytes for seen in self.seen if seen.path.endswith(suffix))

    def at(self, revision: str) -> tuple[str, Path] | None:
        """The commit and the files of a branch, or of a commit whose id may be shortened."""
        known = {"": (self.commit, self.folder), "main": (self.commit, self.folder)} | self.branches
        known |= {commit: (commit, folder) for commit, folder in self.repos.values()}
        short = (each for each in known.values() if len(revision) >= 7 and each[0].startswith(revision))
        return known.get(revision) or next(short, None)

    def info(self, repo: str, commit: str, folder: Path) -> dict[str, Any]:
        return {
            "_id": "0",
            "id": repo,
            "modelId": repo,
            "sha": commit,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "cardData": self.card,
            "siblings": [_sibling(folder, path.relative_to(folder).as_posix()) for path in _files(folder)],
        }


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sibling(folder: Path, name: str) -> dict[str, Any]:
    data = (folder / name).read_bytes()
    if not is_lfs(name):
        return {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
    sha256 = hashlib.sha256(data).hexdigest()
    return {
        "rfilename": name,
        "size": len(data),
        "blobId": git_sha1(sha256.encode()),
        "lfs": {"sha256": sha256, "size": len(data), "pointerSize": 130},
    }


def is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf"))


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    """The Hub on 127.0.0.1, its CDN on localhost, which is another host to a client."""
    hub = Hub(folder)
    servers = [_Server(("127.0.0.1", 0), _handler(hub, host)) for host in ("hub", "cdn")]
    hub.endpoint = f"http://127.0.0.1:{servers[0].server_address[1]}"
    hub.cdn = f"http://localhost:{servers[1].server_address[1]}"
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        hub.closing.set()
        for server in servers:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


def point_client_at(endpoint: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes pulls of this process ask that server, in small ranges: a shard of half a megabyte takes several."""
    patch.setattr(constants, "ENDPOINT", endpoint)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_HUB_CACHE", str(folder / "hf-cache"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    patch.setattr(download, "RANGE_BYTES", RANGE_BYTES)
    patch.setattr(hub_client, "HEAD_BYTES", HEAD_BYTES)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


def _handler(hub: Hub, host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.hub, Handler.host = hub, host
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    host: str

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        repo = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        if self.host == "cdn":
            self._serve_cdn(path)
        elif path.startswith("/api/models/") and repo in self.hub.repos:
            body = json.dumps(self.hub.info(repo, *self.hub.repos[repo])).encode()
            self._send(200, body, {"Content-Type": "application/json"})
        elif path.startswith(f"/api/models/{REPO}"):
            self._serve_api(path)
        elif repo in {REPO, *self.hub.repos} and "/resolve/" in path and (found := self._at(path)) is not None:
            self._serve_resolve(path.partition("/resolve/")[2].partition("/")[2], *found)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _serve_api(self, path: str) -> None:
        revision = path.partition("/revision/")[2]
        if self.hub.takes("api 503"):
            self._send(503, b"{}")
        elif self.hub.missing:
            self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif (found := self.hub.at(unquote(revision))) is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._send(200, json.dumps(self.hub.info(REPO, *found)).encode(), {"Content-Type": "application/json"})

    def _at(self, path: str) -> tuple[str, Path] | None:
        """What a path of a file is of, which names its commit in front of it."""
        _, _, behind = path.partition("/resolve/" if "/resolve/" in path else "/signed/")
        return self.hub.at(behind.partition("/")[0])

    def _serve_resolve(self, name: str, commit: str, folder: Path) -> None:
        if self.hub.gated:
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "accept the terms"})
            return
        data = (folder / name).read_bytes()
        headers = {"X-Repo-Commit": "d" * 40 if self.hub.takes("commit") else commit}
        if not is_lfs(name) or self.hub.takes("self"):
            etag = hashlib.sha256(data).hexdigest() if is_lfs(name) else git_sha1(data)
            self._send_range(data, headers | {"ETag": f'"{etag}"'})
            return
        etag = "0" * 64 if self.hub.takes("relink") else hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(data))}
        self._send(302, b"", headers | {"Location": f"{self.hub.cdn}/signed/{commit}/{name}?secret=signature"})

    def _serve_cdn(self, path: str) -> None:
        found = self._at(path)
        assert found is not None
        data = (found[1] / path.rpartition("/")[2]).read_bytes()
        for status in ("429", "500", "503", "404"):
            if self.hub.takes(status):
                self._send(int(status), b"no", self.hub.waits)
                return
        if self.hub.takes("drop"):
            self.close_connection = True
            return
        if self.hub.takes("expired"):
            self._send(403, b"expired")
            return
        etag = "other" if self.hub.takes("etag") else hashlib.md5(data).hexdigest()
        if self.hub.takes("flip"):
            data = data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]
        self._send_range(data, {"ETag": f'"{etag}"'})

    def _send_range(self, data: bytes, headers: dict[str, str]) -> None:
        wanted = self.headers.get("Range", "")
        if not wanted or (self.host == "cdn" and self.hub.takes("whole")):
            self._send(200, data, headers)
            return
        first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
        shift = 7 if self.hub.takes("shift") else 0
        headers |= {"Content-Range": f"bytes {first + shift}-{last + shift}/{len(data)}"}
        hangs = first > len(data) // 2 and self.hub.takes("hang")
        self._send(206, data[first : last + 1], headers, cut=hangs or self.hub.takes("cut"))
        if hangs:
            self.hub.closing.wait()

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: bool = False) -> None:
        sent = body[: len(body) // 2] if cut else body
        self.hub.note(
            Seen(
                self.host,
                self.command,
                self.path.partition("?")[0],
                self.headers.get("Range", ""),
                self.headers.get("Authorization", ""),
                len(sent),
            )
        )
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)
        if cut:
            self.close_connection = True
