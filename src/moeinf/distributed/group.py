"""Two ranks that exchange arrays by gloo. A group of its own for each pair: one that breaks takes no other along."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Final

import torch
from torch.distributed import ProcessGroupGloo, Store, Work  # type: ignore[attr-defined]  # torch lists them not

from moeinf.types import ByteArray

CONNECT_S: Final = 10.0  # for the other one to come to the group
_NEVER_SENT = 99  # a tag


class LostError(Exception):
    """The other rank has gone, or did not answer in time. Says why."""


class Transfer:
    """An array that is sent or received. It is the caller's again after `wait`, which is called once."""

    __slots__ = ("_tensor", "_work")

    def __init__(self, work: Work, tensor: torch.Tensor) -> None:
        self._work, self._tensor = work, tensor  # the tensor has to outlive the work

    def wait(self, seconds: float) -> None:
        """Blocks without the GIL. Raises LostError; then the group is of no use any more."""
        try:
            self._work.wait(timedelta(seconds=seconds))
        except RuntimeError as error:
            raise LostError(reason_of(error)) from error


class Group:
    """Two ranks, 0 and 1. Sends and receives of one tag come in their order. Used from one thread, but `break_off`."""

    def __init__(self, store: Store, rank: int, address: str) -> None:
        """address: of this machine, that the other can reach; nothing listens elsewhere. Raises LostError."""
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub has another name
        options._timeout = timedelta(seconds=CONNECT_S)
        try:
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
            self._group = ProcessGroupGloo(store, rank, 2, options)
        except RuntimeError as error:
            raise LostError(reason_of(error)) from error
        self._other = 1 - rank

    def send(self, data: ByteArray, tag: int = 0) -> Transfer:
        """Raises LostError."""
        return self._start(data, tag, sends=True)

    def receive(self, data: ByteArray, tag: int = 0) -> Transfer:
        """The other one sends exactly so many bytes. Raises LostError."""
        return self._start(data, tag, sends=False)

    def _start(self, data: ByteArray, tag: int, *, sends: bool) -> Transfer:
        tensor = torch.from_numpy(data)
        try:
            start = self._group.send if sends else self._group.recv  # type: ignore[attr-defined]  # nor there
            work = start([tensor], self._other, tag)
        except RuntimeError as error:
            raise LostError(reason_of(error)) from error
        return Transfer(work, tensor)

    def break_off(self) -> None:
        """Ends every wait of both ranks with LostError. From any thread.

        gloo closes a pair of which a wait has timed out, and offers no other way to end a wait.
        """
        with suppress(LostError):
            self.receive(_one_byte(), _NEVER_SENT).wait(0.001)


def _one_byte() -> ByteArray:
    data: ByteArray = torch.empty(1, dtype=torch.uint8).numpy()
    return data


def reason_of(error: RuntimeError) -> str:
    """What gloo says, without the places in its sources."""
    text = str(error)
    if any(words in text for words in ("closed by peer", "reset by peer", "Broken pipe")):
        return "its connection has ended"
    if "imed out" in text or "timeout" in text:
        return "it does not answer"
    return text.split("\n")[0].rsplit("] ", 1)[-1][:200]
