"""`moeinf worker`: computes experts for a model that another machine runs. Heavy imports are inside."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.option import options
from moeinf.terminal.arguments.flags import with_flags
from moeinf.terminal.arguments.shell_completion import model_names
from moeinf.terminal.process.interrupt import end_at_once, end_at_once_at_endings
from moeinf.terminal.user_notes import say

if TYPE_CHECKING:
    from moeinf.distributed.listener import Listener
    from moeinf.store.library import StoredModel

_USED = ("ram", "expert_cache", "prefetch", "threads", "reader", "direct_io", "queue_depth", "verify_reads")
_UNUSED = tuple(each.name for each in options(RuntimeConfig) if each.name not in _USED)


@with_flags(without=_UNUSED)
def worker(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model that rank 0 runs.", autocompletion=model_names)
    ],
    bind: Annotated[str, typer.Option(metavar="ADDR:PORT", help="Address of this machine to listen on.")],
    key_file: Annotated[
        str, typer.Option(metavar="PATH", help="File with the key that all machines share, 16 bytes or more.")
    ],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    *,
    config: RuntimeConfig,
) -> None:
    """Compute experts for `moeinf run --workers` of another machine.

    That machine, rank 0, keeps all other weights and serves the user. Both have the same moeinf and the same key. A
    model that is not stored here is sent by rank 0 when it comes. Only who knows the key is served, but nothing is
    encrypted: bind to a network that you trust.
    """
    from moeinf.distributed.listener import Listener
    from moeinf.engine.joining import address_of, read_key

    key, address, tell = read_key("--key-file", key_file), address_of("--bind", bind), teller(quiet=quiet)
    with Listener(address.host, address.port, key, tell) as listener:
        serve_here(model, config, listener, tell)


def teller(*, quiet: bool) -> Callable[[str], None]:
    """What tells the user a line, unless `quiet`."""
    return (lambda line: None) if quiet else say


def serve_here(
    model: str, config: RuntimeConfig, listener: Listener, tell: Callable[[str], None], *, once: bool = False
) -> None:
    """Computes experts for one rank 0 after the other, or for one. Tells what happens."""
    from moeinf.distributed.serving import WorkerServer
    from moeinf.engine.reporting import Reporting
    from moeinf.engine.worker import WorkerExperts

    end_at_once_at_endings()  # it has nothing that has to be put in order, and a layer may hang with its disk
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        end_at_once(signal.SIGINT)
    stored = _stored(model, listener, tell)
    with WorkerExperts(stored, config, Reporting(notify=lambda notice: tell(f"note: {notice}"))) as experts:
        tell(f"{stored.name} on {listener.address} · {experts.describe()}")
        server = WorkerServer(listener, experts.facts, experts.offer, experts, tell)
        server.run(*experts.forms(), once=once)


def _stored(model: str, listener: Listener, tell: Callable[[str], None]) -> StoredModel:
    """The model of this name, or GGUF file; one that is not stored here comes from rank 0."""
    from moeinf.config.environment import store_home
    from moeinf.distributed.transfer import await_model
    from moeinf.errors import ModelNotFoundError
    from moeinf.store.library import Library
    from moeinf.store.naming.names import full_name
    from moeinf.terminal.stored.find_stored import find_stored

    try:
        return find_stored(model)
    except ModelNotFoundError:
        name = full_name(model)
    tell(f"{name} is not stored here: waiting on {listener.address} for a rank 0 that has it")
    return await_model(listener, Library(store_home()), name, tell)
