"""What reads files into memory: the native engine, its twin in Python, and what stands for them in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from moeinf.types import FloatArray, IntArray


class ReadDone(NamedTuple):
    """The keys whose reads have ended since the last call."""

    done: IntArray
    failed: IntArray


@dataclass(frozen=True, slots=True)
class OtherDisks:
    """Files of experts on other disks than the first.

    paths: for each disk, of all files. Without cuts they are the same as the first disk's. cuts: of every `period`
    bytes of a file, the first disk has the first so many, and the one other disk the rest: (period, first) of each.
    """

    paths: Sequence[Sequence[Path]] = ()
    cuts: Sequence[tuple[int, int]] = ()


NO_OTHERS: Final = OtherDisks()
OnWait = Callable[[float, str], None]  # seconds that a read has been waited for, its file; may raise to end the wait


class ReadFacts(Protocol):
    """What a reader tells of itself."""

    @property
    def backend(self) -> str: ...  # "io_uring" | "threads" | "pure"

    @property
    def notice(self) -> str: ...  # one line once O_DIRECT or io_uring was refused, or a disk stood in, else ""

    def bytes_read(self) -> int: ...

    def busy_seconds(self) -> float: ...


class Reader(ReadFacts, Protocol):
    """Reads byte ranges of files into the arena: the native engine, or the one in Python.

    Keys are the caller's (layer * num_experts + expert). Requests of priority inf are demand: they overtake every
    other and may use the whole queue depth. Finite priorities are prefetches: highest first, and only while no demand
    waits, at most `prefetch_depth` segments of them in flight. Called from one thread at a time; no call but `wait_any`
    and `close` blocks.
    """

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None: ...

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None: ...

    def cancel(self, keys: IntArray) -> IntArray: ...

    def known(self, keys: IntArray) -> IntArray:
        """Returns those of the keys whose reads were submitted, and were neither cancelled nor collected since.

        Whoever asked for something and got an exception asks this: it may have come before or after the answer.
        """
        ...

    def wait_any(self, keys: IntArray) -> IntArray: ...

    def poll(self) -> ReadDone: ...

    def close(self) -> bool: ...  # whether all reads have ended: a disk that hangs is not waited for


class DiskReader(Reader, Protocol):
    """A reader of files: the native engine, or the one in Python."""

    def submit_pieces(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: IntArray,
        priorities: FloatArray,
    ) -> None:
        """As submit, for keys of several ranges each: arrays [keys, pieces]. Ranges begin and end anywhere.

        Each is read with the rest of its blocks, so that its byte i comes to destination + offset % 4096 + i.
        """
        ...
