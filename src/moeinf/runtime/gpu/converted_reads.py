"""Reads of experts whose files hold them in another form than a device computes from."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np

from moeinf.runtime.io.read_places import PlacedReads
from moeinf.runtime.io.reader_protocol import DiskReader, ReadDone
from moeinf.types import ByteArray, FloatArray, IntArray


class ConvertedReads:
    """A Reader (reader_protocol.py): reads an expert into its slot, and has landed it when it is converted there.

    An expert is converted once for each time that it comes from the disk, and not for each time that it is copied to
    the device. Checksums are those of the files: the disk's reader has compared them before. Used from one thread;
    threads of its own convert.
    """

    def __init__(
        self,
        disk: DiskReader,
        placed: PlacedReads,
        slots: tuple[ByteArray, IntArray],
        convert: Callable[[int, ByteArray], None],
        num_threads: int,
    ) -> None:
        """slots: the memory that `disk` reads into, and by key what an expert may take of it.

        convert(key, slot): called in threads.
        """
        self.backend = disk.backend
        self._disk, self._placed = disk, placed
        self._memory, self._expert_bytes = slots
        self._convert = convert
        self._slot_of: dict[int, int] = {}  # of what is read or converted
        self._converting: dict[int, Future[None]] = {}
        self._threads = ThreadPoolExecutor(num_threads, "convert")

    @property
    def notice(self) -> str:
        return self._disk.notice

    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        """Does as Reader.submit; where an expert lies in the files follows from its key."""
        self._slot_of.update(zip(keys.tolist(), destinations.tolist(), strict=True))
        self._placed.submit(keys, destinations, priorities)

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        reading = self._still_read(keys)
        self._disk.reprioritise(keys[reading], priorities[reading])

    def cancel(self, keys: IntArray) -> IntArray:
        """Drops reads of which nothing was issued; what is converted lands."""
        return self._disk.cancel(keys[self._still_read(keys)])

    def known(self, keys: IntArray) -> IntArray:
        read = set(self._disk.known(keys).tolist())
        return np.array([key for key in keys.tolist() if key in read or key in self._converting], np.int64)

    def wait_any(self, keys: IntArray) -> IntArray:
        wanted = keys.tolist()
        while not (landed := self._landed(wanted)):
            if coming := [self._converting[key] for key in wanted if key in self._converting]:
                wait(coming, return_when=FIRST_COMPLETED)
            else:
                self._begin(self._disk.wait_any(keys))
        return np.array(landed, np.int64)

    def poll(self) -> ReadDone:
        done, failed = self._disk.poll()
        self._begin(done)
        return ReadDone(np.array(self._landed(list(self._converting)), np.int64), failed)

    def bytes_read(self) -> int:
        return self._disk.bytes_read()

    def busy_seconds(self) -> float:
        return self._disk.busy_seconds()

    def close(self) -> bool:
        ended = self._disk.close()
        self._threads.shutdown(cancel_futures=True)
        return ended

    def _begin(self, keys: IntArray) -> None:
        """Has threads convert what has been read."""
        for key in keys.tolist():
            slot = self._slot_of.pop(key)
            memory = self._memory[slot : slot + int(self._expert_bytes[key])]
            self._converting[key] = self._threads.submit(self._convert, key, memory)

    def _landed(self, wanted: list[int]) -> list[int]:
        """Takes those of the keys that are converted. Raises what a conversion has raised."""
        landed = [key for key in wanted if key in self._converting and self._converting[key].done()]
        for key in landed:
            self._converting.pop(key).result()
        return landed

    def _still_read(self, keys: IntArray) -> IntArray:
        """Which of the keys the disk's reader still has, by their places."""
        return np.flatnonzero([key not in self._converting for key in keys.tolist()])
