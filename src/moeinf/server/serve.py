"""Runs the server in the foreground until a signal ends it."""

from __future__ import annotations

import logging
import resource
import socket
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.server.app import build_app
from moeinf.server.blocking.thread_pool import Pools
from moeinf.server.gate.connections import DeadlineProtocol
from moeinf.server.gate.guard import Rules
from moeinf.server.gate.request_log import HarmlessFormatter
from moeinf.server.metrics import Metrics
from moeinf.server.ollama.descriptions import identity
from moeinf.server.service import Service
from moeinf.server.texts import Texts
from moeinf.server.worker import Open, Worker
from moeinf.store.library import Library
from moeinf.traces.folder import prepare_folder

GRACE_S = 30  # answers that are being made when a signal comes may take so long
KEEP_ALIVE_S = 75  # a connection may stay open so long between two requests
QUEUED = 2048  # connections that the kernel keeps for the server, which
ACCEPTED_AT_ONCE = 32  # takes so many of them before it answers the others again
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class HttpServer:
    """Listens from the moment it is made; `run` answers until a signal or `stop` ends it, and closes everything."""

    def __init__(
        self,
        library: Library,
        config: RuntimeConfig,
        options: ServerOptions,
        keys: tuple[str, ...] = (),
        *,
        open_model: Open = Model,
    ) -> None:
        """keys: of which clients must give one.

        Raises UsageError for an address that cannot be had, or that others reach without a key, and for a folder that
        routing cannot be recorded in.
        """
        host, port = options.address
        local = host in _LOOPBACK
        if not local and not keys and not options.no_auth:
            raise UsageError(
                f"--host {host} can be reached from other machines: give --key-file or MOEINF_API_KEY, "
                "or --no-auth-i-know to let anybody in"
            )
        if config.trace:
            prepare_folder(Path(config.trace))
        raise_file_limit()
        self._socket = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        metrics, self._texts = Metrics(), Texts()
        self.worker = Worker(
            library,
            replace(config, many_conversations=True),
            keep_alive_s=options.keep_alive_s,
            max_queue=options.max_queue,
            open_model=open_model,
            on_end=metrics.count,
            describe=identity,
        )
        names = () if host in ("0.0.0.0", "::") else (host,)
        rules = Rules((*names, *options.allowed_host), options.allowed_origin, keys)
        self._pools = Pools()
        service = Service(library, self.worker, self._texts, metrics, local, bool(keys), self._pools)
        app = build_app(service, rules)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=DeadlineProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # a client is who is at the other end of its connection
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=ACCEPTED_AT_ONCE,
            ),
            self.worker,
        )

    def run(self) -> None:
        """Blocks. The first SIGINT or SIGTERM lets it finish its answers, the second does not; in the main thread."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.worker.stop()
            self._pools.close()
            self._texts.close()

    def stop(self) -> None:
        """Ends `run` after the answers that are being made; from any thread."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's, which at a signal takes no new requests, while the worker answers those that it has."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio takes one number for both: how many connections are queued, and how many are accepted at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for a signal, and so does next to nothing: the second one ends the wait for answers."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.take_no_more()
        await super().shutdown(sockets)


def raise_file_limit() -> None:
    """Each connection takes a file: as many as the system lets this user have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(host: str, port: int) -> socket.socket:
    """Raises UsageError for an address that is taken or that this machine has not."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(found[0], found[1])
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(found[4])
            listening.listen(QUEUED)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; end the program that does, or give another "
            "--host"
        ) from None
    listening.setblocking(False)
    return listening


def log_to_stderr(level: int = logging.INFO) -> None:
    """The server's own lines, with the time, on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("moeinf", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "moeinf" else logging.ERROR)
