"""Reads ranges of a file on the Hub. Every answer is checked, and failed requests are repeated within bounds."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import get_session
from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined, unused-ignore]

from moeinf.errors import HubError
from moeinf.pull.hub.hub_errors import transport_error

MAX_RETRIES = 6
_MAX_REDIRECTS = 5
_MAX_WAIT_S = 60.0
_TIMEOUT_S = (10.0, 30.0, 30.0, 30.0)  # connect, read, write, wait for a free connection
_STALL_S = 30.0  # a connection slower than _STALL_BYTES in this time is given up, as if it had broken
_STALL_BYTES = 64 << 10
_RETRY_STATUS = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository at a commit, with the size and hash that the Hub gives."""

    name: str
    url: str
    num_bytes: int
    sha256: str  # of the content, for files in LFS or Xet; "" for the others
    blob_id: str  # git's: SHA-1 of a small head and the content
    commit: str

    def hasher(self) -> tuple[hashlib._Hash, str]:
        """Returns a hash object to feed with the content, and the digest that it must give."""
        if self.sha256:
            return hashlib.sha256(), self.sha256
        return hashlib.sha1(f"blob {self.num_bytes}\0".encode(), usedforsecurity=False), self.blob_id


@dataclass(frozen=True, slots=True)
class Patience:
    """The clock of retries, which tests replace."""

    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic


class _RetryableError(Exception):
    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass
class Remote:
    """Reads byte ranges of one RemoteFile, from several threads if wanted.

    auth: headers that go to the Hub's own origin, never to the host that it redirects to.
    """

    file: RemoteFile
    auth: Mapping[str, str]
    patience: Patience = field(default_factory=Patience)
    _location: str = ""  # where the last redirect led; signed, so it may expire
    _etag: str = ""  # of the host that serves the bytes
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(
        self, start: int, end: int, sink: Callable[[bytes], None], stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Passes bytes start..end of the file to the sink in order, each once. Raises HubError.

        After a lost connection it goes on behind the last byte. At most MAX_RETRIES failures for one call.
        """
        done, failures = start, 0
        while done < end and not stopped():
            try:
                with closing(self._attempt(done, end)) as chunks:
                    for chunk in chunks:
                        sink(chunk)
                        done += len(chunk)
                        if stopped():
                            return
            except (_RetryableError, transport_error()) as error:
                failures += 1
                if failures > MAX_RETRIES:
                    raise HubError(
                        f"{self.file.name}: {_reason(error)}, {failures} times; repeat the pull later, it "
                        "goes on where it stopped"
                    ) from error
                wait_s = max(2.0 ** (failures - 1), getattr(error, "wait_s", 0.0))
                self.patience.sleep(min(wait_s, _MAX_WAIT_S))

    def _attempt(self, start: int, end: int) -> Generator[bytes, None, None]:
        with closing(self._open(start, end)) as response:
            self._check_range(response, start, end)
            left, mark_s, mark_left = end - start, self.patience.clock(), end - start
            for chunk in response.iter_raw():
                chunk = chunk[:left]
                left -= len(chunk)
                yield chunk
                if left == 0:
                    return
                now_s = self.patience.clock()
                if now_s - mark_s > _STALL_S:
                    if mark_left - left < _STALL_BYTES:
                        raise _RetryableError("the connection stalled")
                    mark_s, mark_left = now_s, left
        raise _RetryableError(f"the connection ended {left} bytes too early")

    def _open(self, start: int, end: int) -> Any:
        """Follows redirects to the response that carries the bytes."""
        url = self._location or self.file.url
        for _ in range(_MAX_REDIRECTS):
            at_hub = _origin(url) == _origin(self.file.url)
            headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
            headers |= self.auth if at_hub else {}
            client = get_session()
            request = client.build_request("GET", url, headers=headers, timeout=_TIMEOUT_S)
            response = client.send(request, stream=True, follow_redirects=False)
            try:
                if at_hub:
                    self._check_pinned(response)
                if not response.has_redirect_location:
                    self._check_status(response, at_hub)
                    with self._lock:
                        self._location = "" if at_hub else url
                    return response
            except BaseException:
                response.close()
                raise
            response.close()
            url = urljoin(url, response.headers["Location"])
        raise HubError(f"{self.file.name}: more than {_MAX_REDIRECTS} redirects; check HF_ENDPOINT")

    def _check_pinned(self, response: Any) -> None:
        """Checks that the Hub still names the commit and the content that it announced."""
        commit = response.headers.get("X-Repo-Commit", self.file.commit)
        etag = _plain(response.headers.get("X-Linked-Etag", ""))
        if commit != self.file.commit or (etag and etag != (self.file.sha256 or self.file.blob_id)):
            raise self._changed()

    def _check_status(self, response: Any, at_hub: bool) -> None:
        status = response.status_code
        if status in _RETRY_STATUS:
            raise _RetryableError(f"the server answers HTTP {status}", _retry_after_s(response))
        if not at_hub and status in (400, 401, 403, 404, 410):
            with self._lock:
                self._location = ""  # a signed address that has expired: ask the Hub for a new one
            raise _RetryableError(f"the download address was refused (HTTP {status})")
        if status == 416:
            raise self._changed()
        if status >= 400:
            response.read()
            hf_raise_for_status(response)

    def _check_range(self, response: Any, start: int, end: int) -> None:
        size, whole = self.file.num_bytes, start == 0 and end == self.file.num_bytes
        expected = f"bytes {start}-{end - 1}/{size}"
        given = response.headers.get("Content-Range", "")
        length = response.headers.get("Content-Length")
        if response.status_code != 206 and not (response.status_code == 200 and whole):
            raise _RetryableError(f"HTTP {response.status_code} instead of a part of the file")
        if response.status_code == 206 and given not in (expected, f"bytes {start}-{end - 1}/*"):
            if given.rpartition("/")[2] not in (str(size), "*"):
                raise self._changed()
            raise _RetryableError(f"wrong part of the file ({given[:60]!r} instead of {expected!r})")
        if length is not None and length != str(end - start):
            raise _RetryableError(f"{length[:20]} bytes instead of {end - start}")
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise _RetryableError("the server compresses what must come as it is")
        etag = _plain(response.headers.get("ETag", ""))
        with self._lock:
            if etag and self._etag and etag != self._etag:
                raise self._changed()
            self._etag = self._etag or etag

    def _changed(self) -> HubError:
        return ChangedError(
            f"{self.file.name} changed on the server while it was downloaded; it was discarded, repeat the pull"
        )


class ChangedError(HubError):
    """The file changed during the download: what came so far must be discarded."""


def _reason(error: BaseException) -> str:
    """Describes a failure without its URL, as a signed address is as good as a password."""
    return str(error) if isinstance(error, _RetryableError) else f"the connection failed ({type(error).__name__})"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _plain(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _retry_after_s(response: Any) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0
