"""How ranks that were started together find each other: workers tell their addresses in the store of the launcher."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from torch.distributed import DistError, PrefixStore, TCPStore  # type: ignore[attr-defined]  # torch lists them not

from moeinf.distributed.meeting import Listener, own_address
from moeinf.errors import WorkerError

COME_S: Final = 300.0  # until all ranks are there: they load torch, and may be on machines that differ


def tell_address(host: str, port: int, rank: int, key: bytes) -> Listener:
    """Of a worker: listens on the address by which it reaches the store, and tells rank 0."""
    listener = Listener(own_address(host, port), 0, key)
    _store(host, port).set(str(rank), f"{listener.host}:{listener.port}")
    return listener


def told_addresses(host: str, port: int, num_ranks: int) -> list[str]:
    """Of rank 0: where the workers listen. Raises WorkerError for one that does not come."""
    store, addresses = _store(host, port), []
    for rank in range(1, num_ranks):
        try:
            addresses.append(store.get(str(rank)).decode())
        except DistError as error:
            raise WorkerError(f"rank {rank} of torchrun does not come; see what it says") from error
    return addresses


def _store(host: str, port: int) -> PrefixStore:
    return PrefixStore("moeinf", TCPStore(host, port, is_master=False, timeout=timedelta(seconds=COME_S)))
