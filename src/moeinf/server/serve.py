"""Runs the server in the foreground until a signal ends it."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.errors import UsageError
from moeinf.server.app import build_app
from moeinf.server.blocking.exit_deadline import ExitDeadline
from moeinf.server.blocking.thread_pool import Pools
from moeinf.server.gate.connections import DeadlineProtocol
from moeinf.server.gate.guard import Rules
from moeinf.server.metrics import Metrics
from moeinf.server.ollama.descriptions import identity
from moeinf.server.service import Service
from moeinf.server.texts import Texts
from moeinf.server.turns.answer_worker import Limits, Worker
from moeinf.server.turns.opened import MOST_MODELS, Open, open_on
from moeinf.store.library import Library
from moeinf.traces.folder import prepare_folder

# After a signal the answer that is being made may take ANSWER_S. It is ended then, what does not end with it within
# CANCEL_S is cancelled, and has FLUSH_S to say so to its client; the models then have what is left until the process
# ends, whatever hangs: EXIT_S after the signal, and EXIT_NOW_S after a second one.
ANSWER_S, CANCEL_S, FLUSH_S = 5.0, 1.0, 0.5
EXIT_S, EXIT_NOW_S = 9, 4
FIRST_USE_S, IDLE_S = 60.0, 0.5  # without a model and a request, --until-idle ends it: at first, and later
_LOOK_S = 0.05  # between two looks whether it is time to go on
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
        open_model: Open = open_on,
    ) -> None:
        """keys: of which clients must give one.

        Raises UsageError for an address that cannot be had, or that others reach without a key, and for a folder that
        routing cannot be recorded in.
        """
        _refuse(options, config, keys)
        host, port = options.address
        if config.recording.trace:
            prepare_folder(Path(config.recording.trace))
        raise_file_limit()
        self._socket = _listen(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._socket.getsockname()[1]}"
        metrics, self._texts = Metrics(), Texts()
        self.worker = Worker(
            library,
            replace(config, many_conversations=True, parallel=options.parallel or 0),
            keep_alive_s=options.keep_alive_s,
            limits=Limits(options.max_queue, options.models or MOST_MODELS),
            open_model=open_model,
            on_end=metrics.count,
            describe=identity,
        )
        rules = Rules(
            (host, *options.allowed_host), options.allowed_origin, keys, any_address=host in ("0.0.0.0", "::")
        )
        self._pools = Pools()
        service = Service(library, self.worker, self._texts, metrics, host in _LOOPBACK, bool(keys), self._pools)
        self._server = _Server(build_app(service, rules), self.worker, until_idle=options.until_idle)
        self._deadline = ExitDeadline()  # a thread more: where the system gives none, nobody has been told of a server
        self._server.on_signal = self._deadline.start

    def run(self) -> None:
        """Blocks until a signal ends it, in the main thread, or `stop`, in any.

        The first SIGINT, SIGTERM or SIGHUP gives the answer that is being made ANSWER_S, the second does not. The
        process ends here where something hangs then.
        """
        try:
            with _hangup_told(self._server.handle_exit):
                self._server.run(sockets=[self._socket])
        finally:
            self._pools.close()
            self.worker.stop()
            self._texts.close()
            self._deadline.close()

    def stop(self) -> None:
        """Ends `run` as a signal does, without an end of the process; from any thread."""
        self._server.should_exit = True


def _refuse(options: ServerOptions, config: RuntimeConfig, keys: tuple[str, ...]) -> None:
    """Raises UsageError for options that do not go together."""
    if options.address[0] not in _LOOPBACK and not keys and not options.no_auth:
        raise UsageError(
            f"--host {options.address[0]} can be reached from other machines: give --key-file or MOEINF_API_KEY, "
            "or --no-auth-i-know to let anybody in"
        )
    if config.recording.trace and (options.parallel or 1) > 1:
        raise UsageError("--trace records one answer at a time; leave out --parallel, or set it to 1")


class _Server(uvicorn.Server):
    """uvicorn's, which at a signal refuses what waits, and ends the rest in time."""

    def __init__(self, app: ASGIApp, worker: Worker, *, until_idle: bool) -> None:
        """until_idle: whether it ends by itself once no model is loaded any more."""
        config = uvicorn.Config(
            app,
            http=DeadlineProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client is who is at the other end of its connection
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=ACCEPTED_AT_ONCE,
        )
        super().__init__(config)
        self._worker, self._until_idle = worker, until_idle
        self._idle_at = time.monotonic() + FIRST_USE_S
        self.on_signal: Callable[[int], None] = lambda seconds: None  # told within how many the process must end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio takes one number for both: how many connections are queued, and how many are accepted at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn calls it ten times a second."""
        if self._until_idle:
            if self._worker.opened.loaded or self._worker.view.requests():
                self._idle_at = time.monotonic() + IDLE_S
            self.should_exit = self.should_exit or time.monotonic() >= self._idle_at
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called for a signal, and so does next to nothing: the second one ends the wait for answers."""
        self.force_exit = self.should_exit
        self.on_signal(EXIT_NOW_S if self.force_exit else EXIT_S)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or ():
            listening.close()
        self._worker.take_no_more()
        connections, tasks = self.server_state.connections, self.server_state.tasks
        for connection in list(connections):
            connection.shutdown()  # those of which no request is being answered
        await _until(lambda: not tasks or self.force_exit, ANSWER_S)
        self._worker.end_answer()
        await _until(lambda: not tasks, CANCEL_S)
        for task in list(tasks):
            task.cancel()  # the guard tells its client
        await _until(lambda: not tasks and not connections, FLUSH_S)
        for connection in list(connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # in which they are


async def _until(done: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not done() and time.monotonic() < until:
        await asyncio.sleep(_LOOK_S)


@contextmanager
def _hangup_told(tell: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Meanwhile SIGHUP is told, as uvicorn has its server told of the others; one that is ignored stays so."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, tell)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


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
