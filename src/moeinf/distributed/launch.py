"""How ranks that were started together find each other: workers tell their addresses in the store of the launcher.

Whoever reaches that store may write there: what is read is an address, and who answers there has to prove itself.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch lists them not

from moeinf.distributed.link import printable
from moeinf.distributed.listener import Listener
from moeinf.errors import WorkerError

COME_S: Final = 300.0  # until all ranks are there: they load torch, and may be on machines that differ
_LONGEST_ADDRESS: Final = 300


def tell_address(host: str, port: int, rank: int, key: bytes, say: Callable[[str], None]) -> Listener:
    """Of a worker: listens on the address by which it reaches the store, and tells rank 0. Raises WorkerError."""
    listener = Listener(_own_address(host, port), 0, key, say)
    try:
        _store(host, port).set(str(rank), str(listener.address))
    except BaseException:
        listener.close()
        raise
    return listener


def told_addresses(host: str, port: int, num_ranks: int) -> list[str]:
    """Of rank 0: where the workers listen. Raises WorkerError for one that does not come."""
    store, addresses = _store(host, port), []
    for rank in range(1, num_ranks):
        try:
            addresses.append(printable(store.get(str(rank))[:_LONGEST_ADDRESS]))
        except DistError as error:
            raise WorkerError(f"rank {rank} of torchrun does not come; see what it says") from error
    return addresses


def _store(host: str, port: int) -> PrefixStore:
    try:
        return PrefixStore("moeinf", TCPStore(host, port, is_master=False, timeout=timedelta(seconds=COME_S)))
    except (DistError, ValueError) as error:
        raise WorkerError(
            f"the store of torchrun at {host}:{port} cannot be reached; see what torchrun says"
        ) from error


def _own_address(host: str, port: int) -> str:
    """The address of this machine from which that one is reached; nothing is sent there."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise WorkerError(f"the store of torchrun at {host}:{port} cannot be reached: {error}") from error
