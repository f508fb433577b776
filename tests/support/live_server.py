"""A server of this process, on a port that the system chooses, for tests with real clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.config.server_options import ServerOptions
from moeinf.pull.pull import ensure, pull
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library, StoredModel
from tests.support.caller import write_caller


@contextmanager
def live_server(
    library: Library | StoredModel, *, config: RuntimeConfig | None = None, keys: tuple[str, ...] = (), **options: Any
) -> Iterator[HttpServer]:
    """A running server over a store, or over the store that this model lies in. options: of ServerOptions.

    Give its `url` to a client.
    """
    if isinstance(library, StoredModel):
        library = Library(library.path.parents[1])
    options = {"host": "127.0.0.1:0"} | options
    server = HttpServer(library, config or RuntimeConfig.of(device="cpu"), ServerOptions(**options), keys)
    thread = threading.Thread(target=server.run, name="server")
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join()


@contextmanager
def server_of_callers(folder: Path) -> Iterator[HttpServer]:
    """Serves `demo:chat`, and `caller`, which thinks, says a word and calls a tool, where it is given one."""
    ensure("demo:chat", home=folder / "home")
    pull(str(write_caller(folder / "caller")), home=folder / "home")
    with live_server(Library(folder / "home")) as running:
        yield running
