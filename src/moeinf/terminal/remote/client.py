"""A small client of `moeinf serve`, on the standard library alone: a chat needs no more."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from typing import Final

from moeinf.config.server_options import address_of
from moeinf.errors import ContextLengthError, ModelNotFoundError, MoeinfError
from moeinf.types import Json, JsonObject

CONNECT_S = 5.0
ANSWER_S = 30.0  # for what the server knows without its model
LOOK_S = 0.1  # between two looks at whether to go on
_HERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # all addresses of a machine, to listen on: this machine, to ask
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_OF_MODELS: Final[Mapping[str, Mapping[str, type]]] = {  # what is told of each
    "/api/tags": {"name": str, "digest": str},
    "/api/ps": {"name": str, "digest": str, "moeinf": dict},
}


class NoServerError(MoeinfError):
    """Nobody listens, or what listens is no server of moeinf."""


class ServerClient:
    """Asks the server at one address. Every method raises NoServerError, and MoeinfError with the server's words."""

    def __init__(self, address: str, key: str | None, *, connect_s: float = CONNECT_S) -> None:
        """address: as MOEINF_HOST has it. key: for a server that wants one. Raises UsageError for no address."""
        host, self._port = address_of(address)
        self._host = _HERE.get(host, host)
        self._key, self._connect_s = key, connect_s
        self.loopback = self._host in _LOOPBACK
        self.url = f"http://{f'[{self._host}]' if ':' in self._host else self._host}:{self._port}"

    def ask(self, method: str, path: str, body: object = None, *, timeout_s: float | None = ANSWER_S) -> Json:
        """The JSON of an answer. timeout_s: for each read; None waits for ever."""
        with closing(self._connected()) as connection:
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(timeout_s)
                response = self._sent(connection, method, path, body)
                return json.loads(response.read())
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                raise self._silent(error) from None

    def version(self, *, timeout_s: float) -> str:
        """Of the server. Raises NoServerError where what answers is none."""
        told = self.ask("GET", "/api/version", timeout_s=timeout_s)
        if not _has({"version": str}, told):
            raise self._other()
        return str(told["version"])

    def models(self, path: str, *, timeout_s: float = ANSWER_S) -> list[JsonObject]:
        """Those that /api/tags or /api/ps tells of, each with a name and a digest. Raises as `version`."""
        told = self.ask("GET", path, timeout_s=timeout_s)
        models = told.get("models") if isinstance(told, dict) else None
        if not isinstance(models, list) or not all(_has(_OF_MODELS[path], each) for each in models):
            raise self._other()
        return models

    def stream(self, path: str, body: object, should_stop: Callable[[], bool]) -> Generator[JsonObject, None, None]:
        """Yields the lines of a streamed answer until it ends or should_stop; hanging up ends it on the server, too."""
        connection = self._connected()
        lines: queue.SimpleQueue[JsonObject | Exception | None] = queue.SimpleQueue()
        wire = connection.sock
        wire.settimeout(None)
        threading.Thread(target=self._read, args=(connection, path, body, lines), name="answer", daemon=True).start()
        try:
            while not should_stop():
                with suppress(queue.Empty):
                    line = lines.get(timeout=LOOK_S)
                    if line is None:
                        return
                    if isinstance(line, Exception):
                        raise line
                    if "error" in line:
                        raise _refused(200, line)
                    yield line
        finally:
            with suppress(OSError):
                wire.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _read(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: object,
        lines: queue.SimpleQueue[JsonObject | Exception | None],
    ) -> None:
        """Puts each line, then None, or the exception that ended them, whatever it was: somebody waits for it."""
        last: Exception | None = None
        try:
            for line in self._sent(connection, "POST", path, body):
                told = json.loads(line)
                if not isinstance(told, dict):
                    raise self._other()
                lines.put(told)
        except MoeinfError as error:
            last = error
        except BaseException as error:  # AttributeError where the connection was closed meanwhile
            last = self._silent(error)
        lines.put(last)

    def _connected(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect_s)
        try:
            connection.connect()
        except OSError:
            raise NoServerError(f"no server answers at {self.url}; `moeinf serve` starts one") from None
        return connection

    def _sent(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: object
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refused(response.status, json.loads(response.read()))
        return response

    def _other(self) -> NoServerError:
        return NoServerError(
            f"what answers at {self.url} is no server of moeinf; set MOEINF_HOST to the address of one"
        )

    def _silent(self, error: BaseException) -> NoServerError:
        return NoServerError(f"the server at {self.url} gave no answer ({error or type(error).__name__}); ask again")


def _has(fields: Mapping[str, type], told: Json) -> bool:
    """Whether an answer is an object with these."""
    return isinstance(told, dict) and all(isinstance(told.get(name), kind) for name, kind in fields.items())


def _refused(status: int, body: object) -> MoeinfError:
    """The error that the server has told of."""
    told = body if isinstance(body, dict) else {}
    words = told.get("error")
    message = words if isinstance(words, str) else f"the server answered with status {status}"
    if status == 404:
        return ModelNotFoundError(message)
    if status == 401:
        return MoeinfError(f"{message}; MOEINF_API_KEY holds the key of this command")
    if told.get("moeinf") == {"kind": "context"}:
        return ContextLengthError(message)
    return MoeinfError(message)
