"""The events that a pull reports while it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

Verb = Literal["pulling", "converting", "quantising", "verifying"]


class PullProgress(Protocol):
    """Receives the events of a pull, all from the thread that called it.

    total comes once for each verb, before its first start; the num_bytes of all later starts with that verb add up to
    its num_bytes: bytes from the network, bytes converted and bytes read back take different times, so nothing adds
    them up. What an interrupted pull had done already is in the done_bytes, so that a counter never goes back. start,
    advance..., finish belong together; one file is open at a time. Note and stage may come at any time.
    """

    def stage(self, text: str) -> None:
        """Takes a step without a byte count: `pulling manifest`, `success`."""
        ...

    def note(self, text: str) -> None:
        """Takes a line that the user should read: a wait, a restart."""
        ...

    def sizes(self, fetch_bytes: int, store_bytes: int, quantised_bytes: int) -> None:
        """Takes, before the download, its size, the size in the store, and the size there if quantised to q4_k."""
        ...

    def total(self, verb: Verb, num_bytes: int, done_bytes: int) -> None: ...

    def start(self, verb: Verb, file: str, num_bytes: int, done_bytes: int) -> None: ...

    def advance(self, num_bytes: int) -> None: ...

    def finish(self) -> None: ...

    def waiting(self) -> None:
        """Called about twice a second while bytes, or another pull, are waited for; what it raises ends the pull."""
        ...


class SilentProgress:
    """Reports to nobody."""

    def stage(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def sizes(self, fetch_bytes: int, store_bytes: int, quantised_bytes: int) -> None:
        pass

    def total(self, verb: Verb, num_bytes: int, done_bytes: int) -> None:
        pass

    def start(self, verb: Verb, file: str, num_bytes: int, done_bytes: int) -> None:
        pass

    def advance(self, num_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def waiting(self) -> None:
        pass


class NotedProgress(SilentProgress):
    """Tells what the user should read, and nothing else."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def note(self, text: str) -> None:
        self._tell(text)
